//! `service/call`: a plugin's service as the kernel and other plugins reach it, and the account of calls between
//! plugins that are open.
//!
//! A call has a deadline that stands still only while the plugin that was called waits for a person, or a debugger is
//! attached to it. Rings of calls
//! are not looked for: they end at the deadline, and the error lists what was open then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bingo_plugin_sdk::calls::ServiceCallParams;
use bingo_plugin_sdk::calls::methods::CallService;
use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::handshake::ServiceSpec;
use bingo_plugin_sdk::ids::PluginName;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ports::{BoxFuture, CallContext, Service};
use crate::supervisor::limits::words;
use crate::supervisor::{CallError, CallFailure, Clock, Connection, Sent};

/// How many open calls an error lists.
const LISTED: usize = 20;

/// A service of a plugin; clones are the same service.
#[derive(Clone)]
pub(super) struct PluginService {
    connection: Connection,
    key: String,
    /// In alphabetical order.
    methods: BTreeSet<String>,
    open: Arc<OpenCalls>,
}

/// Why a service call failed, in words that begin with the plugin that was called.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("{owner}: the service `{key}` has no method `{method}`; it has {}", list(methods))]
    Unspoken { owner: PluginName, key: String, method: String, methods: BTreeSet<String> },
    #[error("{owner}: the service `{key}` did not answer `{method}` within {} ({sent}){open}", words(*after))]
    Late { owner: PluginName, key: String, method: String, after: Duration, sent: Sent, open: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

fn list(methods: &BTreeSet<String>) -> String {
    if methods.is_empty() {
        return "none".to_owned();
    }
    methods.iter().cloned().collect::<Vec<_>>().join(", ")
}

impl PluginService {
    pub(super) fn new(connection: Connection, key: &str, spec: &ServiceSpec, open: &Arc<OpenCalls>) -> Self {
        let methods = spec.methods.keys().cloned().collect();
        Self { connection, key: key.to_owned(), methods, open: Arc::clone(open) }
    }

    /// Calls a method for `caller`, a plugin; nobody means the host.
    pub(super) async fn ask(
        &self,
        caller: Option<&PluginName>,
        method: String,
        params: Value,
    ) -> Result<Value, ServiceError> {
        let owner = self.connection.plugin().clone();
        if !self.methods.contains(&method) {
            let (key, methods) = (self.key.clone(), self.methods.clone());
            return Err(ServiceError::Unspoken { owner, key, method, methods });
        }
        let limits = self.connection.limits();
        let (limit, ceiling) = (limits.service_call, limits.service_ceiling);
        let (clock, asking) = (self.connection.clock(), self.connection.asking());
        let _open = caller.map(|caller| self.open.enter(caller, &owner, &self.key, &method));
        let call = ServiceCallParams { key: self.key.clone(), method, params };
        let mut pending = self.connection.begin::<CallService>(&call)?;
        let after = tokio::select! {
            biased;
            response = pending.response() => return Ok(response?.result),
            after = passed(clock, limit, ceiling, asking) => after,
        };
        let CallFailure::Deadline { sent, .. } = pending.late(after).failure else {
            unreachable!("a late call failed at its deadline")
        };
        let ServiceCallParams { key, method, .. } = call;
        Err(ServiceError::Late { owner, key, method, after, sent, open: self.open.words() })
    }
}

impl Service for PluginService {
    fn owner(&self) -> &str {
        self.connection.plugin().as_str()
    }

    fn methods(&self) -> Vec<String> {
        self.methods.iter().cloned().collect()
    }

    fn call(
        &self,
        context: CallContext,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, KernelError>> {
        let service = self.clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                result = service.ask(None, method, params) => result.map_err(|error| {
                    let late = matches!(error, ServiceError::Late { .. });
                    let code = if late { ErrorCode::Timeout } else { ErrorCode::Internal };
                    KernelError::new(code, error.to_string())
                }),
                () = context.cancel.cancelled() => Err(super::cancelled(&service.connection)),
            }
        })
    }
}

