//! The one place where processes are started: what to run, in which environment and directory.
//!
//! A plugin is run by a guard (`guard`), which this file starts; the guard starts the plugin itself through
//! [`guarded_command`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bingo_plugin_sdk::manifest::Entry;

use super::interpreter;

/// What stands for the plugin's directory in a manifest.
const ROOT: &str = "${PLUGIN_ROOT}";

/// What stands for the directory that the manifest's `prepare` step fills, and the variable that names it.
pub(super) const PREPARED: &str = "${PLUGIN_PREPARED}";
const PREPARED_VARIABLE: &str = "PLUGIN_PREPARED";

/// Variables every plugin gets, when the host has them. Everything else may be a secret of the host.
const PASSED: [&str; 26] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "TERM",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "ftp_proxy",
    "FTP_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "NIX_SSL_CERT_FILE",
];

/// Prefixes of further variables every plugin gets.
const PASSED_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// Why a plugin's program cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("the directory {} is not there", path.display())]
    NoDirectory { path: PathBuf },
    #[error(
        "the command `{command}` was not found on the PATH ({path}); install it or write its full path in `{key}.command`"
    )]
    NotOnPath { command: String, path: String, key: &'static str },
    #[error("there is no program {}", path.display())]
    NotFound { path: PathBuf },
    #[error("{} is not executable; set its mode (chmod +x) or name its interpreter in `{key}.command`", path.display())]
    NotExecutable { path: PathBuf, key: &'static str },
    #[error(
        "{} cannot be run: its first line names the interpreter {}, which is not there; install it or correct that line",
        path.display(), interpreter.escape_debug()
    )]
    NoInterpreter { path: PathBuf, interpreter: String },
    #[error(
        "{} cannot be run: its first line asks for the interpreter `{}`, which was not found on the PATH ({search}); install it or correct that line",
        path.display(), interpreter.escape_debug()
    )]
    InterpreterNotOnPath { path: PathBuf, interpreter: String, search: String },
}

/// What the placeholders of a manifest stand for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places<'a> {
    /// The directory of the manifest.
    pub(super) root: &'a Path,
    /// The one that the `prepare` step fills; while it is not known, `${PLUGIN_PREPARED}` stays as it is.
    pub(super) prepared: Option<&'a Path>,
}

impl Places<'_> {
    pub(super) fn put_in(&self, text: &str) -> String {
        let text = text.replace(ROOT, &self.root.to_string_lossy());
        match self.prepared {
            None => text,
            Some(prepared) => text.replace(PREPARED, &prepared.to_string_lossy()),
        }
    }
}

/// What is run for a plugin, resolved: nothing in it depends on the host any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Absolute.
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    /// The whole environment.
    pub(super) env: BTreeMap<OsString, OsString>,
    /// The working directory: that of the manifest.
    pub(super) directory: PathBuf,
}

/// Which of the host's variables a plugin gets beyond the common ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) names: Vec<String>,
    /// Passes all of them.
    pub(super) all: bool,
}

impl Program {
    /// Resolves what stands at a manifest's `key`: placeholders, environment and the command on the PATH of that
    /// environment.
    ///
    /// # Errors
    /// When the directory or the command is not there or cannot be run.
    pub(super) fn resolve(
        entry: &Entry,
        key: &'static str,
        places: &Places<'_>,
        passed: &Passed,
    ) -> Result<Self, ProgramError> {
        let root = places.root;
        if !root.is_dir() {
            return Err(ProgramError::NoDirectory { path: root.to_owned() });
        }
        let mut env = environment(std::env::vars_os(), passed);
        env.extend(entry.env.iter().map(|(name, value)| (name.into(), places.put_in(value).into())));
        if let Some(prepared) = places.prepared {
            env.insert(PREPARED_VARIABLE.into(), prepared.into());
        }
        let search = env.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        let path = find(&places.put_in(&entry.command), key, root, &search)?;
        interpreter::check(&path, root, &search)?;
        let args = entry.args.iter().map(|arg| places.put_in(arg)).collect();
        Ok(Self { path, args, env, directory: root.to_owned() })
    }
}

fn environment(
    host: impl Iterator<Item = (OsString, OsString)>,
    passed: &Passed,
) -> BTreeMap<OsString, OsString> {
    host.filter(|(name, _)| {
        let name = name.to_string_lossy();
        passed.all
            || PASSED.contains(&&*name)
            || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || passed.names.iter().any(|passed| *passed == name)
    })
    .collect()
}

fn find(command: &str, key: &'static str, root: &Path, search: &OsStr) -> Result<PathBuf, ProgramError> {
    if command.contains('/') {
        let path = root.join(command);
        return match (path.is_file(), is_executable(&path)) {
            (true, true) => Ok(path),
            (true, false) => Err(ProgramError::NotExecutable { path, key }),
            (false, _) => Err(ProgramError::NotFound { path }),
        };
    }
    on_path(command, root, search).ok_or_else(|| ProgramError::NotOnPath {
        command: command.to_owned(),
        path: search.to_string_lossy().into_owned(),
        key,
    })
}

