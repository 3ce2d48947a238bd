//! What each method of the RPC protocol does, and a connection's open sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::jsonrpc::{Message, Method, RequestId, RpcError, code};
use bingo_plugin_sdk::rpc::{
    self, Capabilities, ClientIdentity, Empty, InitializeParams, InitializeResult, ListResult, OpenResult,
    methods,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinHandle};

use super::dispatch::Job;
use super::{Output, kernel_error};
use crate::kernel::{FeedStream, Frames, GivenAnswer, Kernel, Published};
use crate::schema::{self, Part};

/// The most bytes of a reply: the longest line to a client (design: limits).
const MAX_REPLY: usize = 64 * 1024 * 1024;

/// One client.
pub(super) struct Connection {
    kernel: Kernel,
    output: Output,
    client: OnceLock<ClientIdentity>,
    shut_down: AtomicBool,
    forwarders: Mutex<Forwarders>,
}

/// Tasks that write frames to the client; each ends with its session, its replacement, or the connection.
#[derive(Default)]
struct Forwarders {
    /// By open session.
    sessions: BTreeMap<SessionId, Forwarder>,
    /// How many attachments were announced.
    announced: u64,
    gateway: Option<AbortHandle>,
}

struct Forwarder {
    /// Absent until the reply that announced it is sent.
    task: Option<JoinHandle<()>>,
    /// Which attachment it is for.
    number: u64,
    /// Whether frames of the session's children come along.
    is_tree: bool,
}

impl Forwarders {
    /// Opens a session, in place of an earlier attachment; returns the number of this one.
    fn announce(&mut self, session: &SessionId, is_tree: bool) -> u64 {
        self.announced += 1;
        let forwarder = Forwarder { task: None, number: self.announced, is_tree };
        if let Some(Forwarder { task: Some(task), .. }) = self.sessions.insert(session.clone(), forwarder) {
            task.abort();
        }
        self.announced
    }

    /// Starts the task of an attachment, unless the session was closed or attached to anew meanwhile: requests run beside
    /// each other, and a later one may be answered before this one goes on behind its reply.
    fn start(&mut self, session: &SessionId, number: u64, task: impl FnOnce() -> JoinHandle<()>) {
        if let Some(place) = self.sessions.get_mut(session).filter(|place| place.number == number) {
            place.task = Some(task());
        }
    }
}

/// What a client has open.
enum Attached {
    Session,
    /// A session with its children.
    Tree,
}

/// What follows a reply: frames never overtake the answer that announces them.
enum Follow {
    Nothing,
    Frames(FollowedFrames),
    Gateway(FeedStream),
}

/// An attachment.
struct FollowedFrames {
    session: SessionId,
    replay: Vec<Arc<Published>>,
    stream: Frames,
}

type Answered = Result<(Value, Follow), RpcError>;

impl Connection {
    pub(super) fn new(kernel: Kernel, output: Output) -> Self {
        let (client, shut_down, forwarders) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        Self { kernel, output, client, shut_down, forwarders }
    }

    /// Returns whether the client said who it is.
    pub(super) fn is_initialized(&self) -> bool {
        self.client.get().is_some()
    }

    /// Returns whether the client asked for the end.
    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Runs a job to its reply.
    pub(super) async fn run(self: Arc<Self>, job: Job) {
        let answered = self.answer(&job).await;
        let (outcome, follow) = match answered {
            Ok((result, follow)) => (Ok(result), follow),
            Err(error) => (Err(error), Follow::Nothing),
        };
        if let Ok(result) = &outcome
            && let Err(fault) = schema::rpc().check(&job.method, Part::Result, result)
        {
            tracing::error!(%fault, "a reply breaks the schema");
        }
        match follow {
            Follow::Nothing => self.reply(Some(job.id), outcome).await,
            Follow::Frames(followed) => {
                self.silence(&followed.session).await;
                // Open from the reply on: the client's next request may run before the frames are followed.
                let number = self.lock().announce(&followed.session, followed.stream.is_tree());
                self.reply(Some(job.id), outcome).await;
                self.follow(number, followed);
            }
            Follow::Gateway(feed) => {
                self.reply(Some(job.id), outcome).await;
                self.follow_gateway(feed);
            }
        }
    }

