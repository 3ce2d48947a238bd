//! bingo, a plugin host. `docs/architecture.md` is the map.

pub mod bridge;
pub mod ports;
pub mod schema;
pub mod supervisor;
pub mod telemetry;