/// Looks a command up; what stands relative on the PATH is meant from the directory that programs start in.
pub(super) fn on_path(command: &str, root: &Path, search: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(search)
        .map(|folder| root.join(folder).join(command))
        .find(|path| path.is_file() && is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// Returns the command that starts a guard: pipes on all three streams, the plugin's environment and directory.
///
/// It is no group leader, so that the guard can make itself a session leader.
pub(super) fn guard_command(binary: &Path, args: &[OsString], program: &Program) -> Command {
    let mut command = command(binary.as_os_str());
    command
        .args(args)
        .arg(&program.path)
        .args(&program.args)
        .env_clear()
        .envs(&program.env)
        .current_dir(&program.directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the command with which a guard starts its plugin: everything inherited, in a process group of its own, so
/// that a plugin which signals its group does not hit its guard.
pub(super) fn guarded_command(program: &OsStr, args: &[OsString]) -> Command {
    let mut command = command(program);
    command.args(args).process_group(0);
    command
}

/// Makes this process the command's program; returns only the reason why that failed.
pub(super) fn become_program(command: &mut Command) -> std::io::Error {
    command.exec()
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where processes are started")]
fn command(program: &OsStr) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(command: &str) -> Entry {
        Entry { command: command.to_owned(), args: Vec::new(), env: BTreeMap::new() }
    }

    fn resolve(entry: &Entry, root: &Path) -> Result<Program, ProgramError> {
        Program::resolve(entry, "entry", &Places { root, prepared: None }, &Passed::default())
    }

    #[test]
    fn the_root_is_put_in_everywhere() {
        let root = tempfile::tempdir().unwrap();
        let mut entry = entry("sh");
        entry.args = vec!["${PLUGIN_ROOT}/a:${PLUGIN_ROOT}".to_owned(), "$HOME".to_owned()];
        entry.env.insert("WHERE".to_owned(), "${PLUGIN_ROOT}".to_owned());
        let program = resolve(&entry, root.path()).unwrap();
        let root = root.path().to_string_lossy();
        assert!(program.path.is_absolute());
        assert_eq!(program.args, [format!("{root}/a:{root}"), "$HOME".to_owned()]);
        assert_eq!(program.env[OsStr::new("WHERE")], OsString::from(&*root));
    }

    #[test]
    fn a_missing_command_names_the_path_that_was_searched() {
        let root = tempfile::tempdir().unwrap();
        let mut entry = entry("no-such-program");
        entry.env.insert("PATH".to_owned(), "/one:/two".to_owned());
        let error = resolve(&entry, root.path()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the command `no-such-program` was not found on the PATH (/one:/two)")
        );
    }

    #[test]
    fn a_file_without_the_mode_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("run.py"), "").unwrap();
        let error = resolve(&entry("./run.py"), root.path()).unwrap_err();
        assert!(matches!(error, ProgramError::NotExecutable { .. }), "{error}");
        let error = resolve(&entry("./gone.py"), root.path()).unwrap_err();
        assert!(matches!(error, ProgramError::NotFound { .. }), "{error}");
    }

    #[test]
    fn the_prepared_directory_is_put_in_where_it_is_known() {
        let root = tempfile::tempdir().unwrap();
        let mut entry = entry("sh");
        entry.args = vec!["${PLUGIN_PREPARED}/a:${PLUGIN_ROOT}".to_owned()];
        let rooted = root.path().to_string_lossy().into_owned();
        let program = resolve(&entry, root.path()).unwrap();
        assert_eq!(program.args, [format!("${{PLUGIN_PREPARED}}/a:{rooted}")]);
        assert!(!program.env.contains_key(OsStr::new(PREPARED_VARIABLE)));
        let places = Places { root: root.path(), prepared: Some(Path::new("/made")) };
        let program = Program::resolve(&entry, "entry", &places, &Passed::default()).unwrap();
        assert_eq!(program.args, [format!("/made/a:{rooted}")]);
        assert_eq!(program.env[OsStr::new(PREPARED_VARIABLE)], "/made");
    }

    #[test]
    fn only_listed_variables_are_passed() {
        let host = || {
            ["PATH", "LC_ALL", "XDG_RUNTIME_DIR", "API_KEY", "OTHER"]
                .into_iter()
                .map(|name| (OsString::from(name), OsString::from("x")))
        };
        let names = |passed: &Passed| environment(host(), passed).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&Passed::default()), ["LC_ALL", "PATH", "XDG_RUNTIME_DIR"]);
        let named = Passed { names: vec!["API_KEY".to_owned()], all: false };
        assert_eq!(names(&named), ["API_KEY", "LC_ALL", "PATH", "XDG_RUNTIME_DIR"]);
        assert_eq!(names(&Passed { names: Vec::new(), all: true }).len(), 5);
    }
}
