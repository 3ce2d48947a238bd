//! The order in which a client's requests run: one lane per session, everything else at once.

use std::collections::{BTreeMap, VecDeque};

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::jsonrpc::RequestId;
use serde_json::Value;

/// A request that passed the check.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) method: String,
    pub(super) params: Value,
}

impl Job {
    /// Returns the session whose other requests it must not pass.
    pub(super) fn lane(&self) -> Option<SessionId> {
        let session = match self.method.as_str() {
            "session/open" => &self.params["selector"]["id"],
            _ => &self.params["session"],
        };
        session.as_str().map(SessionId::from)
    }

    /// Returns whether it only reads, so that nothing need wait for it.
    fn is_read(&self) -> bool {
        self.method == "session/history"
    }
}

/// Jobs that run and jobs that wait for their lane.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    /// Waiting jobs by lane; a lane is there while one of its jobs runs or waits.
    lanes: BTreeMap<SessionId, VecDeque<Job>>,
    ready: Vec<Job>,
    len: usize,
}

impl Dispatch {
    /// Returns how many jobs run or wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes a job in.
    pub(super) fn push(&mut self, job: Job) {
        self.len += 1;
        let Some(lane) = job.lane() else { return self.ready.push(job) };
        match self.lanes.get_mut(&lane) {
            Some(waiting) => waiting.push_back(job),
            None if job.is_read() => self.ready.push(job),
            None => {
                self.lanes.insert(lane, VecDeque::new());
                self.ready.push(job);
            }
        }
    }

    /// Takes the jobs that may run now.
    pub(super) fn ready(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.ready)
    }

    /// A job ended; `lane` is the one it held. The next of that lane is ready, and every read before it.
    pub(super) fn ended(&mut self, lane: Option<&SessionId>) {
        self.len = self.len.saturating_sub(1);
        let Some(lane) = lane else { return };
        let Some(waiting) = self.lanes.get_mut(lane) else { return };
        while let Some(job) = waiting.pop_front() {
            let holds = !job.is_read();
            self.ready.push(job);
            if holds {
                return;
            }
        }
        self.lanes.remove(lane);
    }
}

impl Job {
    /// Returns the lane it holds while it runs: reads hold none.
    pub(super) fn held_lane(&self) -> Option<SessionId> {
        if self.is_read() { None } else { self.lane() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(id: i64, method: &str, session: &str) -> Job {
        Job { id: RequestId::Number(id), method: method.to_owned(), params: json!({ "session": session }) }
    }

    fn ready(dispatch: &mut Dispatch) -> Vec<String> {
        dispatch.ready().iter().map(|job| job.id.to_string()).collect()
    }

    /// Rule 5.1.5.
    #[test]
    fn requests_of_one_session_run_in_order_and_others_beside_them() {
        let mut dispatch = Dispatch::default();
        for job in [
            job(1, "session/submit", "a"),
            job(2, "session/interrupt", "a"),
            job(3, "session/submit", "b"),
            Job { id: RequestId::Number(4), method: "session/list".to_owned(), params: json!({}) },
        ] {
            dispatch.push(job);
        }
        assert_eq!(ready(&mut dispatch), ["1", "3", "4"]);
        dispatch.ended(Some(&SessionId::from("a")));
        assert_eq!(ready(&mut dispatch), ["2"]);
        assert_eq!(dispatch.len(), 3);
    }

    /// Rule 5.1.5.
    /// Mends 9.1.12.
    #[test]
    fn an_interrupt_passes_a_slow_read() {
        let mut dispatch = Dispatch::default();
        dispatch.push(job(1, "session/history", "a"));
        dispatch.push(job(2, "session/interrupt", "a"));
        assert_eq!(ready(&mut dispatch), ["1", "2"]);
    }

    #[test]
    fn what_follows_an_open_of_a_session_waits_for_it() {
        let mut dispatch = Dispatch::default();
        let params = json!({ "selector": { "kind": "byId", "id": "a" } });
        dispatch.push(Job { id: RequestId::Number(1), method: "session/open".to_owned(), params });
        dispatch.push(job(2, "session/history", "a"));
        dispatch.push(job(3, "session/submit", "a"));
        dispatch.push(job(4, "session/submit", "a"));
        assert_eq!(ready(&mut dispatch), ["1"]);
        dispatch.ended(Some(&SessionId::from("a")));
        assert_eq!(ready(&mut dispatch), ["2", "3"]);
        dispatch.ended(None);
        dispatch.ended(Some(&SessionId::from("a")));
        assert_eq!(ready(&mut dispatch), ["4"]);
        dispatch.ended(Some(&SessionId::from("a")));
        assert!(dispatch.lanes.is_empty(), "an idle lane is gone");
    }
}
