//! A line is a message or a fault; a message survives being written and read.
#![no_main]

use bingo_plugin_sdk::jsonrpc::Message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    if let Ok(message) = Message::parse(line) {
        let written = message.to_line();
        assert!(!written.contains('\n'));
        let read = Message::parse(written.as_bytes()).expect("what we write is a message");
        assert_eq!(read.to_line(), written);
    }
});
