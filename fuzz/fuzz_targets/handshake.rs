//! What passes the schema is read; what does not is told with a place.
#![no_main]

use bingo::schema::{self, Part};
use bingo_plugin_sdk::handshake::InitializeResult;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else { return };
    match schema::plugin().check("initialize", Part::Result, &value) {
        Ok(()) => {
            serde_json::from_value::<InitializeResult>(value).expect("what passes the schema is read");
        }
        Err(fault) => assert!(!fault.expected.is_empty()),
    }
});
