//! Paths to execution traces: finds the files, decompresses, reads, numbers the ranks.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{ExecutionTrace, read_text};
use crate::Error;

/// Reads all execution traces of a file, an archive or a folder, ordered by rank.
///
/// # Errors
/// [`Error::Read`] for a file that cannot be read, [`Error::NotATrace`] for a single file that is
/// no execution trace, [`Error::NoTraces`] for a folder or an archive without any.
pub fn read(path: &Path) -> Result<Vec<ExecutionTrace>, Error> {
    let failed = |source| Error::Read { path: path.to_path_buf(), source };
    let mut traces = Vec::new();
    let mut count = 0;
    for (member, text) in texts(path, ".json").map_err(failed)? {
        count += 1;
        if let Ok(mut trace) = read_text(&text) {
            trace.origin.path = path.to_path_buf();
            trace.origin.member = member;
            trace.rank = traces.len() as u32;
            traces.push(trace);
        }
    }
    if traces.is_empty() {
        let reason = format!("found none among {count} files");
        return Err(Error::NotATrace { path: path.to_path_buf(), reason });
    }
    Ok(traces)
}

pub fn texts(path: &Path, suffix: &str) -> io::Result<Vec<(Option<String>, Vec<u8>)>> {
    let name = path.to_string_lossy().into_owned();
    let mut bytes = Vec::new();
    let mut file = File::open(path)?;
    if name.ends_with(".gz") || name.ends_with(".tgz") {
        flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes)?;
    } else {
        file.read_to_end(&mut bytes)?;
    }
    if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        let mut found = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries()? {
            let mut entry = entry?;
            let member = entry.path()?.to_string_lossy().into_owned();
            if member.ends_with(suffix) && !member.contains("/._") && !member.starts_with("._") {
                let mut text = Vec::new();
                entry.read_to_end(&mut text)?;
                found.push((Some(member), text));
            }
        }
        found.sort();
        return Ok(found);
    }
    Ok(vec![(None, bytes)])
}
