//! All black-box tests: they run the built programs and talk to them as their users do.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail by panicking, as tests do")]
#![expect(unreachable_pub, reason = "in one program of many files everything is unreachable from outside")]

mod common;
mod contract;
mod control;
mod install;
mod plugins;
mod pressure;
mod print;
mod processes;
mod programs;
mod rude;
mod serve;
mod sessions;
mod settings;
mod trust;
mod usage;
mod wire_serve;

/// Every file here is a module of this program, or a program of its own in `Cargo.toml`: a forgotten one would never run.
#[test]
fn no_test_file_is_forgotten() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let manifest = read("Cargo.toml");
    let sources = ["main.rs", "serve/mod.rs", "wire_serve/mod.rs", "common/mod.rs"]
        .map(|name| read(&format!("tests/{name}")))
        .concat();
    for folder in ["tests", "tests/serve", "tests/wire_serve", "tests/common"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let named = sources.contains(&format!("mod {stem};"))
                || manifest.contains(&format!("[[test]]\nname = \"{stem}\""));
            if path.extension().is_some_and(|extension| extension == "rs") && stem != "mod" {
                assert!(named, "{} would never run", path.display());
            }
        }
    }
}
