//! What the sources promise: imports point one way.

use std::collections::BTreeMap;
use std::path::Path;

/// Layers from low to high (docs/architecture.md). A layer may use those below it, and itself.
const LAYERS: [&[&str]; 12] = [
    &["telemetry", "printable"],
    &["ports"],
    &["trust"],
    &["settings"],
    &["schema"],
    &["supervisor", "journal"],
    &["bridge"],
    &["kernel", "provider"],
    &["surface", "control"],
    &["app"],
    &["cli"],
    &["main"],
];

#[test]
fn imports_point_down() {
    let rank: BTreeMap<&str, usize> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(rank, names)| names.iter().map(move |name| (*name, rank)))
        .collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (path, module) in sources(&root) {
        if module == "lib" {
            continue;
        }
        let own = *rank.get(module.as_str()).unwrap_or_else(|| panic!("`{module}` is in no layer"));
        for used in imports(&std::fs::read_to_string(&path).unwrap()) {
            let Some(&theirs) = rank.get(used.as_str()) else { continue };
            seen += 1;
            let down = theirs < own || used == module;
            assert!(down, "{} uses `{used}`, which is not below `{module}`", path.display());
        }
    }
    assert!(seen > 30, "the walk found the imports");
}

/// Every source file with the module of the crate's root that it belongs to.
fn sources(root: &Path) -> Vec<(std::path::PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path.strip_prefix(root).unwrap();
                let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
                found.push((path.clone(), first.trim_end_matches(".rs").to_owned()));
            }
        }
    }
    found
}

/// The modules named behind `crate::`, in grouped imports too.
fn imports(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let name = |text: &str| -> String {
        text.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
    };
    for (at, _) in source.match_indices("crate::") {
        if source[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$') {
            continue;
        }
        let rest = &source[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => names.push(name(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (at, letter) in group.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        _ if letter.is_whitespace() => {}
                        _ if start => {
                            names.push(name(&group[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

#[test]
fn grouped_imports_are_seen() {
    let source = "use crate::{a::{b, c}, d};\nuse crate::e::f;\nuse bingo_crate::g;";
    assert_eq!(imports(source), ["a", "d", "e"]);
}
