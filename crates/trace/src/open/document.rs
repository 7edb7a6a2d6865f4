//! Reads complete documents of formats that are not timelines, such as execution traces. Files are
//! found, decompressed and numbered in the same way as timelines.
//!
//! The caller provides the format: which file names to consider, and how to parse a text.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::find::{self, By};
use super::pump::{EarlyEnd, PumpShared};
use super::rank;
use super::request::{ReadRequest, Skipped, no_traces};
use super::stream::{StreamPart, StreamReader, TextStream};
use crate::Error;
use crate::format::blocks::Blocks;
use crate::store::{Distributed, Losses, Trace, TraceOrigin};

/// The functions that read documents of one format.
pub struct DocumentFormat<T> {
    /// Whether a file or archive member with this name may be a document of the format.
    pub wanted: fn(&str) -> bool,
    /// Parses a document, or describes what the text contains instead.
    pub read: fn(&[u8]) -> Result<T, String>,
    /// Gives access to the document's origin and losses, which are filled in after parsing.
    pub label: fn(&mut T) -> (&mut TraceOrigin, &mut Losses),
}

/// Reads all documents of a format under a path, in the order of their names.
///
/// # Errors
/// - [`Error::Read`] if a file cannot be read.
/// - [`Error::Empty`] and [`Error::NotATrace`] if `path` names a file of another format.
/// - [`Error::NoTraces`] for a folder or an archive without a document.
pub fn read<T>(path: &Path, format: &DocumentFormat<T>) -> Result<Vec<T>, Error> {
    let request = ReadRequest { paths: vec![path.to_path_buf()], threads: 1 };
    let files = find::files(&request, format.wanted)?;
    let skipped = files.skipped.into_iter().map(|(_, one)| one).collect();
    let mut reading = Documents { format, documents: Vec::new(), skipped };
    for unit in &files.units {
        reading.file(&unit.path, unit.by)?;
    }
    if reading.documents.is_empty() {
        return Err(no_traces(path, &reading.skipped));
    }
    Ok(reading.documents)
}

/// The documents that were read and the files that were skipped, up to the current file.
struct Documents<'a, T> {
    format: &'a DocumentFormat<T>,
    documents: Vec<T>,
    skipped: Vec<Skipped>,
}

impl<T> Documents<'_, T> {
    fn file(&mut self, path: &Path, by: By) -> Result<(), Error> {
        let never = AtomicBool::new(false);
        let wanted = self.format.wanted;
        let reader = StreamReader { wanted, cancelled: &never, progress: &|| {} };
        let mut stream =
            TextStream::open(path, PumpShared::default(), reader).map_err(Error::read(path))?;
        loop {
            match stream.part() {
                StreamPart::Text(member) => {
                    let bytes = read_to_end(&mut stream).map_err(Error::read(path))?;
                    // A truncated text may still be parsed, so the truncation becomes a loss
                    // instead of an error.
                    let failure = stream.finish();
                    if let Some(EarlyEnd::System(source)) = failure {
                        return Err(Error::read(path)(source));
                    }
                    // A member of an archive was not named by the user, so another format is not an
                    // error.
                    let by = if member.is_some() { By::Folder } else { by };
                    let text_bytes = bytes.len() as u64;
                    let path = path.to_path_buf();
                    let origin = TraceOrigin { path, member, text_bytes, ..TraceOrigin::default() };
                    self.text(&bytes, origin, by, failure)?;
                }
                StreamPart::Skipped(member, reason) => {
                    self.skip(path, Some(member), reason.to_owned());
                }
                StreamPart::Failed(EarlyEnd::System(source)) => {
                    return Err(Error::read(path)(source));
                }
                StreamPart::Failed(failure) => {
                    let (loss, text) = failure.loss();
                    // Damage between members may have hidden documents, so the last one read
                    // reports it.
                    match self.documents.last_mut() {
                        Some(last) => (self.format.label)(last).1.count(loss, || text),
                        None => self.skip(path, None, text),
                    }
                }
                StreamPart::Done => return Ok(()),
            }
        }
    }

    fn text(
        &mut self,
        bytes: &[u8],
        origin: TraceOrigin,
        by: By,
        failure: Option<EarlyEnd>,
    ) -> Result<(), Error> {
        let is_empty = bytes.is_empty() && failure.is_none();
        match ((self.format.read)(bytes), by) {
            (Ok(mut document), _) => {
                let (place, losses) = (self.format.label)(&mut document);
                *place = origin;
                if let Some(failure) = failure {
                    let (loss, text) = failure.loss();
                    losses.count(loss, || text);
                }
                self.documents.push(document);
            }
            (Err(_), By::Name) if is_empty => return Err(Error::Empty { path: origin.path }),
            (Err(reason), By::Name) => {
                return Err(Error::NotATrace { path: origin.path, reason });
            }
            (Err(reason), By::Folder) => self.skip(&origin.path, origin.member, reason),
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, member: Option<String>, reason: String) {
        self.skipped.push(Skipped { path: path.to_path_buf(), member, reason, is_lost: false });
    }
}

/// Reads the rest of the current text into memory.
pub fn read_to_end(stream: &mut TextStream<'_>) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut block) = (Vec::new(), Vec::new());
    while stream.next(&mut block)? {
        bytes.extend_from_slice(&block);
    }
    Ok(bytes)
}

/// Assigns a rank to each document, from its origin and the rank that it claims. The losses list
/// the documents whose rank is doubtful.
pub fn assign_ranks(documents: &[(TraceOrigin, Option<u32>)]) -> Vec<(u32, Losses)> {
    let stand_in = |(at, (origin, rank)): (usize, &(TraceOrigin, Option<u32>))| {
        let mut trace = Trace { origin: origin.clone(), ..Trace::default() };
        trace.header.distributed = Some(Distributed { rank: *rank, ..Distributed::default() });
        // Assigning ranks sorts the traces, so `text_bytes` temporarily holds the original index.
        trace.origin.text_bytes = at as u64;
        trace
    };
    let mut traces: Vec<Trace> = documents.iter().enumerate().map(stand_in).collect();
    rank::assign(&mut traces);
    traces.sort_by_key(|trace| trace.origin.text_bytes);
    traces.into_iter().map(|trace| (trace.rank, trace.losses)).collect()
}
