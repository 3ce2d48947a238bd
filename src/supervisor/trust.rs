//! Whether a plugin may be started: one that comes with a project only when a person trusted exactly what would run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bingo_plugin_sdk::manifest::Entry;

use super::discovery::{Origin, PluginSource};
use super::generation::StartError;
use super::process::{self, Passed, Places, Program, ProgramError};
use crate::trust::{Builder, Fingerprint, FingerprintError, Subject, TrustStore};

/// Keeps Python from writing `__pycache__` into a plugin's folder, which would change what was trusted. What stands
/// there counts like every file: Python runs it.
const WRITE_NO_BYTECODE: (&str, &str) = ("PYTHONDONTWRITEBYTECODE", "1");

/// What a person is shown before they trust a plugin, and what is then held against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// The command with its arguments, as it is run.
    pub command: String,
    /// The command of the `prepare` step, which is run before.
    pub prepare: Option<String>,
    pub fingerprint: Fingerprint,
}

/// Why a plugin cannot be examined.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum ExamineError {
    Program(ProgramError),
    Fingerprint(FingerprintError),
}

impl Examined {
    /// Returns what is trusted when this is.
    pub fn subject<'a>(&'a self, source: &'a PluginSource) -> Subject<'a> {
        Subject::Plugin { name: source.name.as_str(), root: &source.root, command: &self.command }
    }
}

/// Looks through a plugin as it would be started now.
///
/// # Errors
/// When its command is not found, or its files cannot be checked.
pub fn examine(source: &PluginSource) -> Result<Examined, ExamineError> {
    let runs = Runs::of(source).map_err(ExamineError::Program)?;
    runs.examine(source).map_err(ExamineError::Fingerprint)
}

/// What a plugin runs, as far as that is known before its `prepare` step was run.
struct Runs {
    entry: Program,
    prepare: Option<Program>,
}

impl Runs {
    fn of(source: &PluginSource) -> Result<Self, ProgramError> {
        let places = Places { root: &source.root, prepared: None };
        // Which variables are passed changes neither the PATH nor the command.
        let resolve = |entry, key| Program::resolve(entry, key, &places, &Passed::default());
        let entry = &source.manifest.entry;
        let entry = if is_made(entry) {
            let (args, env) = (entry.args.iter().map(|arg| places.put_in(arg)).collect(), BTreeMap::new());
            Program { path: places.put_in(&entry.command).into(), args, env, directory: source.root.clone() }
        } else {
            resolve(entry, "entry")?
        };
        let prepare = source.manifest.prepare.as_ref();
        let prepare = prepare.map(|prepare| resolve(&prepare.program, "prepare")).transpose()?;
        Ok(Self { entry, prepare })
    }

    fn examine(&self, source: &PluginSource) -> Result<Examined, FingerprintError> {
        let mut builder = Builder::new("plugin");
        builder.folder(&source.root)?;
        // The manifest was read before its file was hashed, so what is taken from it counts by itself.
        add_run(&mut builder, source, &source.manifest.entry, &self.entry)?;
        if let (Some(prepare), Some(program)) = (&source.manifest.prepare, &self.prepare) {
            builder.field(b"prepare");
            add_run(&mut builder, source, &prepare.program, program)?;
        }
        let (command, prepare) = (command_line(&self.entry), self.prepare.as_ref().map(command_line));
        Ok(Examined { command, prepare, fingerprint: builder.finish() })
    }
}

/// Returns whether a command is only there once the `prepare` step was run. What that makes is as trusted as the step;
/// a way out of its directory leads to what is not.
fn is_made(entry: &Entry) -> bool {
    let below = entry.command.strip_prefix(process::PREPARED).and_then(|below| below.strip_prefix('/'));
    below.is_some_and(|below| below.split('/').all(|part| part != ".."))
}

/// Lets a program through when its plugin is trusted, changed so that a run leaves the plugin as it was trusted.
///
/// The file of what is trusted is read anew: a person may have trusted or untrusted it since the host started.
pub(super) async fn admit(
    data_dir: &Path,
    source: &PluginSource,
    program: Program,
) -> Result<Program, StartError> {
    check(data_dir, source).await.map(|()| steady(source, program))
}

/// Returns a program changed so that a run leaves its plugin as it is, where its files were hashed.
pub(super) fn steady(source: &PluginSource, mut program: Program) -> Program {
    if source.origin == Origin::Project || source.manifest.prepare.is_some() {
        let (name, value) = WRITE_NO_BYTECODE;
        program.env.insert(name.into(), value.into());
    }
    program
}