    /// Writes a response; the id is null when none could be read.
    pub(super) async fn reply(&self, id: Option<RequestId>, outcome: Result<Value, RpcError>) {
        let line = match (id, outcome) {
            (Some(id), outcome) => {
                let line = Message::Response { id: id.clone(), outcome }.to_line();
                if line.len() <= MAX_REPLY { line } else { too_large(id, line.len()) }
            }
            (None, Ok(result)) => json!({"jsonrpc": "2.0", "id": null, "result": result}).to_string(),
            (None, Err(error)) => json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string(),
        };
        // A client that left needs no answer.
        drop(self.output.send(line).await);
    }

    /// Stops writing frames.
    pub(super) fn detach_all(&self) {
        let mut forwarders = self.lock();
        let sessions = std::mem::take(&mut forwarders.sessions).into_values();
        sessions.filter_map(|forwarder| forwarder.task).for_each(|task| task.abort());
        forwarders.gateway.take().into_iter().for_each(|task| task.abort());
    }

    async fn answer(&self, job: &Job) -> Answered {
        let params = job.params.clone();
        match job.method.as_str() {
            "initialize" => self.initialize(read::<methods::Initialize>(params)?),
            "shutdown" => {
                self.shut_down.store(true, Ordering::Release);
                done()
            }
            "session/list" => {
                let filter = read::<methods::ListSessions>(params)?.filter;
                let sessions = self.kernel.list(filter).await.map_err(|error| kernel_error(&error))?;
                value(&ListResult { sessions })
            }
            "session/open" => self.open(read::<methods::OpenSession>(params)?).await,
            "session/close" => self.close(&read::<methods::CloseSession>(params)?.session).await,
            "session/delete" => {
                let session = read::<methods::DeleteSession>(params)?.session;
                self.kernel.delete(&session).await.map_err(|error| kernel_error(&error))?;
                done()
            }
            "session/deliver" | "session/extend" | "session/signal" => self.put(&job.method, params).await,
            "session/history" => {
                let read = read::<methods::ReadHistory>(params)?;
                self.require_open(&read.session)?;
                let chunk = self.kernel.history(&read.session, read.page).await;
                value(&chunk.map_err(|error| kernel_error(&error))?)
            }
            "session/events" => self.resume(read::<methods::ResumeEvents>(params)?).await,
            "session/submit" | "session/interrupt" | "session/answer" => {
                self.write(&job.method, params).await
            }
            "catalog/read" => value(&self.kernel.catalog(read::<methods::ReadCatalog>(params)?.kind).await),
            "gateway/subscribe" => Ok((json!({}), Follow::Gateway(self.kernel.subscribe_gateway()))),
            other => Err(RpcError::new(code::METHOD_NOT_FOUND, format!("there is no method `{other}`"))),
        }
    }

    fn initialize(&self, params: InitializeParams) -> Answered {
        if params.protocol != rpc::PROTOCOL {
            let message = format!(
                "the client speaks protocol {}, this server speaks {}",
                params.protocol,
                rpc::PROTOCOL
            );
            return Err(kernel_error(&KernelError::new(ErrorCode::InvalidInput, message)));
        }
        if self.client.set(params.client).is_err() {
            return Err(RpcError::new(code::INVALID_REQUEST, "`initialize` was sent before"));
        }
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        value(&InitializeResult {
            protocol: rpc::PROTOCOL,
            name: "bingo".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: Capabilities {
                methods: owned(rpc::METHODS),
                notifications: owned(rpc::NOTIFICATIONS),
            },
        })
    }

    async fn open(&self, params: rpc::OpenParams) -> Answered {
        let opened = self.kernel.open(params.selector, params.options).await;
        let attachment = opened.map_err(|error| kernel_error(&error))?;
        let session = attachment.session.clone();
        let result = json!(OpenResult { session: attachment.session, snapshot: attachment.snapshot });
        Ok((
            result,
            Follow::Frames(FollowedFrames { session, replay: Vec::new(), stream: attachment.stream }),
        ))
    }

