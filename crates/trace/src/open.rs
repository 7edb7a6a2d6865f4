//! Paths to a job: finds the trace files under them, unpacks, reads and numbers them.
//!
//! Takes files, compressed or not, archives, folders and standard input, and recognises them by
//! content. Knows nothing of what an event says: that is the format's reader.

mod argument;
mod capture;
pub(crate) mod document;
mod event;
mod find;
mod gather;
mod gunzip;
mod pump;
mod rank;
mod request;
mod sniff;
mod stream;
mod whole_file;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

pub use event::{TraceRows, arguments, arguments_of, event_texts};
pub(crate) use find::has_ending;
pub(crate) use gunzip::Gunzip;
pub use request::{JobReading, ReadControl, ReadProgress, ReadRequest, Skipped};

use crate::Error;
use crate::format::blocks::Blocks;
use crate::format::kineto;
use crate::store::{Job, Trace};

/// Reads all traces under the request's paths.
///
/// # Errors
/// As [`read_with`], never [`Error::Cancelled`].
pub fn read(request: &ReadRequest) -> Result<Job, Error> {
    let never = AtomicBool::new(false);
    let control = ReadControl { progress: &|_| {}, cancelled: &never };
    read_with(request, &control).map(|reading| reading.job)
}

/// Reads all traces under the request's paths, telling how far it is.
///
/// # Errors
/// [`Error::Read`] for what cannot be read; [`Error::Empty`] and [`Error::NotATrace`] for a file
/// that was named and is none; [`Error::NoTraces`] for a folder or an archive without any;
/// [`Error::Cancelled`].
pub fn read_with(request: &ReadRequest, control: &ReadControl<'_>) -> Result<JobReading, Error> {
    gather::traces(request, control)
}

/// Numbers the traces of a reading anew: the first of `ranks` for the first trace under the
/// request's paths, folders and archives in the order of names.
///
/// # Errors
/// [`Error::Ranks`] if they are not one for each trace, all different.
pub fn assign_ranks(job: &mut Job, request: &ReadRequest, ranks: &[u32]) -> Result<(), Error> {
    rank::give(&mut job.traces, &request.paths, ranks)
}

/// Reads one trace from its text.
///
/// ```
/// let text = r#"{"traceEvents": [
///     {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 2.5}
/// ]}"#;
/// let trace = trace::open::parse(text.as_bytes())?;
/// assert_eq!((trace.name(0), trace.slices.duration[0]), ("gemm", 2500));
/// # Ok::<(), trace::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotATrace`] if the text is none.
pub fn parse(text: &[u8]) -> Result<Trace, Error> {
    let mut trace = kineto::read::read(&mut Text(Some(text)), 1).map_err(|problem| {
        let reason = format!("got {} ({})", sniff::describe(&sniff::sniff(text)), problem.reason);
        Error::NotATrace { path: PathBuf::from("text"), reason }
    })?;
    trace.origin.text_bytes = text.len() as u64;
    Ok(trace)
}

/// What a text looks like, in words.
pub(crate) fn looks_like(text: &[u8]) -> String {
    match sniff::sniff(text) {
        sniff::TextKind::Timeline(format) => format!("a {} trace", format.name),
        look => sniff::describe(&look),
    }
}

/// A text in memory, as one block.
struct Text<'a>(Option<&'a [u8]>);

impl Blocks for Text<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        let Some(text) = self.0.take() else { return Ok(false) };
        block.extend_from_slice(text);
        Ok(!text.is_empty())
    }
}
