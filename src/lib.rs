//! bingo, a plugin host. `docs/architecture.md` is the map.

pub mod ports;
pub mod provider;
