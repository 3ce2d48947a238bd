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
    let listed = listed.map(|(list, (index, name), key)| (format!("/{list}/{index}/{key}"), name));
    let services = declared.services.keys().map(|key| ("/services".to_owned(), key));
    let unfit = |name: &str| {
        let length = name.chars().count();
        !(1..=MAX_NAME).contains(&length)
            || name.chars().any(|char| char.is_whitespace() || char.is_control())
    };
    let (pointer, name) = listed.chain(services).find(|(_, name)| unfit(name))?;
    Some(HandshakeError::Name { pointer, name: name.chars().take(MAX_NAME).collect() })
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