    async fn resume(&self, params: rpc::EventsParams) -> Answered {
        let resumed = match self.require_open(&params.session)? {
            Attached::Tree => self.kernel.resume_tree(&params.session, params.since).await,
            Attached::Session => self.kernel.resume_events(&params.session, params.since).await,
        };
        let resumption = resumed.map_err(|error| kernel_error(&error))?;
        let (replay, stream) = (resumption.frames, resumption.stream);
        Ok((json!({}), Follow::Frames(FollowedFrames { session: params.session, replay, stream })))
    }

    async fn close(&self, session: &SessionId) -> Answered {
        self.kernel.require_live(session).map_err(|error| kernel_error(&error))?;
        // At once, so that nothing that is attached meanwhile goes with it.
        let closed = self.lock().sessions.remove(session);
        ended(closed.and_then(|forwarder| forwarder.task)).await;
        done()
    }

    /// Ends what is sent of a session, so that no frame of an earlier attachment comes behind the next reply.
    async fn silence(&self, session: &SessionId) {
        let replaced = self.lock().sessions.get_mut(session).and_then(|forwarder| forwarder.task.take());
        ended(replaced).await;
    }

    /// Writes of a client that has the session open.
    async fn write(&self, method: &str, params: Value) -> Answered {
        let written = match method {
            "session/submit" => {
                let submit = read::<methods::Submit>(params)?;
                self.require_open(&submit.session)?;
                self.kernel.submit(&submit.session, submit.intent, submit.input).await
            }
            "session/interrupt" => {
                let interrupt = read::<methods::Interrupt>(params)?;
                self.require_open(&interrupt.session)?;
                self.kernel.interrupt(&interrupt.session, interrupt.intent, interrupt.scope).await
            }
            _ => {
                let params = read::<methods::Answer>(params)?;
                let attached = self.require_open(&params.session)?;
                let client = self.client.get().cloned().unwrap_or_else(unknown_client);
                let rpc::AnswerParams { session, intent, interaction, answer, activation } = params;
                let given = GivenAnswer { intent, interaction, answer, activation, client };
                match attached {
                    Attached::Tree => self.kernel.answer_in_tree(&session, given).await,
                    Attached::Session => self.kernel.answer(&session, given).await,
                }
            }
        };
        written.map_err(|error| kernel_error(&error))?;
        done()
    }

    /// Host verbs: the session need not be open here, nor live.
    async fn put(&self, method: &str, params: Value) -> Answered {
        let put = match method {
            "session/deliver" => {
                let rpc::DeliverParams { session, intent, input, delivery } =
                    read::<methods::Deliver>(params)?;
                self.kernel.deliver(&session, intent, input, delivery).await
            }
            "session/extend" => {
                let rpc::ExtendParams { session, plugin, kind, payload } = read::<methods::Extend>(params)?;
                self.kernel.extend(&session, plugin, kind, payload).await
            }
            _ => {
                let rpc::SignalParams { session, plugin, kind, payload } = read::<methods::Signal>(params)?;
                self.kernel.signal(&session, plugin, kind, payload).await
            }
        };
        put.map_err(|error| kernel_error(&error))?;
        done()
    }

    fn require_open(&self, session: &SessionId) -> Result<Attached, RpcError> {
        if let Some(forwarder) = self.lock().sessions.get(session) {
            return Ok(if forwarder.is_tree { Attached::Tree } else { Attached::Session });
        }
        let message = format!("session {session} is not open on this connection");
        Err(kernel_error(&KernelError::new(ErrorCode::SessionNotFound, message)))
    }

    fn follow(&self, number: u64, followed: FollowedFrames) {
        let session = followed.session.clone();
        let task = || tokio::spawn(forward(self.output.clone(), followed));
        self.lock().start(&session, number, task);
    }

