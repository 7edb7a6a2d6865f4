//! Timelines that are read as whole files: a damaged one is refused, one of another writer is
//! refused by name.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::document::whole;
use super::find;
use super::look::{self, Look};
use super::pump::{Failure, Shared};
use super::stream::{Part, Reader, Stream};
use crate::Error;
use crate::format::timeline::{ReadTimeline, Timeline, WholeFile};
use crate::store::{Encoding, Origin, Trace};

/// A file, or a member of an archive.
pub struct File<'a> {
    /// Its path.
    pub path: &'a Path,
    /// The member.
    pub member: Option<String>,
    /// Its format.
    pub format: &'a Timeline,
    /// How that is read.
    pub reader: &'a WholeFile,
}

/// The traces of the current text.
pub fn read(stream: &mut Stream<'_>, file: File<'_>) -> Result<Vec<Trace>, Error> {
    let path = file.path.to_path_buf();
    let format = file.format.name;
    if let Some(writer) = (file.reader.foreign_writer)(stream.head()) {
        return Err(Error::ForeignTrace { path, format, writer });
    }
    let bytes = whole(stream).map_err(Error::read(file.path))?;
    let failure = stream.finish();
    let damaged = |reason: String| Error::NotATrace {
        path: path.clone(),
        reason: format!("got a damaged {format} trace: {reason}"),
    };
    match failure {
        Some(Failure::System(source)) => return Err(Error::Read { path, source }),
        Some(failure @ (Failure::Ended(_) | Failure::Damaged(_))) => {
            return Err(damaged(failure.loss().1));
        }
        _ => {}
    }
    let mut traces = (file.reader.read)(&bytes).map_err(damaged)?;
    for trace in &mut traces {
        let text_bytes = bytes.len() as u64;
        let (path, member) = (path.clone(), file.member.clone());
        trace.origin = Origin { path, member, text_bytes, encoding: Encoding::Whole };
    }
    Ok(traces)
}

/// The bytes of a file, and how they are read.
pub struct Reread {
    /// How.
    pub reader: &'static WholeFile,
    /// All of them.
    pub bytes: Vec<u8>,
}

/// What a trace was read from, if that still is such a file.
pub fn bytes_of(origin: &Origin) -> Result<Option<Reread>, Error> {
    let path: &PathBuf = &origin.path;
    let never = AtomicBool::new(false);
    let reader = Reader { wanted: find::may_be_timeline, cancelled: &never, progress: &|| {} };
    let mut stream = Stream::open(path, Shared::default(), reader).map_err(Error::read(path))?;
    loop {
        match stream.part() {
            Part::Text(member) if member == origin.member => {
                let Look::Timeline(format) = look::of(stream.head()) else { return Ok(None) };
                let ReadTimeline::Whole(reader) = &format.read else { return Ok(None) };
                if (reader.foreign_writer)(stream.head()).is_some() {
                    return Ok(None);
                }
                let bytes = whole(&mut stream).map_err(Error::read(path))?;
                return Ok(Some(Reread { reader, bytes }));
            }
            Part::Done => return Ok(None),
            Part::Text(_) | Part::Skipped(..) | Part::Failed(_) => {}
        }
    }
}