/// Waits until `limit` has passed, the time not counted during which somebody is asked, or `ceiling` has at all. Returns
/// the figure that was reached.
async fn passed(
    clock: &Clock,
    limit: Duration,
    ceiling: Duration,
    asking: watch::Receiver<usize>,
) -> Duration {
    let began = Instant::now();
    tokio::select! {
        biased;
        () = clock.passed(|| began, ceiling) => ceiling,
        () = passed_unasked(clock, limit, asking) => limit,
    }
}

async fn passed_unasked(clock: &Clock, mut left: Duration, mut asking: watch::Receiver<usize>) {
    loop {
        let _ = asking.wait_for(|asked| *asked == 0).await;
        let counted = Instant::now();
        tokio::select! {
            biased;
            () = clock.passed(|| counted, left) => return,
            // The sender is gone only with the connection, and then the call is answered.
            Ok(_) = asking.wait_for(|asked| *asked > 0) => {}
        }
        left = left.saturating_sub(clock.since(counted).elapsed());
    }
}

/// The service calls between plugins of a host that are open.
#[derive(Default)]
pub(super) struct OpenCalls(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    calls: BTreeMap<u64, OpenCall>,
}

struct OpenCall {
    caller: PluginName,
    owner: PluginName,
    key: String,
    method: String,
    since: Instant,
}

/// An entry; removed when dropped.
struct Entry {
    open: Arc<OpenCalls>,
    number: u64,
}

impl OpenCalls {
    fn enter(self: &Arc<Self>, caller: &PluginName, owner: &PluginName, key: &str, method: &str) -> Entry {
        let call = OpenCall {
            caller: caller.clone(),
            owner: owner.clone(),
            key: key.to_owned(),
            method: method.to_owned(),
            since: Instant::now(),
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.last += 1;
        let number = state.last;
        state.calls.insert(number, call);
        Entry { open: Arc::clone(self), number }
    }

    /// Returns what is open as it stands behind a reason, the oldest first; nothing when nothing is.
    fn words(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for OpenCall { caller, owner, key, method, since } in state.calls.values().take(LISTED) {
            let before = if text.is_empty() { "; service calls open between plugins: " } else { ", " };
            let seconds = since.elapsed().as_secs();
            // Writing into a string does not fail.
            let _ = write!(text, "{before}{caller} -> {owner} `{key}` `{method}` (for {seconds} s)");
        }
        if let more @ 1.. = state.calls.len().saturating_sub(LISTED) {
            let _ = write!(text, ", and {more} more");
        }
        text
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.open.0.lock().unwrap_or_else(PoisonError::into_inner).calls.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::testing::Heard;

    #[tokio::test(start_paused = true)]
    async fn the_clock_stands_still_while_a_person_is_asked() {
        let (limit, ceiling) = (Duration::from_secs(30), Duration::from_secs(600));
        let asking = watch::Sender::new(0usize);
        let clock = Arc::new(Clock::new(PluginName::parse("p").unwrap(), Arc::new(Heard::default())));
        let (began, asked) = (Instant::now(), asking.subscribe());
        let wait = tokio::spawn({
            let clock = Arc::clone(&clock);
            async move { passed(&clock, limit, ceiling, asked).await }
        });
        tokio::time::sleep(Duration::from_secs(20)).await;
        asking.send_replace(1);
        tokio::time::sleep(Duration::from_secs(100)).await;
        asking.send_replace(0);
        assert_eq!(wait.await.unwrap(), limit);
        assert_eq!(began.elapsed().as_secs(), 130);

        let began = Instant::now();
        asking.send_replace(1);
        assert_eq!(passed(&clock, limit, ceiling, asking.subscribe()).await, ceiling);
        assert_eq!(began.elapsed().as_secs(), 600);
    }

    #[test]
    fn open_calls_are_listed_until_they_end() {
        let open = Arc::new(OpenCalls::default());
        let name = |name: &str| PluginName::parse(name).unwrap();
        let first = open.enter(&name("a"), &name("b"), "k", "m");
        let second = open.enter(&name("b"), &name("a"), "j", "n");
        let listed =
            "; service calls open between plugins: a -> b `k` `m` (for 0 s), b -> a `j` `n` (for 0 s)";
        assert_eq!(open.words(), listed);
        drop((first, second));
        assert_eq!(open.words(), "");
    }
}
