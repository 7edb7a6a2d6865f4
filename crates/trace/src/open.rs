//! Reads all traces of a job from paths: finds the files, decompresses and parses them, and assigns
//! ranks.
//!
//! Plain and compressed files, archives, folders and standard input are accepted, and they are
//! detected by their content. The reader of each format decodes the events.

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

pub use event::{TraceRows, arguments, event_texts, selected_arguments};
pub(crate) use find::has_extension;
pub(crate) use gunzip::Gunzip;
pub use request::{JobReading, ReadControl, ReadProgress, ReadRequest, Skipped};

use crate::Error;
use crate::format::blocks::Blocks;
use crate::format::kineto;
use crate::store::{Job, Trace};

/// Reads all traces under the request's paths. The caller neither sees progress nor can cancel.
///
/// # Errors
/// Returns the errors of [`read_with`] except [`Error::Cancelled`].
pub fn read(request: &ReadRequest) -> Result<Job, Error> {
    let never = AtomicBool::new(false);
    let control = ReadControl { progress: &|_| {}, cancelled: &never };
    read_with(request, &control).map(|reading| reading.job)
}

/// Reads all traces under the request's paths, reports progress, and stops if the caller cancels.
///
/// # Errors
/// - [`Error::Read`] if a file cannot be read.
/// - [`Error::Empty`] and [`Error::NotATrace`] if a path names a file that is not a trace.
/// - [`Error::NoTraces`] for a folder or an archive without a trace.
/// - [`Error::Cancelled`] if the caller cancelled.
pub fn read_with(request: &ReadRequest, control: &ReadControl<'_>) -> Result<JobReading, Error> {
    gather::traces(request, control)
}

/// Overrides the ranks of a job. The first entry of `ranks` belongs to the first trace under the
/// request's paths. Within folders and archives, traces are ordered by name.
///
/// # Errors
/// [`Error::Ranks`] if `ranks` has duplicates or does not have one entry per trace.
pub fn assign_ranks(job: &mut Job, request: &ReadRequest, ranks: &[u32]) -> Result<(), Error> {
    rank::give(&mut job.traces, &request.paths, ranks)
}

/// Reads one trace from its JSON text.
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
/// [`Error::NotATrace`] if the text is not a trace.
pub fn parse(text: &[u8]) -> Result<Trace, Error> {
    let mut trace = kineto::read::read(&mut Text(Some(text)), 1).map_err(|problem| {
        let reason = format!("got {} ({})", sniff::describe(&sniff::sniff(text)), problem.reason);
        Error::NotATrace { path: PathBuf::from("text"), reason }
    })?;
    trace.origin.text_bytes = text.len() as u64;
    Ok(trace)
}

/// Describes the content of a text for error messages.
pub(crate) fn looks_like(text: &[u8]) -> String {
    match sniff::sniff(text) {
        sniff::TextKind::Timeline(format) => format!("a {} trace", format.name),
        look => sniff::describe(&look),
    }
}

/// A text in memory, which is delivered as one block.
struct Text<'a>(Option<&'a [u8]>);

impl Blocks for Text<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        let Some(text) = self.0.take() else { return Ok(false) };
        block.extend_from_slice(text);
        Ok(!text.is_empty())
    }
}
