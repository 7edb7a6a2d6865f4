//! Writes the exchanges between ranks on streams of their own, as kernels and copies without a
//! launch: messages travel while the thread pool computes.

use std::io::{self, Write};

use schema::Nanos;
use serde::Serialize;

use super::row::{DEVICE, RowWriter, STREAM, Slice, Track};
use crate::record::{ExchangeSpan, ExchangeWork};

/// Name of the stream of all copies, which one thread makes.
const COPIES: &str = "copies of messages";

/// A stream of exchanges of one kind. Exchanges of a kind that overlap need several.
struct ExchangeStream {
    /// Name of the stage without the number of a bucket, or [`COPIES`].
    name: &'static str,
    number: u64,
    /// End of the last exchange.
    free: Nanos,
}

/// Arguments of the row of an exchange.
#[derive(Serialize)]
struct ExchangeArguments {
    device: u32,
    stream: u64,
    #[serde(rename = "Stage")]
    stage: String,
}

/// Writes the exchanges, and the names of their streams.
///
/// # Errors
/// Returns the errors of writing.
pub fn write<W: Write>(rows: &mut RowWriter<'_, W>, exchanges: &[ExchangeSpan]) -> io::Result<()> {
    let mut by_start: Vec<&ExchangeSpan> = exchanges.iter().collect();
    by_start.sort_by_key(|exchange| exchange.start);
    let mut streams: Vec<ExchangeStream> = Vec::new();
    for ExchangeSpan { work, stage, start, end } in by_start {
        let kind = match work {
            ExchangeWork::Messages => stage.name(),
            ExchangeWork::Copy => COPIES,
        };
        let is_free = |stream: &ExchangeStream| stream.name == kind && stream.free <= *start;
        let at = streams.iter().position(is_free).unwrap_or(streams.len());
        if at == streams.len() {
            let number = STREAM + 1 + at as u64;
            streams.push(ExchangeStream { name: kind, number, free: *end });
            rows.name_thread(track(number), &format!("stream {number}: {kind}"))?;
        }
        let stream = &mut streams[at];
        stream.free = *end;
        let arguments =
            ExchangeArguments { device: DEVICE, stream: stream.number, stage: stage.to_string() };
        let (category, name) = match work {
            // Other tools recognize communication by the word `ncclKernel`, and ours by the words
            // before the parenthesis.
            ExchangeWork::Messages => {
                ("kernel", format!("rowmill_sendrecv {stage} (in place of ncclKernel)"))
            }
            ExchangeWork::Copy => ("gpu_memcpy", format!("rowmill_copy {stage}")),
        };
        let slice =
            Slice { category, name: &name, track: track(stream.number), start: *start, end: *end };
        rows.slice(slice, &arguments)?;
    }
    Ok(())
}

fn track(stream: u64) -> Track {
    Track { pid: DEVICE, tid: stream }
}
