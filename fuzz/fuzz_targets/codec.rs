//! Any split of a byte stream gives the same lines, whatever the bytes.
#![no_main]

use bingo_plugin_sdk::ndjson::{Line, NdjsonCodec};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::Decoder;

/// A small cap, so that draining is reached.
const CAP: usize = 64;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut codec = NdjsonCodec::new(CAP);
    let mut buffer = BytesMut::new();
    let mut lines = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(line) = codec.decode(&mut buffer).expect("the codec has no errors") {
            lines.push(line);
        }
    }
    while let Some(line) = codec.decode_eof(&mut buffer).expect("the codec has no errors") {
        lines.push(line);
    }
    lines
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (size, bytes) = input;
    let whole = decode(std::iter::once(bytes.as_slice()));
    let pieces = decode(bytes.chunks(usize::from(size).max(1)));
    assert_eq!(whole, pieces);
});
