//! `bingo serve --stdio`: one client over standard input and output.
//!
//! Input is read and output written on plain threads: neither can hold up the end of the process.

use std::io::{Read, Write};
use std::time::Duration;

use bingo_plugin_sdk::ndjson::{Line, MAX_LINE, NdjsonCodec};
use bytes::BytesMut;
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::Decoder;

use super::rpc;
use crate::kernel::Kernel;

/// Lines that were read and wait to be looked at; one may be 16 MiB.
const MAX_INPUT: usize = 4;
/// How long the last lines may take to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The input ended, or the client asked for the end.
    Done,
    /// Nobody reads the output any more.
    ReaderGone,
}

/// Serves the client on standard input and output to its end.
///
/// # Errors
/// When a thread cannot be started.
pub async fn serve(kernel: Kernel, stop: impl Future<Output = ()>) -> std::io::Result<Served> {
    let (line_sender, lines) = mpsc::channel(MAX_INPUT);
    let (output, output_lines) = rpc::output();
    let (written, mut writer_ended) = oneshot::channel();
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read_lines(&line_sender))?;
    std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
        // Whoever waited may be gone.
        let _ = written.send(write_lines(output_lines));
    })?;
    tokio::select! {
        () = rpc::serve(kernel, lines, output) => {}
        () = stop => {}
        result = &mut writer_ended => return Ok(served(result.is_ok_and(|written| written.is_ok()))),
    }
    let flushed = tokio::time::timeout(FLUSH_DEADLINE, writer_ended).await;
    Ok(served(matches!(flushed, Ok(Ok(Ok(()))))))
}

fn served(all_written: bool) -> Served {
    if all_written { Served::Done } else { Served::ReaderGone }
}

fn read_lines(lines: &mpsc::Sender<Line>) {
    let mut codec = NdjsonCodec::new(MAX_LINE);
    let mut buffer = BytesMut::new();
    let mut chunk = vec![0; 64 * 1024];
    let mut stdin = std::io::stdin().lock();
    loop {
        let length = match stdin.read(&mut chunk) {
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::error!(%error, "cannot read standard input");
                0
            }
        };
        buffer.extend_from_slice(&chunk[..length]);
        loop {
            let line = if length == 0 { codec.decode_eof(&mut buffer) } else { codec.decode(&mut buffer) };
            match line {
                Ok(Some(line)) => {
                    // The server ended first: nobody wants the rest.
                    if lines.blocking_send(line).is_err() {
                        return;
                    }
                }
                Ok(None) | Err(_) => break,
            }
        }
        if length == 0 {
            return;
        }
    }
}

fn write_lines(mut lines: mpsc::Receiver<String>) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    while let Some(mut line) = lines.blocking_recv() {
        line.push('\n');
        stdout.write_all(line.as_bytes())?;
        while let Ok(mut line) = lines.try_recv() {
            line.push('\n');
            stdout.write_all(line.as_bytes())?;
        }
        stdout.flush()?;
    }
    Ok(())
}
