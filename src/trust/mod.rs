//! What a person trusted: by the place of a thing and a hash over all of it, so that a change asks again.
//!
//! This knows folders and files, not what they are for: the settings hash their own files, the supervisor its plugins.

mod fingerprint;
mod store;

pub use self::fingerprint::{Builder, Fingerprint, FingerprintError};
pub use self::store::{StoreError, Subject, TrustStore, Untrusted};

/// Returns whether two paths lead to one folder; a path that leads nowhere is no folder.
pub fn is_same_folder(one: &std::path::Path, other: &std::path::Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
