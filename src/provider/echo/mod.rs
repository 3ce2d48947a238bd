//! The echo model: a provider that needs no network and does exactly what the prompt says.
//!
//! It repeats the newest words of the conversation; lines that start with a directive make it reason, call tools,
//! wait or fail. `docs/plugin-authors.md` lists them. `script` reads a request, this file streams.

mod script;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bingo_plugin_sdk::event::Usage;
use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult, ModelInfo, ProviderSpec};
use bingo_plugin_sdk::item::ContentPart;
use bingo_plugin_sdk::jsonrpc::RpcError;
use bingo_plugin_sdk::provider::{
    FinishReason, ModelEvent, ModelRequest, ProviderError, ProviderStreamParams, UnifiedFinish,
};
use bingo_plugin_sdk::serve::{Plugin, StreamContext, serve_stdio};

use self::script::{Step, steps};

/// Failures remembered for `@fail … once`; a request is retried soon or never.
const REMEMBERED: usize = 256;

/// Bytes of one piece of a tool's input.
const INPUT_PIECE: usize = 24;

/// Serves the echo model on stdin and stdout until stdin is closed.
pub fn run() -> ExitCode {
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a runtime: {error}"))
        .and_then(|runtime| {
            runtime.block_on(serve_stdio(Echo::new())).map_err(|error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                format!("{error}: {cause}")
            })
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host reads stderr into the log; when it is gone too, nobody is left to tell.
            let _ = writeln!(std::io::stderr(), "echo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The provider.
struct Echo {
    /// Differs between processes, so that call ids of one session never meet.
    started: u128,
    calls: AtomicU64,
    /// What already failed once: hashes of request and step, the newest last.
    failed: Mutex<VecDeque<u64>>,
}

impl Echo {
    fn new() -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            started: started.as_nanos(),
            calls: AtomicU64::new(0),
            failed: Mutex::new(VecDeque::with_capacity(REMEMBERED)),
        }
    }

    fn mint_call(&self) -> String {
        format!("call_{:x}_{}", self.started, self.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns whether this step of this request failed before, and remembers that it does now.
    fn failed_before(&self, request: &ModelRequest, step: usize) -> bool {
        let mut hasher = DefaultHasher::new();
        // The messages are what a retry repeats; a system prompt may hold the time.
        serde_json::to_string(&request.messages).unwrap_or_default().hash(&mut hasher);
        step.hash(&mut hasher);
        let hash = hasher.finish();
        let mut failed = self.failed.lock().expect("nothing panics while it holds this lock");
        if failed.contains(&hash) {
            return true;
        }
        if failed.len() == REMEMBERED {
            failed.pop_front();
        }
        failed.push_back(hash);
        false
    }
}

impl Plugin for Echo {
    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
        let model = ModelInfo { id: "echo".to_owned(), display: Some("Echo".to_owned()) };
        let provider = ProviderSpec {
            id: "echo".to_owned(),
            family: None,
            models: vec![model],
            endpoint: Default::default(),
        };
        Ok(InitializeResult {
            name: "echo".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            providers: vec![provider],
            ..Default::default()
        })
    }

    async fn stream_provider(
        &self,
        params: ProviderStreamParams,
        context: StreamContext,
    ) -> Result<(), ProviderError> {
        let request = params.request;
        let mut answer = Answer::new(context);
        answer.send(ModelEvent::StreamStart { warnings: Vec::new() }).await?;
        let metadata = ModelEvent::ResponseMetadata { id: None, model: Some(request.model.clone()) };
        answer.send(metadata).await?;
        for (index, step) in steps(&request).into_iter().enumerate() {
            match step {
                Step::Say(text) => answer.say(&text).await?,
                Step::Think(text) => answer.think(&text).await?,
                Step::Call { name, input } => answer.call(self.mint_call(), name, input).await?,
                Step::Wait(milliseconds) => answer.wait(Duration::from_millis(milliseconds)).await,
                Step::Fail { once: true, .. } if self.failed_before(&request, index) => {}
                Step::Fail { error, .. } => return Err(error),
            }
        }
        answer.finish(input_tokens(&request)).await
    }
}

/// One answer being streamed.
struct Answer {
    context: StreamContext,
    blocks: u32,
    /// The text block that is open; more words start on a new line of it.
    text: Option<String>,
    called: bool,
    /// Characters so far, and those of them that were reasoning.
    characters: usize,
    reasoned: usize,
}

impl Answer {
    fn new(context: StreamContext) -> Self {
        Self { context, blocks: 0, text: None, called: false, characters: 0, reasoned: 0 }
    }

    async fn send(&mut self, event: ModelEvent) -> Result<(), ProviderError> {
        Ok(self.context.send(event).await?)
    }

    fn block(&mut self) -> String {
        self.blocks += 1;
        format!("block-{}", self.blocks)
    }

    /// Says more. A wait or a failure leaves the text open; whatever else comes ends it.
    async fn say(&mut self, text: &str) -> Result<(), ProviderError> {
        let (id, line_break) = match self.text.clone() {
            Some(id) => (id, Some("\n")),
            None => (self.start_text().await?, None),
        };
        for piece in line_break.into_iter().chain(text.split_inclusive(char::is_whitespace)) {
            self.characters += piece.chars().count();
            self.send(ModelEvent::TextDelta { id: id.clone(), delta: piece.to_owned() }).await?;
        }
        Ok(())
    }

    async fn start_text(&mut self) -> Result<String, ProviderError> {
        let id = self.block();
        self.text = Some(id.clone());
        self.send(ModelEvent::TextStart { id: id.clone() }).await?;
        Ok(id)
    }

    async fn end_text(&mut self) -> Result<(), ProviderError> {
        match self.text.take() {
            Some(id) => self.send(ModelEvent::TextEnd { id }).await,
            None => Ok(()),
        }
    }

    async fn think(&mut self, text: &str) -> Result<(), ProviderError> {
        self.end_text().await?;
        let id = self.block();
        self.send(ModelEvent::ReasoningStart { id: id.clone() }).await?;
        for piece in text.split_inclusive(char::is_whitespace) {
            self.characters += piece.chars().count();
            self.reasoned += piece.chars().count();
            self.send(ModelEvent::ReasoningDelta { id: id.clone(), delta: piece.to_owned() }).await?;
        }
        self.send(ModelEvent::ReasoningEnd { id, provider_metadata: Default::default() }).await
    }

    async fn call(&mut self, id: String, name: String, input: String) -> Result<(), ProviderError> {
        self.end_text().await?;
        self.called = true;
        self.characters += input.chars().count();
        self.send(ModelEvent::ToolInputStart { id: id.clone(), name: name.clone() }).await?;
        for delta in pieces(&input) {
            self.send(ModelEvent::ToolInputDelta { id: id.clone(), delta: delta.to_owned() }).await?;
        }
        self.send(ModelEvent::ToolInputEnd { id: id.clone() }).await?;
        self.send(ModelEvent::ToolCall { id, name, input }).await
    }

    /// Sleeps, but not past a cancel; the next event then ends the stream.
    async fn wait(&mut self, duration: Duration) {
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            () = self.context.cancelled() => {}
        }
    }

    async fn finish(&mut self, input_tokens: u64) -> Result<(), ProviderError> {
        self.end_text().await?;
        let usage = Usage {
            input_tokens,
            output_tokens: tokens(self.characters),
            reasoning_tokens: tokens(self.reasoned),
            ..Default::default()
        };
        let unified = if self.called { UnifiedFinish::ToolCalls } else { UnifiedFinish::Stop };
        self.send(ModelEvent::Finish { usage, finish_reason: FinishReason { unified, raw: None } }).await
    }
}

/// Cuts a text into short pieces, never inside a character.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = INPUT_PIECE.min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Roughly four characters are a token.
fn tokens(characters: usize) -> u64 {
    characters.div_ceil(4) as u64
}

/// Counts what the request says; pictures count as nothing.
fn input_tokens(request: &ModelRequest) -> u64 {
    let system: usize = request.system.iter().map(|block| block.text.chars().count()).sum();
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let said: usize = parts.map(characters).sum();
    tokens(system + said)
}

fn characters(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text { text } | ContentPart::Reasoning { text, .. } => text.chars().count(),
        ContentPart::Image { .. } => 0,
        ContentPart::ToolUse { input, .. } => input.to_string().chars().count(),
        ContentPart::ToolResult { parts, .. } => parts.iter().map(characters).sum(),
    }
}
