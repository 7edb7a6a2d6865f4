//! Perfetto files: those of ours are read back, others are refused by name.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::document::whole;
use super::find::{self, By};
use super::look::{self, Look};
use super::pump::{Failure, Shared};
use super::request::Skipped;
use super::stream::{Part, Reader, Stream};
use crate::Error;
use crate::format::perfetto::read::{self, Writer};
use crate::store::{Encoding, Origin, Trace};

/// A file, or a member of an archive.
pub struct File<'a> {
    /// Its path.
    pub path: &'a Path,
    /// The member.
    pub member: Option<String>,
    /// How it came to be read.
    pub by: By,
    /// Who wrote it.
    pub writer: Writer,
}

/// Adds the traces of the current text. One that was not named is left out: beside the traces that
/// it was made from it would count them twice.
pub fn add(
    stream: &mut Stream<'_>,
    traces: &mut Vec<Trace>,
    skipped: &mut Vec<Skipped>,
    file: File<'_>,
) -> Result<(), Error> {
    let path = file.path.to_path_buf();
    if file.by == By::Folder {
        let reason = "a Perfetto trace, which is read only by its own name".to_owned();
        skipped.push(Skipped { path, member: file.member, reason, is_lost: false });
        return Ok(());
    }
    let writer = match file.writer {
        Writer::Rowmill => None,
        Writer::OtherRowmill => Some("a later version of rowmill"),
        Writer::Foreign => Some("another program, or an earlier rowmill,"),
    };
    if let Some(writer) = writer {
        return Err(Error::ForeignPerfetto { path, writer });
    }
    let bytes = whole(stream).map_err(Error::read(file.path))?;
    let failure = stream.finish();
    let damaged = |reason: String| Error::NotATrace {
        path: path.clone(),
        reason: format!("got a damaged Perfetto trace: {reason}"),
    };
    match failure {
        Some(Failure::System(source)) => return Err(Error::Read { path, source }),
        Some(failure @ (Failure::Ended(_) | Failure::Damaged(_))) => {
            return Err(damaged(failure.loss().1));
        }
        _ => {}
    }
    let found = read::read(&bytes).map_err(damaged)?;
    traces.extend(found.into_iter().map(|mut trace| {
        let text_bytes = bytes.len() as u64;
        let (path, member) = (path.clone(), file.member.clone());
        trace.origin = Origin { path, member, text_bytes, encoding: Encoding::Packets };
        trace
    }));
    Ok(())
}

/// The bytes a trace was read from, if they are a Perfetto file.
pub fn bytes_of(origin: &Origin) -> Result<Option<Vec<u8>>, Error> {
    let path: &PathBuf = &origin.path;
    let never = AtomicBool::new(false);
    let reader = Reader { wanted: find::may_be_trace, cancelled: &never, progress: &|| {} };
    let mut stream = Stream::open(path, Shared::default(), reader).map_err(Error::read(path))?;
    loop {
        match stream.part() {
            Part::Text(member) if member == origin.member => {
                let is_ours = look::of(stream.head()) == Look::Perfetto(Writer::Rowmill);
                let bytes = is_ours.then(|| whole(&mut stream)).transpose();
                return bytes.map_err(Error::read(path));
            }
            Part::Done => return Ok(None),
            Part::Text(_) | Part::Skipped(..) | Part::Failed(_) => {}
        }
    }
}
