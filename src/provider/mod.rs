//! Bundled model providers: plugins like any other, run by this same binary as child processes.
//!
//! Nothing here knows the host; each provider is reached over the plugin wire alone.

pub mod echo;