/// Checks that a plugin may run what it runs, its `prepare` step too.
async fn check(data_dir: &Path, source: &PluginSource) -> Result<(), StartError> {
    if source.origin != Origin::Project {
        return Ok(());
    }
    let runs = Runs::of(source)?;
    let (data_dir, source, root) = (data_dir.to_owned(), source.clone(), source.root.clone());
    // Up to as many bytes as a plugin may have are read here.
    let checked = tokio::task::spawn_blocking(move || {
        let examined = runs.examine(&source)?;
        TrustStore::open(&data_dir).check(&examined.subject(&source), &examined.fingerprint)
    });
    let checked = checked.await.unwrap_or_else(|error| {
        Err(FingerprintError::Io { path: root, source: std::io::Error::other(error) }.into())
    });
    Ok(checked?)
}

fn add_run(
    builder: &mut Builder,
    source: &PluginSource,
    entry: &Entry,
    program: &Program,
) -> Result<(), FingerprintError> {
    builder.field(program.path.as_os_str().as_bytes());
    builder.fields(program.args.iter().map(String::as_bytes));
    let variables = entry.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    builder.fields(variables.collect::<Vec<_>>().into_iter());
    // What stands on the PATH is the person's own. A program that the manifest points at need not be.
    if is_made(entry) {
        builder.field(b"made");
    } else if points_at_command(entry, program) {
        builder.field(b"pointed at");
        builder.file(&source.root, &program.path)?;
    } else {
        builder.field(b"on the path");
    }
    Ok(())
}

/// Returns whether the manifest says where its program is, rather than leaving that to the person's PATH.
fn points_at_command(entry: &Entry, program: &Program) -> bool {
    // A name that is looked up is the last part of what was found.
    let looked_up = program.path.file_name() == Some(OsStr::new(&entry.command));
    !looked_up || entry.env.contains_key("PATH")
}

