//! What a plugin tells the person through `notice`: shown up to a number within a minute, then counted and told once.

use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use tokio::time::{Duration, Instant};

use crate::ports::{Notice, Notices};

const MINUTE: Duration = Duration::from_secs(60);

/// The account of one connection.
pub(super) struct Remarks {
    plugin: PluginName,
    notices: Arc<dyn Notices>,
    most: u32,
    minute: Mutex<Minute>,
}

struct Minute {
    began: Instant,
    shown: u32,
    untold: u64,
}

impl Remarks {
    pub(super) fn new(plugin: PluginName, notices: Arc<dyn Notices>, most: u32) -> Self {
        Self {
            plugin,
            notices,
            most,
            minute: Mutex::new(Minute { began: Instant::now(), shown: 0, untold: 0 }),
        }
    }

    /// Shows a remark, or counts it; returns whether it was shown.
    pub(super) fn tell(&self, notice: Notice) -> bool {
        let mut minute = self.minute.lock().unwrap_or_else(PoisonError::into_inner);
        let mut untold = 0;
        if minute.began.elapsed() >= MINUTE {
            untold = minute.untold;
            *minute = Minute { began: Instant::now(), shown: 0, untold: 0 };
        }
        let shown = minute.shown < self.most;
        if shown {
            minute.shown += 1;
        } else {
            minute.untold += 1;
        }
        drop(minute);
        self.sum_up(untold);
        if shown {
            self.notices.post(notice);
        }
        shown
    }

    /// Tells what was only counted; for the end of a connection.
    pub(super) fn finish(&self) {
        let untold = std::mem::take(&mut self.minute.lock().unwrap_or_else(PoisonError::into_inner).untold);
        self.sum_up(untold);
    }

    fn sum_up(&self, untold: u64) {
        if untold == 0 {
            return;
        }
        let (plugin, most) = (&self.plugin, self.most);
        let text =
            format!("{plugin}: {untold} more of its notices were not shown, {most} are within a minute");
        self.notices.post(Notice { level: Level::Warn, code: "PLUGIN_NOTICES_DROPPED", text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::testing::Heard;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_cut_and_told_once() {
        let heard = Arc::new(Heard::default());
        let remarks = Remarks::new(PluginName::parse("p").unwrap(), heard.clone(), 2);
        let tell = |text: &str| {
            remarks.tell(Notice { level: Level::Info, code: "PLUGIN_NOTICE", text: text.to_owned() });
        };
        ["a", "b", "c", "d"].into_iter().for_each(tell);
        assert_eq!(heard.texts(), ["a", "b"]);
        tokio::time::advance(MINUTE).await;
        ["e", "f", "g"].into_iter().for_each(tell);
        remarks.finish();
        remarks.finish();
        assert_eq!(
            heard.texts()[2..],
            [
                "p: 2 more of its notices were not shown, 2 are within a minute",
                "e",
                "f",
                "p: 1 more of its notices were not shown, 2 are within a minute",
            ]
        );
    }
}
