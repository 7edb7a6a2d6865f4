//! Whole texts of other formats than Kineto's: found, unpacked and numbered in the same way.
//!
//! Knows no format; who asks says which names to take and what a text is.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::blocks::Blocks;
use super::find::{self, By};
use super::gather;
use super::pump::{Failure, Shared};
use super::stream::{Part, Reader, Stream};
use super::{Request, Skipped, rank};
use crate::Error;
use crate::store::{Distributed, Losses, Origin, Trace};

/// How to read documents of one format.
pub struct Format<T> {
    /// Which names of files and members may be it.
    pub wanted: fn(&str) -> bool,
    /// Reads one, or says what it is instead.
    pub read: fn(&[u8]) -> Result<T, String>,
    /// Where its origin and losses are kept.
    pub label: fn(&mut T) -> (&mut Origin, &mut Losses),
}

/// Reads all documents of a format under a path, in the order of names.
///
/// # Errors
/// [`Error::Read`] for what cannot be read; [`Error::Empty`] and [`Error::NotATrace`] for a file
/// that was named and is none; [`Error::NoTraces`] for a folder or an archive without any.
pub fn read<T>(path: &Path, format: &Format<T>) -> Result<Vec<T>, Error> {
    let request = Request { paths: vec![path.to_path_buf()], threads: 1 };
    let found = find::files(&request, format.wanted)?;
    let mut skipped: Vec<Skipped> = found.skipped.into_iter().map(|(_, one)| one).collect();
    let mut documents = Vec::new();
    for unit in &found.units {
        file(&unit.path, unit.by, format, (&mut documents, &mut skipped))?;
    }
    if documents.is_empty() {
        return Err(gather::no_traces(path, &skipped));
    }
    Ok(documents)
}

fn file<T>(
    path: &PathBuf,
    by: By,
    format: &Format<T>,
    (documents, skipped): (&mut Vec<T>, &mut Vec<Skipped>),
) -> Result<(), Error> {
    let never = AtomicBool::new(false);
    let reader = Reader { wanted: format.wanted, cancelled: &never, progress: &|| {} };
    let mut stream = Stream::open(path, Shared::default(), reader).map_err(Error::read(path))?;
    let mut skip = |member: Option<String>, reason: String| {
        skipped.push(Skipped { path: path.clone(), member, reason });
    };
    loop {
        let member = match stream.part() {
            Part::Text(member) => member,
            Part::Skipped(member, reason) => {
                skip(Some(member), reason.to_owned());
                continue;
            }
            Part::Failed(Failure::System(source)) => return Err(Error::read(path)(source)),
            Part::Failed(failure) => {
                let (loss, text) = gather::words(&failure);
                match documents.last_mut() {
                    Some(last) => (format.label)(last).1.count(loss, || text),
                    None => skip(None, text),
                }
                continue;
            }
            Part::Done => return Ok(()),
        };
        let bytes = whole(&mut stream).map_err(Error::read(path))?;
        let failure = stream.finish();
        if let Some(Failure::System(source)) = failure {
            return Err(Error::read(path)(source));
        }
        let is_named = by == By::Name && member.is_none();
        match (format.read)(&bytes) {
            Ok(mut document) => {
                let (origin, losses) = (format.label)(&mut document);
                let text_bytes = bytes.len() as u64;
                *origin = Origin { path: path.clone(), member, text_bytes };
                if let Some(failure) = failure {
                    let (loss, text) = gather::words(&failure);
                    losses.count(loss, || text);
                }
                documents.push(document);
            }
            Err(_) if is_named && bytes.is_empty() && failure.is_none() => {
                return Err(Error::Empty { path: path.clone() });
            }
            Err(reason) if is_named => {
                return Err(Error::NotATrace { path: path.clone(), reason });
            }
            Err(reason) => skip(member, reason),
        }
    }
}

fn whole(stream: &mut Stream<'_>) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut block) = (Vec::new(), Vec::new());
    while stream.next(&mut block)? {
        bytes.extend_from_slice(&block);
    }
    Ok(bytes)
}

/// The rank of each document, and what is doubtful about it, by where it came from and what it
/// says itself.
pub fn number(documents: &[(Origin, Option<u32>)]) -> Vec<(u32, Losses)> {
    let stand_in = |(at, (origin, rank)): (usize, &(Origin, Option<u32>))| {
        let mut trace = Trace { origin: origin.clone(), ..Trace::default() };
        trace.header.distributed = Some(Distributed { rank: *rank, ..Distributed::default() });
        // Numbering sorts; this tells them apart afterwards.
        trace.origin.text_bytes = at as u64;
        trace
    };
    let mut traces: Vec<Trace> = documents.iter().enumerate().map(stand_in).collect();
    rank::assign(&mut traces);
    traces.sort_by_key(|trace| trace.origin.text_bytes);
    traces.into_iter().map(|trace| (trace.rank, trace.losses)).collect()
}
