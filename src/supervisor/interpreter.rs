//! The interpreter that a script's first line names. The system reports a missing one as a script that is not there,
//! and `env` only on stderr, so it is looked for before the script is started.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::process::{ProgramError, on_path};

/// How much of a first line the system reads.
const LINE: u64 = 256;

/// Checks a program; one that is no script passes.
///
/// # Errors
/// When it is a script whose interpreter is not there.
pub(super) fn check(program: &Path, root: &Path, search: &OsStr) -> Result<(), ProgramError> {
    let Some(line) = first_line(program) else { return Ok(()) };
    let line = line.trim_matches([' ', '\t']);
    let (interpreter, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let path = program.to_owned();
    if !root.join(interpreter).exists() {
        return Err(ProgramError::NoInterpreter { path, interpreter: interpreter.to_owned() });
    }
    let Some(asked) = asked_of_env(interpreter, rest) else { return Ok(()) };
    let interpreter = asked.to_owned();
    if asked.contains('/') {
        let there = root.join(asked).exists();
        return if there { Ok(()) } else { Err(ProgramError::NoInterpreter { path, interpreter }) };
    }
    match on_path(asked, root, search) {
        Some(_) => Ok(()),
        None => {
            let search = search.to_string_lossy().into_owned();
            Err(ProgramError::InterpreterNotOnPath { path, interpreter, search })
        }
    }
}

/// Returns what stands behind `#!`. A program that cannot be read may still be run.
fn first_line(program: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(program).ok()?.take(LINE).read_to_end(&mut bytes).ok()?;
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    String::from_utf8(line.to_vec()).ok().filter(|line| !line.trim().is_empty())
}

/// Returns the program that `env` is to find. Options other than `-S` may change where it looks, so they are left to it.
fn asked_of_env<'a>(interpreter: &str, rest: &'a str) -> Option<&'a str> {
    if Path::new(interpreter).file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    match rest.strip_prefix("-S") {
        Some(words) => {
            words.split_whitespace().next().filter(|word| !word.starts_with('-') && !word.contains('='))
        }
        // Without it the rest of the line is one word, and `\r` a part of it.
        None => Some(rest).filter(|word| !word.is_empty() && !word.starts_with('-') && !word.contains('=')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a script with this first line, without the script's path.
    fn told(line: &str) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        std::fs::write(&path, format!("{line}\nmore\n")).unwrap();
        std::fs::write(root.path().join("own"), "").unwrap();
        let error = check(&path, root.path(), OsStr::new("/usr/bin:/bin")).err()?.to_string();
        Some(
            error
                .strip_prefix(&format!("{} cannot be run: its first line ", path.display()))
                .unwrap()
                .to_owned(),
        )
    }

    #[test]
    fn what_is_there_passes() {
        for line in ["", "\u{7f}ELF", "#!", "#!/bin/sh", "#! /bin/sh -e", "#!/usr/bin/env sh", "#!own"] {
            assert_eq!(told(line), None, "{line}");
        }
        for line in ["#!/usr/bin/env -S sh -e", "#!/usr/bin/env -i nosuch", "#!/usr/bin/env -S X=1 nosuch"] {
            assert_eq!(told(line), None, "{line}");
        }
    }

    #[test]
    fn a_missing_one_is_named() {
        let gone = "names the interpreter /no/such, which is not there; install it or correct that line";
        assert_eq!(told("#!/no/such").unwrap(), gone);
        assert_eq!(told("#! /no/such -x y").unwrap(), gone);
        assert_eq!(told("#!/usr/bin/env /no/such").unwrap(), gone);
        let words = told("#!/bin/sh\r").unwrap();
        assert!(words.starts_with("names the interpreter /bin/sh\\r, which"), "{words}");
    }

    #[test]
    fn one_that_env_cannot_find_is_named_with_the_path() {
        let gone = "asks for the interpreter `nosuch`, which was not found on the PATH (/usr/bin:/bin); install it or correct that line";
        assert_eq!(told("#!/usr/bin/env nosuch").unwrap(), gone);
        assert_eq!(told("#!/usr/bin/env -S nosuch --flag").unwrap(), gone);
        let words = told("#!/usr/bin/env sh\r").unwrap();
        assert!(words.starts_with("asks for the interpreter `sh\\r`, which was not found"), "{words}");
    }
}
