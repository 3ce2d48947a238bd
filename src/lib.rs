//! bingo, a plugin host. `docs/architecture.md` is the map.

pub mod journal;
pub mod ports;
