//! Which sessions are more than what shall be kept. It decides and removes nothing.
//!
//! A session goes with all sessions below it or not at all: a child without its parent would be told nowhere.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::session::SessionSummary;

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How much is kept. What is not said is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The days since a tree was last written.
    pub days: Option<u32>,
    /// The number of trees, the newest first.
    pub sessions: Option<u32>,
    /// The bytes of the newest trees together. The newest one is kept whatever it takes.
    pub bytes: Option<u64>,
}

/// A session that nobody started as a child of a stored one, and all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTree {
    /// Each behind its parent; the root is the first.
    pub sessions: Vec<SessionId>,
    /// When any of them was last written, as an RFC 3339 time in UTC.
    pub updated_at: String,
    /// What they take of the disk together.
    pub bytes: u64,
}

impl Keep {
    /// Returns whether everything is kept.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the trees that are more than this, the oldest first.
    pub(super) fn overdue(&self, mut trees: Vec<SessionTree>, now: SystemTime) -> Vec<SessionTree> {
        trees.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.sessions.cmp(&b.sessions)));
        let oldest = self.days.map(|days| day_before(now, days));
        let kept = self.sessions.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
        let mut bytes = 0_u64;
        let mut place = 0;
        trees.retain(|tree| {
            bytes = bytes.saturating_add(tree.bytes);
            place += 1;
            oldest.as_ref().is_some_and(|oldest| tree.updated_at < *oldest)
                || place > kept
                || (place > 1 && self.bytes.is_some_and(|most| bytes > most))
        });
        trees.reverse();
        trees
    }
}

/// Returns a time as summaries write it.
fn day_before(now: SystemTime, days: u32) -> String {
    let then = now.checked_sub(DAY * days).and_then(|then| jiff::Timestamp::try_from(then).ok());
    format!("{:.3}", then.unwrap_or(jiff::Timestamp::MIN))
}

/// Returns the sessions as trees; `weigh` says what one takes, in bytes.
pub(super) fn trees(all: &[SessionSummary], weigh: impl Fn(&SessionId) -> u64) -> Vec<SessionTree> {
    let updated: HashMap<&SessionId, &str> =
        all.iter().map(|one| (&one.id, one.updated_at.as_str())).collect();
    let children = by_parent(all);
    let is_root = |one: &&SessionSummary| parent(one).is_none_or(|parent| !updated.contains_key(parent));
    let tree = |root: &SessionSummary| {
        let members = walk(&root.id, &children);
        let newest = members.iter().filter_map(|id| updated.get(id)).max();
        SessionTree {
            updated_at: newest.copied().unwrap_or_default().to_owned(),
            bytes: members.iter().map(|id| weigh(id)).fold(0, u64::saturating_add),
            sessions: members.into_iter().cloned().collect(),
        }
    };
    all.iter().filter(is_root).map(tree).collect()
}

/// Returns a session, which need not be among these, and those below it, each behind its parent.
pub fn below(all: &[SessionSummary], root: &SessionId) -> Vec<SessionId> {
    walk(root, &by_parent(all)).into_iter().cloned().collect()
}

type ByParent<'a> = HashMap<&'a SessionId, Vec<&'a SessionId>>;

fn by_parent(all: &[SessionSummary]) -> ByParent<'_> {
    let mut children = ByParent::new();
    for one in all {
        if let Some(parent) = parent(one) {
            children.entry(parent).or_default().push(&one.id);
        }
    }
    children
}

fn parent(one: &SessionSummary) -> Option<&SessionId> {
    one.parent.as_ref().map(|link| &link.session)
}

