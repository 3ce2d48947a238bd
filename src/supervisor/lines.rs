//! Lines of a plugin's pipe, one after the other, good or bad.

use bingo_plugin_sdk::ndjson::{Line, NdjsonCodec};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::codec::Decoder;

/// Reads lines until the end of input. A read error is an end too: nothing more will come.
pub(super) struct Lines<R> {
    reader: R,
    codec: NdjsonCodec,
    buffer: BytesMut,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, cap: usize) -> Self {
        Self { reader, codec: NdjsonCodec::new(cap), buffer: BytesMut::with_capacity(8 * 1024), ended: false }
    }

    /// Returns the next line; nothing after the last.
    pub(super) async fn next(&mut self) -> Option<Line> {
        loop {
            let decoded = if self.ended {
                self.codec.decode_eof(&mut self.buffer)
            } else {
                self.codec.decode(&mut self.buffer)
            };
            match decoded.ok()? {
                Some(line) => return Some(line),
                None if self.ended => return None,
                None => self.ended = !matches!(self.reader.read_buf(&mut self.buffer).await, Ok(1..)),
            }
        }
    }
}