pub(super) fn command_line(program: &Program) -> String {
    let path = program.path.to_string_lossy();
    std::iter::once(&*path).chain(program.args.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::discovery;
    use super::*;
    use crate::trust::Untrusted;

    struct Project(tempfile::TempDir);

    impl Project {
        fn new(entry: &str) -> Self {
            let project = Self(tempfile::tempdir().unwrap());
            project.write("plugins/a/main.py", "import one");
            project.write("plugins/a/one.py", "x = 1");
            project.program("plugins/a/run");
            project.program("tools/run");
            project.manifest(entry);
            project
        }

        fn manifest(&self, entry: &str) {
            let manifest = format!(r#"{{"name": "a", "version": "1", "entry": {entry}}}"#);
            self.write("plugins/a/plugin.json", &manifest);
        }

        fn write(&self, name: &str, content: &str) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            path
        }

        fn program(&self, name: &str) {
            use std::os::unix::fs::PermissionsExt;
            let path = self.write(name, "#!/bin/sh\n");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn source(&self, origin: Origin) -> PluginSource {
            discovery::load(&self.0.path().join("plugins/a"), origin).unwrap()
        }

        fn admitted(&self, source: &PluginSource) -> Result<Program, StartError> {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let program = Program::resolve(
                &source.manifest.entry,
                "entry",
                &Places { root: &source.root, prepared: None },
                &Passed::default(),
            )
            .unwrap();
            runtime.block_on(admit(&self.0.path().join("data"), source, program))
        }

        fn trust(&self) {
            let source = self.source(Origin::Project);
            let examined = examine(&source).unwrap();
            let mut store = TrustStore::open(&self.0.path().join("data"));
            store.trust(&examined.subject(&source), &examined.fingerprint).unwrap();
        }
    }

    #[test]
    fn only_a_projects_plugin_needs_trust() {
        let project = Project::new(r#"{"command": "sh"}"#);
        for origin in [Origin::Bundled, Origin::Named, Origin::User] {
            let source = project.source(origin);
            let program = project.admitted(&source).unwrap();
            assert!(!program.env.contains_key(OsStr::new(WRITE_NO_BYTECODE.0)), "nothing is changed for it");
        }
        let source = project.source(Origin::Project);
        assert!(matches!(project.admitted(&source), Err(StartError::Untrusted(Untrusted::Never { .. }))));
        project.trust();
        let program = project.admitted(&source).unwrap();
        assert_eq!(program.env[OsStr::new(WRITE_NO_BYTECODE.0)], "1");
        project.write("plugins/a/one.py", "x = 2");
        assert!(matches!(project.admitted(&source), Err(StartError::Untrusted(Untrusted::Changed { .. }))));
    }

    #[test]
    fn a_manifest_that_was_read_before_counts_as_it_was_read() {
        let trusted = r#"{"command": "sh", "args": ["main"]}"#;
        for other in [
            r#"{"command": "sh", "args": ["other"]}"#,
            r#"{"command": "sh", "args": ["main"], "env": {"LD_PRELOAD": "x"}}"#,
            r#"{"command": "env", "args": ["main"]}"#,
        ] {
            let project = Project::new(other);
            let read = project.source(Origin::Project);
            project.manifest(trusted);
            project.trust();
            assert!(project.admitted(&project.source(Origin::Project)).is_ok());
            assert!(project.admitted(&read).is_err(), "{other}");
        }
    }

    #[test]
    fn a_program_outside_that_the_manifest_points_at_counts() {
        for (entry, changed) in [
            (r#"{"command": "../../tools/run"}"#, true),
            (r#"{"command": "${PLUGIN_ROOT}/../../tools/run"}"#, true),
            (r#"{"command": "run", "env": {"PATH": "../../tools"}}"#, true),
            (r#"{"command": "./run"}"#, false),
            (r#"{"command": "sh"}"#, false),
        ] {
            let project = Project::new(entry);
            project.trust();
            project.write("tools/run", "#!/bin/sh\nother\n");
            assert_eq!(project.admitted(&project.source(Origin::Project)).is_err(), changed, "{entry}");
        }
    }

    /// A project whose plugin has what it runs made by this step.
    fn made(prepare: &str) -> Project {
        let project = Project::new(r#"{"command": "sh"}"#);
        let entry = r#"{"command": "${PLUGIN_PREPARED}/bin/run", "args": ["${PLUGIN_PREPARED}/x"]}"#;
        let manifest = format!(r#"{{"name": "a", "version": "1", "entry": {entry}, "prepare": {prepare}}}"#);
        project.write("plugins/a/plugin.json", &manifest);
        project
    }

    #[test]
    fn what_a_step_makes_need_not_be_there_to_be_trusted() {
        let project = made(r#"{"command": "sh", "args": ["install"]}"#);
        let source = project.source(Origin::Project);
        let examined = examine(&source).unwrap();
        assert_eq!(examined.command, "${PLUGIN_PREPARED}/bin/run ${PLUGIN_PREPARED}/x");
        assert!(examined.prepare.unwrap().ends_with("/sh install"));
        project.trust();
        assert!(allowed(&project, &source).is_ok());
    }

    fn allowed(project: &Project, source: &PluginSource) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(&project.0.path().join("data"), source))
    }

    #[test]
    fn a_way_out_of_what_a_step_makes_is_not_trusted() {
        let project = Project::new(
            r#"{"command": "${PLUGIN_PREPARED}/../../tools/run"}, "prepare": {"command": "sh", "args": []}"#,
        );
        let error = examine(&project.source(Origin::Project)).unwrap_err().to_string();
        assert!(error.starts_with("there is no program "), "{error}");
    }

    #[test]
    fn a_step_counts_as_it_was_read() {
        for other in [
            r#"{"command": "sh", "args": ["other"]}"#,
            r#"{"command": "env", "args": ["install"]}"#,
            r#"{"command": "sh", "args": ["install"], "env": {"LD_PRELOAD": "x"}}"#,
        ] {
            let project = made(other);
            let read = project.source(Origin::Project);
            let trusted = made(r#"{"command": "sh", "args": ["install"]}"#);
            let manifest = trusted.0.path().join("plugins/a/plugin.json");
            std::fs::copy(manifest, project.0.path().join("plugins/a/plugin.json")).unwrap();
            project.trust();
            assert!(allowed(&project, &project.source(Origin::Project)).is_ok());
            assert!(allowed(&project, &read).is_err(), "{other}");
        }
    }

    #[test]
    fn a_program_of_a_step_that_the_manifest_points_at_counts() {
        let project = made(r#"{"command": "../../tools/run"}"#);
        project.trust();
        assert!(allowed(&project, &project.source(Origin::Project)).is_ok());
        project.write("tools/run", "#!/bin/sh\nother\n");
        assert!(allowed(&project, &project.source(Origin::Project)).is_err());
    }

    #[test]
    fn what_is_shown_is_what_runs() {
        let project = Project::new(r#"{"command": "./run", "args": ["${PLUGIN_ROOT}/main.py"]}"#);
        let source = project.source(Origin::Project);
        let examined = examine(&source).unwrap();
        let root = source.root.display();
        assert_eq!(examined.command, format!("{root}/./run {root}/main.py"));
        assert_eq!(examined.fingerprint.files, 4);
    }
}
