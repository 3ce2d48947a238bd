//! A kernel in this process, over a journal and nothing else.

use std::sync::Arc;

use bingo::journal::JsonlJournal;
use bingo::kernel::{Board, Kernel, KernelSettings, PermissionMode, Rules};
use bingo::ports::{BoxFuture, Offers, Preference, Preferences, Snapshot};
use bingo::settings::SyncMode;
use bingo_plugin_sdk::event::KernelError;

pub(crate) fn kernel(journal: Arc<JsonlJournal>, sync: SyncMode) -> Kernel {
    let settings = KernelSettings {
        provider: None,
        model: None,
        thinking: None,
        max_tokens: 1000,
        max_rounds: 100,
        models: Default::default(),
        mode: PermissionMode::Default,
        rules: Rules::default(),
        sync,
    };
    Kernel::new(Arc::new(Nothing), journal, Arc::new(Board::default()), Arc::new(Nothing), settings)
}

/// No plugins, and no settings.
struct Nothing;

impl Preferences for Nothing {
    fn save(&self, _: Preference) -> BoxFuture<'static, Result<Option<String>, KernelError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

impl Offers for Nothing {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::default()
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn starting(&self) -> Vec<String> {
        Vec::new()
    }

    fn changed(&self, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
