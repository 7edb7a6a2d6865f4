//! Reads timelines in formats that need the complete file. Damaged files and files written by other
//! programs are rejected.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::document::read_to_end;
use super::find;
use super::pump::{EarlyEnd, PumpShared};
use super::sniff::{self, TextKind};
use super::stream::{StreamPart, StreamReader, TextStream};
use crate::Error;
use crate::format::timeline::{ReadTimeline, Timeline, WholeFile};
use crate::store::{Encoding, Trace, TraceOrigin};

/// A text to be read as a whole: a file, or a member of an archive.
pub struct WholeText<'a> {
    pub path: &'a Path,
    pub member: Option<String>,
    pub format: &'a Timeline,
    pub reader: &'a WholeFile,
}

/// Reads the traces in the current text of the stream.
pub fn read(stream: &mut TextStream<'_>, file: WholeText<'_>) -> Result<Vec<Trace>, Error> {
    let path = file.path.to_path_buf();
    let format = file.format.name;
    // The writer is known from the first block, so a large foreign file is rejected without reading
    // it.
    if let Some(writer) = (file.reader.foreign_writer)(stream.head()) {
        return Err(Error::ForeignTrace { path, format, writer });
    }
    let bytes = read_to_end(stream).map_err(Error::read(file.path))?;
    let failure = stream.finish();
    let damaged = |reason: String| Error::NotATrace {
        path: path.clone(),
        reason: format!("got a damaged {format} trace: {reason}"),
    };
    match failure {
        Some(EarlyEnd::System(source)) => return Err(Error::Read { path, source }),
        Some(failure @ (EarlyEnd::Ended(_) | EarlyEnd::Damaged(_))) => {
            return Err(damaged(failure.loss().1));
        }
        _ => {}
    }
    let mut traces = (file.reader.read)(&bytes).map_err(damaged)?;
    for trace in &mut traces {
        let text_bytes = bytes.len() as u64;
        let (path, member) = (path.clone(), file.member.clone());
        trace.origin = TraceOrigin { path, member, text_bytes, encoding: Encoding::Whole };
    }
    Ok(traces)
}

/// The bytes of a file, and the functions of its format.
pub struct Reread {
    pub reader: &'static WholeFile,
    pub bytes: Vec<u8>,
}

/// Reads the source file of a trace again. Returns `None` if the file's format has changed.
pub fn reread(origin: &TraceOrigin) -> Result<Option<Reread>, Error> {
    let path: &PathBuf = &origin.path;
    let never = AtomicBool::new(false);
    let reader =
        StreamReader { wanted: find::may_be_timeline, cancelled: &never, progress: &|| {} };
    let mut stream =
        TextStream::open(path, PumpShared::default(), reader).map_err(Error::read(path))?;
    loop {
        match stream.part() {
            StreamPart::Text(member) if member == origin.member => {
                let TextKind::Timeline(format) = sniff::sniff(stream.head()) else {
                    return Ok(None);
                };
                let ReadTimeline::Whole(reader) = &format.read else { return Ok(None) };
                if (reader.foreign_writer)(stream.head()).is_some() {
                    return Ok(None);
                }
                let bytes = read_to_end(&mut stream).map_err(Error::read(path))?;
                return Ok(Some(Reread { reader, bytes }));
            }
            StreamPart::Done => return Ok(None),
            StreamPart::Text(_) | StreamPart::Skipped(..) | StreamPart::Failed(_) => {}
        }
    }
}