    fn follow_gateway(&self, feed: FeedStream) {
        let mut forwarders = self.lock();
        if forwarders.gateway.is_none() {
            let feed = forward_gateway(self.output.clone(), feed);
            forwarders.gateway = Some(tokio::spawn(feed).abort_handle());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Forwarders> {
        self.forwarders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.detach_all();
    }
}

/// Returns the answer in place of one that no client need take.
fn too_large(id: RequestId, length: usize) -> String {
    let text = format!("the reply has {length} bytes, at most {MAX_REPLY} are sent; ask for less");
    Message::Response { id, outcome: Err(RpcError::new(code::INTERNAL_ERROR, text)) }.to_line()
}

/// Ends a task. It may be in the middle of sending: it is waited for.
async fn ended(task: Option<JoinHandle<()>>) {
    if let Some(task) = task {
        task.abort();
        // Its end is what was wanted, whichever way it came.
        drop(task.await);
    }
}

async fn forward(output: Output, followed: FollowedFrames) {
    let FollowedFrames { session: root, replay, mut stream } = followed;
    for published in replay {
        if output.send(event_line(&root, &published)).await.is_err() {
            return;
        }
    }
    while let Some(published) = stream.next().await {
        if output.send(event_line(&root, &published)).await.is_err() {
            return;
        }
    }
}

async fn forward_gateway(output: Output, mut feed: FeedStream) {
    loop {
        let params = json!(feed.next().await);
        if let Err(fault) = schema::rpc().check("gateway/event", Part::Params, &params) {
            tracing::error!(%fault, "a gateway event breaks the schema");
        }
        let line = Message::Notification { method: "gateway/event".to_owned(), params }.to_line();
        if output.send(line).await.is_err() {
            return;
        }
    }
}

/// Returns the line of a frame; that of a child says through which tree it came.
fn event_line(root: &SessionId, published: &Published) -> String {
    let frame = published.json();
    if published.frame.session == *root {
        return format!(r#"{{"jsonrpc":"2.0","method":"event","params":{frame}}}"#);
    }
    // A frame is serialised once for all who get it, so the root is put into its text, before its first member.
    format!(r#"{{"jsonrpc":"2.0","method":"event","params":{{"root":{},{}}}"#, json!(root), &frame[1..])
}

/// Reads params that passed the schema.
fn read<M: Method>(params: Value) -> Result<M::Params, RpcError>
where
    M::Params: DeserializeOwned,
{
    serde_json::from_value(params).map_err(|error| RpcError::new(code::INVALID_PARAMS, error.to_string()))
}

fn value(result: &impl serde::Serialize) -> Answered {
    let result = serde_json::to_value(result)
        .map_err(|error| RpcError::new(code::INTERNAL_ERROR, error.to_string()))?;
    Ok((result, Follow::Nothing))
}

fn done() -> Answered {
    value(&Empty {})
}

fn unknown_client() -> ClientIdentity {
    ClientIdentity { name: "unknown".to_owned(), surface: "rpc".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forever() -> JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    #[tokio::test]
    async fn an_attachment_that_is_late_behind_its_reply_does_not_displace_a_later_one() {
        let (mut forwarders, session) = (Forwarders::default(), SessionId::from("ses_1"));
        let first = forwarders.announce(&session, false);
        let second = forwarders.announce(&session, true);
        forwarders.start(&session, second, forever);
        forwarders.start(&session, first, || unreachable!("the session was attached to anew"));
        let place = &forwarders.sessions[&session];
        assert!(place.is_tree && place.task.as_ref().is_some_and(|task| !task.is_finished()));
    }

    #[tokio::test]
    async fn what_was_closed_before_it_began_does_not_begin() {
        let (mut forwarders, session) = (Forwarders::default(), SessionId::from("ses_1"));
        let closed = forwarders.announce(&session, false);
        forwarders.sessions.remove(&session);
        forwarders.start(&session, closed, || unreachable!("the session was closed"));
        let open = forwarders.announce(&session, false);
        forwarders.start(&session, closed, || unreachable!("the session was attached to anew"));
        forwarders.start(&session, open, forever);
        let task = forwarders.sessions[&session].task.as_ref().unwrap().abort_handle();
        forwarders.announce(&session, false);
        tokio::task::yield_now().await;
        assert!(task.is_finished(), "one attachment of a session at a time");
    }
}
