//! The handshake: the first call to every process, which says what the plugin offers.
//!
//! Its deadline moves with each sign of life, because a first start may compile or download; an upper limit holds.

use std::time::Duration;

use bingo_plugin_sdk::calls::methods::Initialize;
use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult};
use tokio::time::Instant;

use super::connection::{CallFailure, Connection};
use super::limits::words;
use super::log::Tail;
use crate::printable;

/// Why a process was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it did not answer `initialize` and wrote nothing to stderr for {}", words(*after))]
    Silent { after: Duration },
    #[error("it did not answer `initialize` within {}, the limit of a first start", words(*after))]
    Slow { after: Duration },
    #[error("{failure}")]
    Call { failure: CallFailure },
    #[error(
        "the handshake declares the name {name:?} at {pointer}; a name has 1 to {MAX_NAME} characters and none of them is white space or a control character"
    )]
    Name { pointer: String, name: String },
}

/// The most characters of a name that a plugin declares.
const MAX_NAME: usize = 128;

/// Introduces the host and returns what the plugin declares.
pub(super) async fn shake(
    connection: &Connection,
    params: &InitializeParams,
    tail: &Tail,
) -> Result<InitializeResult, HandshakeError> {
    let limits = connection.limits();
    let started = Instant::now();
    let mut pending = connection.begin::<Initialize>(params).map_err(HandshakeError::from)?;
    let clock = connection.clock();
    tokio::select! {
        biased;
        result = pending.response() => {
            let declared = result?;
            unfit_name(&declared).map_or(Ok(declared), Err)
        }
        () = clock.passed(|| started, limits.first_start) => {
            Err(HandshakeError::Slow { after: limits.first_start })
        }
        () = clock.passed(|| tail.touched(), limits.handshake) => {
            Err(HandshakeError::Silent { after: limits.handshake })
        }
    }
}

/// Returns the first declared name that cannot be used: names stand in lists, on command lines and in requests to models.
pub(super) fn unfit_name(declared: &InitializeResult) -> Option<HandshakeError> {
    let listed = own_names(declared).chain(inner_names(declared));
    let (pointer, name) = listed.chain(service_names(declared)).find(|(_, name)| is_unfit(name))?;
    Some(HandshakeError::Name { pointer, name: name.chars().take(MAX_NAME).collect() })
}

/// Returns what each offer calls itself, with where that stands.
fn own_names(declared: &InitializeResult) -> impl Iterator<Item = (String, &str)> {
    let tools = declared.tools.iter().map(|tool| &tool.name).enumerate().map(|at| ("tools", at, "name"));
    let commands =
        declared.commands.iter().map(|command| &command.name).enumerate().map(|at| ("commands", at, "name"));
    let hooks = declared.hooks.iter().map(|hook| &hook.id).enumerate().map(|at| ("hooks", at, "id"));
    let contributors =
        declared.contributors.iter().map(|spec| &spec.id).enumerate().map(|at| ("contributors", at, "id"));
    let compactors =
        declared.compactors.iter().map(|spec| &spec.id).enumerate().map(|at| ("compactors", at, "id"));
    let providers =
        declared.providers.iter().map(|spec| &spec.id).enumerate().map(|at| ("providers", at, "id"));
    let listed = tools.chain(commands).chain(hooks).chain(contributors).chain(compactors).chain(providers);
    listed.map(|(list, (index, name), key)| (format!("/{list}/{index}/{key}"), name.as_str()))
}

/// Returns the further names of commands, and the models of providers.
fn inner_names(declared: &InitializeResult) -> impl Iterator<Item = (String, &str)> {
    let aliases = declared.commands.iter().enumerate().flat_map(|(index, command)| {
        let aliases = command.aliases.iter().enumerate();
        aliases.map(move |(at, alias)| (format!("/commands/{index}/aliases/{at}"), alias.as_str()))
    });
    let models = declared.providers.iter().enumerate().flat_map(|(index, provider)| {
        let models = provider.models.iter().enumerate();
        models.map(move |(at, model)| (format!("/providers/{index}/models/{at}/id"), model.id.as_str()))
    });
    aliases.chain(models)
}

/// Returns the keys of services and their methods. These are keys of objects, so the object is pointed at: the keys
/// above a method were found fit, and it comes after them.
fn service_names(declared: &InitializeResult) -> impl Iterator<Item = (String, &str)> {
    let keys = declared.services.keys().map(|key| ("/services".to_owned(), key.as_str()));
    let methods = declared.services.iter().flat_map(|(key, service)| {
        let pointer = format!("/services/{}/methods", key.replace('~', "~0").replace('/', "~1"));
        service.methods.keys().map(move |method| (pointer.clone(), method.as_str()))
    });
    keys.chain(methods)
}

fn is_unfit(name: &str) -> bool {
    let length = name.chars().count();
    !(1..=MAX_NAME).contains(&length)
        || name.chars().any(|char| char.is_whitespace() || printable::is_obeyed(char))
}

impl From<super::connection::CallError> for HandshakeError {
    fn from(error: super::connection::CallError) -> Self {
        Self::Call { failure: error.failure }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::limits::Limits;
    use super::super::testing::{self, Debuggee, Heard};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn neither_limit_of_a_handshake_passes_while_a_debugger_holds_the_process() {
        let wire = testing::wire("p", Limits::default(), Arc::new(Heard::default()));
        let (connection, tail) = (wire.connection, Tail::new());
        let debuggee = Debuggee::of(&connection);
        debuggee.attach();
        let params = serde_json::from_value(json!({
            "protocol": 5, "pluginRoot": "/", "env": {"home": "/", "configDir": "/", "dataDir": "/"},
        }))
        .unwrap();
        let shaking = tokio::spawn(async move { shake(&connection, &params, &tail).await });
        tokio::time::sleep(Duration::from_secs(1000)).await;
        debuggee.detach();
        let begun = Instant::now();
        assert!(matches!(shaking.await.unwrap(), Err(HandshakeError::Silent { .. })));
        assert!((9..=11).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}
