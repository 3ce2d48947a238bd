//! bingo, a plugin host. `docs/architecture.md` is the map.

pub mod app;
pub mod bridge;
pub mod cli;
pub mod control;
pub mod journal;
pub mod kernel;
pub mod ports;
pub mod printable;
pub mod provider;
pub mod schema;
pub mod settings;
pub mod supervisor;
pub mod surface;
pub mod telemetry;
pub mod trust;
