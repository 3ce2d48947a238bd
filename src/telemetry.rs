//! What the host says about itself: the time stamps of logs and records, and the tracing output.
//!
//! Logs go to stderr; stdout carries results only.

use std::time::Duration;

use tracing::level_filters::LevelFilter;

/// Returns the time as RFC 3339 in UTC with milliseconds, such as `2026-01-31T12:00:00.000Z`.
pub fn now() -> String {
    after(Duration::ZERO)
}

/// Returns the time after a while, written like `now`.
pub fn after(wait: Duration) -> String {
    format!("{:.3}", jiff::Timestamp::now() + wait)
}

/// Sends the log to stderr: warnings, and with each `-v` one level more.
///
/// A second call does nothing, so that tests may all ask for it.
pub fn init(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // Fails only when a subscriber is set already, and that one is as good.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}

/// Returns an error with its causes, where its text does not hold them already.
pub fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_time_is_rfc_3339_with_milliseconds() {
        let now = super::now();
        assert_eq!(now.len(), "2026-01-31T12:00:00.000Z".len(), "{now}");
        assert!(now.ends_with('Z'), "{now}");
        assert_eq!(&now[10..11], "T", "{now}");
    }
}
