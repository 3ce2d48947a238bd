//! All black-box tests: they run the built programs and talk to them as their users do.

mod common;
mod contract;
mod print;
mod serve;

/// Every file here is a module of this program: a forgotten one would never run.
#[test]
fn no_test_file_is_forgotten() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let sources: String = ["main.rs", "serve/mod.rs", "common/mod.rs"]
        .map(|name| std::fs::read_to_string(root.join(name)).unwrap())
        .concat();
    for folder in [root.clone(), root.join("serve"), root.join("common")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let is_module = path.extension().is_some_and(|extension| extension == "rs");
            if is_module && stem != "main" && stem != "mod" {
                assert!(sources.contains(&format!("mod {stem};")), "{} is in no module", path.display());
            }
        }
    }
}
