//! What passes the schema is read; what does not is told with a place.
#![no_main]

use bingo::schema::{self, Part};
use bingo_plugin_sdk::handshake::InitializeResult;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else { return };
    match schema::plugin().check("initialize", Part::Result, &value) {
        Ok(()) => {
            // The schema counts 1.0 as an integer; readers do not.
            let read = serde_json::from_value::<InitializeResult>(value.clone());
            assert!(read.is_ok() || has_float(&value), "what passes the schema is read: {read:?}");
        }
        Err(fault) => assert!(!fault.expected.is_empty()),
    }
});

fn has_float(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => number.is_f64(),
        serde_json::Value::Array(elements) => elements.iter().any(has_float),
        serde_json::Value::Object(members) => members.values().any(has_float),
        _ => false,
    }
}
