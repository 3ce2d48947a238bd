//! Identities: newtypes over the strings and numbers of the wire, minted in one place.
//!
//! The kernel mints session, turn, item and interaction ids as `<prefix>_<ULID>`; clients mint intents.
//! Any string is accepted as an id: nothing here validates prefix or ULID (kernel rules 1.1.4).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns a fresh id: this type's prefix, an underscore, a new ULID.
            pub fn mint() -> Self {
                Self(format!(concat!($prefix, "_{}"), ulid::Ulid::generate()))
            }

            /// Returns the id as it stands on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

string_id!(
    /// Names one session for good, across restarts: `ses_` and a ULID.
    SessionId,
    "ses"
);
string_id!(
    /// Names one turn of a session: `trn_` and a ULID.
    TurnId,
    "trn"
);
string_id!(
    /// Names one item of a session's transcript: `itm_` and a ULID.
    ItemId,
    "itm"
);
string_id!(
    /// Names one question that waits for a person: `int_` and a ULID.
    InteractionId,
    "int"
);
string_id!(
    /// Names one write of a client and serves as its idempotency key. Minted by the client, usually `req_` and a ULID.
    IntentId,
    "req"
);

/// A frame's position in the numbering of one session: strictly increasing, gaps are legal.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// Returns the run of the session that a frame of this number belongs to, counted from 0: each run of a stored
    /// session begins at the next multiple of 2^32.
    pub fn segment(self) -> u64 {
        self.0 >> 32
    }

    /// Returns the first number of the run after this one's.
    pub fn next_segment(self) -> Self {
        Self((self.segment() + 1) << 32)
    }

    /// Returns the number after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A plugin's directory name, by which it is known everywhere: letters, digits, `.`, `_` and `-`.
///
/// It names log files and folders, so nothing that could leave a directory is a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PluginName(String);

impl PluginName {
    /// Returns the name, or nothing when the text cannot be one (empty, over 64 bytes, a leading dot, other characters).
    pub fn parse(text: &str) -> Option<Self> {
        let fits = !text.is_empty()
            && text.len() <= 64
            && !text.starts_with('.')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        fits.then(|| Self(text.to_owned()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// One process of a plugin with its handshake; counted from 1 in each host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_id_has_its_prefix_and_a_ulid() {
        let id = SessionId::mint();
        let (prefix, rest) = id.as_str().split_once('_').unwrap();
        assert_eq!(prefix, "ses");
        assert_eq!(rest.len(), 26);
        assert_ne!(id, SessionId::mint());
    }

    #[test]
    fn a_plugin_name_cannot_leave_its_folder() {
        for bad in ["", ".", "..", "a/b", "a\\b", ".hidden", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(PluginName::parse(bad), None, "{bad:?}");
        }
        assert!(PluginName::parse("word-count_2.0").is_some());
    }
}
