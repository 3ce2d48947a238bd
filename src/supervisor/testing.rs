//! What the unit tests of several files use.

use std::sync::Mutex;

use crate::ports::{Notice, Notices};

/// Keeps every notice.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Vec<Notice>>);

impl Heard {
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|notice| notice.text.clone()).collect()
    }
}

impl Notices for Heard {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }
}
