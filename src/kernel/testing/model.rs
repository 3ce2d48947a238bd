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
}

impl Default for Model {
    fn default() -> Self {
        let spec = json!({ "id": "test", "models": [{ "id": "m" }] });
        let spec = serde_json::from_value(spec).expect("this is a provider's spec");
        Self { spec, answers: Arc::new(Semaphore::new(0)), asked: Mutex::default() }
    }
}

impl Model {
    /// Lets the answer that is being given end, and none after it.
    pub(in crate::kernel) fn answer_once(&self) {
        self.answers.forget_permits(usize::MAX);
        self.answers.add_permits(1);
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
        let id = "b".to_owned();
        let begin = vec![
            ModelEvent::TextStart { id: id.clone() },
            ModelEvent::TextDelta { id: id.clone(), delta: "word".to_owned() },
        ];
        let finish_reason = FinishReason { unified: UnifiedFinish::Stop, raw: None };
        let finish = ModelEvent::Finish { usage: Usage::default(), finish_reason };
        let end = vec![ModelEvent::TextEnd { id }, finish].into();
        Box::new(Answer { begin: begin.into(), permit: Some(Arc::clone(&self.answers)), end })
    }
}

struct Answer {
    begin: VecDeque<ModelEvent>,
    /// Taken once the answer may end.
    permit: Option<Arc<Semaphore>>,
    end: VecDeque<ModelEvent>,
}

impl ModelStream for Answer {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, ProviderError>>> {
        Box::pin(async {
            if let Some(event) = self.begin.pop_front() {
                return Some(Ok(event));
            }
            if let Some(permits) = &self.permit {
                permits.acquire().await.expect("it is never closed").forget();
                self.permit = None;
            }
            self.end.pop_front().map(Ok)
        })
    }
}