fn walk<'a>(root: &'a SessionId, children: &ByParent<'a>) -> Vec<&'a SessionId> {
    let mut members = vec![root];
    let mut next = 0;
    while let Some(parent) = members.get(next).copied() {
        // Each has one parent, so only a ring that a broken journal tells of leads back, and to the root.
        members.extend(children.get(parent).into_iter().flatten().filter(|child| **child != root));
        next += 1;
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-31, noon.
    const NOON: Duration = Duration::from_secs(1_774_958_400);

    fn tree(root: &str, day: u32, bytes: u64) -> SessionTree {
        let updated_at = format!("2026-03-{day:02}T12:00:00.000Z");
        SessionTree { sessions: vec![SessionId::from(root)], updated_at, bytes }
    }

    /// Returns the roots that go, of three trees.
    fn gone(keep: Keep) -> Vec<String> {
        let trees = vec![tree("b", 20, 10), tree("c", 30, 100), tree("a", 10, 1)];
        let gone = keep.overdue(trees, SystemTime::UNIX_EPOCH + NOON);
        gone.iter().map(|tree| tree.sessions[0].to_string()).collect()
    }

    #[test]
    fn what_is_not_limited_is_kept() {
        assert!(Keep::default().is_all() && gone(Keep::default()).is_empty());
    }

    /// Rule 7.10, with limits that a person sets.
    #[test]
    fn what_is_older_than_so_many_days_goes_the_oldest_first() {
        let days = |days| gone(Keep { days: Some(days), ..Keep::default() });
        assert_eq!((days(22), days(21)), (vec![], vec![]), "a tree as old as the limit is kept");
        assert_eq!((days(11), days(10)), (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(days(0), ["a", "b", "c"]);
        assert!(days(u32::MAX).is_empty(), "longer than there is time");
    }

    #[test]
    fn of_many_the_newest_are_kept() {
        let sessions = |sessions| gone(Keep { sessions: Some(sessions), ..Keep::default() });
        assert!(sessions(3).is_empty());
        assert_eq!(
            (sessions(2), sessions(0)),
            (vec!["a".to_owned()], gone(Keep { days: Some(0), ..Keep::default() }))
        );
    }

    #[test]
    fn a_tree_past_the_size_goes_with_all_that_are_older_but_never_the_newest() {
        let bytes = |bytes| gone(Keep { bytes: Some(bytes), ..Keep::default() });
        assert!(bytes(111).is_empty());
        assert_eq!(bytes(110), ["a"]);
        assert_eq!(bytes(109), ["a", "b"], "one that is small goes after one that did not fit");
        assert_eq!(bytes(0), ["a", "b"]);
    }

    #[test]
    fn a_tree_is_as_new_as_its_newest_and_as_large_as_all_of_it() {
        let link = |parent: Option<&str>| parent.map(|parent| serde_json::json!({ "session": parent }));
        let session = |id: &str, parent: Option<&str>, day: u32| -> SessionSummary {
            let at = format!("2026-03-{day:02}T12:00:00.000Z");
            let summary = serde_json::json!({ "id": id, "cwd": "/", "parent": link(parent), "createdAt": at, "updatedAt": at });
            serde_json::from_value(summary).unwrap()
        };
        let all = [
            session("grandchild", Some("child"), 3),
            session("child", Some("root"), 9),
            session("orphan", Some("gone"), 5),
            session("root", None, 1),
        ];
        let found = trees(&all, |id| id.as_str().len() as u64);
        let of = |root: &str| found.iter().find(|tree| tree.sessions[0].as_str() == root).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(of("root").sessions, ["root", "child", "grandchild"].map(SessionId::from));
        assert_eq!(of("root").updated_at, "2026-03-09T12:00:00.000Z");
        assert_eq!(of("root").bytes, 19);
        assert_eq!(of("orphan").bytes, 6);
        let of = |root: &str| below(&all, &SessionId::from(root));
        assert_eq!(of("child"), ["child", "grandchild"].map(SessionId::from));
        assert_eq!(
            of("gone"),
            ["gone", "orphan"].map(SessionId::from),
            "one that cannot be read has children too"
        );
        let ring = [session("a", Some("b"), 1), session("b", Some("a"), 2)];
        assert_eq!(below(&ring, &SessionId::from("a")), ["a", "b"].map(SessionId::from));
        assert!(trees(&ring, |_| 0).is_empty());
    }
}
