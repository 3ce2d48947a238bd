//! bingo, a plugin host. `docs/architecture.md` is the map.

pub mod journal;
pub mod kernel;
pub mod ports;
pub mod schema;
pub mod telemetry;
