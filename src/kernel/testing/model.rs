//! A model that says one word, when the test lets it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::event::Usage;
use bingo_plugin_sdk::handshake::ProviderSpec;
use bingo_plugin_sdk::provider::{FinishReason, ModelEvent, ModelRequest, ProviderError, UnifiedFinish};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::ports::{BoxFuture, CallContext, ModelStream, Provider};

/// The provider `test` with the model `m`.
pub(in crate::kernel) struct Model {
    spec: ProviderSpec,
    /// One permit lets one answer end.
    answers: Arc<Semaphore>,
    asked: Mutex<Option<ModelRequest>>,
    script: Mutex<VecDeque<Vec<Scripted>>>,
}

/// What comes next of an answer; an error is its last word.
pub(in crate::kernel) type Scripted = Result<ModelEvent, ProviderError>;

/// Returns a text and how the answer ends.
pub(in crate::kernel) fn says(text: &str, end: UnifiedFinish) -> Vec<Scripted> {
    let id = "b".to_owned();
    let start = ModelEvent::TextStart { id: id.clone() };
    let delta = ModelEvent::TextDelta { id: id.clone(), delta: text.to_owned() };
    vec![Ok(start), Ok(delta), Ok(ModelEvent::TextEnd { id }), Ok(finish(end, Usage::default()))]
}

/// Returns calls of tools with their inputs, as JSON, and the end of the answer. Calls are numbered.
pub(in crate::kernel) fn calls(calls: &[(&str, &str)]) -> Vec<Scripted> {
    let call = |(at, (name, input)): (usize, &(&str, &str))| {
        let (id, name, input) = (format!("call_{at}"), (*name).to_owned(), (*input).to_owned());
        Ok(ModelEvent::ToolCall { id, name, input })
    };
    let end = Ok(finish(UnifiedFinish::ToolCalls, Usage::default()));
    calls.iter().enumerate().map(call).chain([end]).collect()
}

/// Returns the end of an answer.
pub(in crate::kernel) fn finish(unified: UnifiedFinish, usage: Usage) -> ModelEvent {
    ModelEvent::Finish { usage, finish_reason: FinishReason { unified, raw: None } }
}

impl Default for Model {
    fn default() -> Self {
        let spec = json!({ "id": "test", "models": [{ "id": "m" }] });
        let spec = serde_json::from_value(spec).expect("this is a provider's spec");
        Self { spec, answers: Arc::new(Semaphore::new(0)), asked: Mutex::default(), script: Mutex::default() }
    }
}

impl Model {
    /// Lets the answer that is being given end, and none after it.
    pub(in crate::kernel) fn answer_once(&self) {
        self.answers.forget_permits(usize::MAX);
        self.answers.add_permits(1);
    }

    /// Gives these answers first, one to each request, without waiting for the test.
    pub(in crate::kernel) fn script(&self, answers: impl IntoIterator<Item = Vec<Scripted>>) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).extend(answers);
    }

    /// Takes the newest request that came.
    pub(in crate::kernel) fn asked(&self) -> Option<ModelRequest> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes back a permission that nobody used.
    pub(in crate::kernel) fn hold_back(&self) {
        self.answers.forget_permits(usize::MAX);
    }

    /// Lets every answer end from now on.
    pub(in crate::kernel) fn answer_always(&self) {
        self.answers.add_permits(1_000_000);
    }
}

impl Provider for Model {
    fn spec(&self) -> &ProviderSpec {
        &self.spec
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn stream(&self, _: CallContext, request: ModelRequest) -> Box<dyn ModelStream> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        if let Some(events) = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
            return Box::new(Answer { begin: events.into(), permit: None, end: VecDeque::new() });
        }
        let id = "b".to_owned();
        let begin = vec![
            Ok(ModelEvent::TextStart { id: id.clone() }),
            Ok(ModelEvent::TextDelta { id: id.clone(), delta: "word".to_owned() }),
        ];
        let end = finish(UnifiedFinish::Stop, Usage::default());
        let end = vec![Ok(ModelEvent::TextEnd { id }), Ok(end)].into();
        Box::new(Answer { begin: begin.into(), permit: Some(Arc::clone(&self.answers)), end })
    }
}

struct Answer {
    begin: VecDeque<Scripted>,
    /// Taken once the answer may end.
    permit: Option<Arc<Semaphore>>,
    end: VecDeque<Scripted>,
}

impl ModelStream for Answer {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, ProviderError>>> {
        Box::pin(async {
            if let Some(event) = self.begin.pop_front() {
                return Some(event);
            }
            if let Some(permits) = &self.permit {
                permits.acquire().await.expect("it is never closed").forget();
                self.permit = None;
            }
            self.end.pop_front()
        })
    }
}
