//! Traces to files that other tools open: Kineto JSON or Perfetto's TrackEvent protobuf.
//!
//! The file's name decides format and compression. Knows how a file is filled, not what its rows
//! look like.

pub(crate) mod argument;
pub(crate) mod binding;
pub(crate) mod layout;
pub(crate) mod original;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::file;
use crate::format::{kineto, perfetto};
use crate::merge::Merged;
use crate::packed;

/// Zstandard's effort.
const ZSTD_LEVEL: i32 = 3;

/// What a file is to hold besides the traces, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What becomes of slices that overlap others of their track.
    pub overlaps: Overlaps,
    /// Which arguments are written.
    pub arguments: Arguments,
    /// Counters that were computed from the traces.
    pub counters: Vec<Counter>,
}

/// What becomes of slices that overlap others of their track without nesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlaps {
    /// They get lines of their own, "stream 7 (lane 2)": viewers drop them otherwise.
    Lanes,
    /// They stay on their track, as in the file that was read.
    Keep,
}

/// Which arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// All of the file that was read, which is read once more. Where that fails, the typed ones.
    All,
    /// Those the columns of a trace hold.
    Typed,
}

/// A counter that was computed: queue length, exposed communication.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// Whose it is.
    pub rank: u32,
    /// Its name.
    pub name: String,
    /// Its unit; may be empty.
    pub unit: String,
    /// Absolute nanoseconds on the rank's own clock, and the value from then on.
    pub samples: Vec<(i64, f64)>,
}

/// What a written file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Events with a duration.
    pub slices: u64,
    /// Of those, how many moved to a lane of their own.
    pub slices_moved: u64,
    /// Of those, how many have their typed arguments only: their text could not be read again.
    pub slices_typed_only: u64,
    /// Ends of arrows.
    pub flows: u64,
    /// Samples of counters.
    pub counters: u64,
    /// Points in time, allocations included.
    pub instants: u64,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Kineto,
    Perfetto,
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Writes one file; what stood there before stays until the new one is whole.
///
/// `.pftrace` and `.perfetto-trace` get Perfetto's protobuf, every other name Kineto JSON; `.gz`
/// and `.zst` behind it compress.
///
/// # Errors
/// [`Error::Write`]; no file of that name appears or changes.
pub fn write(path: &Path, merged: &Merged<'_>, options: &Options) -> Result<Written, Error> {
    let (format, compression) = form(path);
    let mut written = Written::default();
    let mut spill = path.as_os_str().to_owned();
    spill.push(format!(".{}.arguments.tmp", std::process::id()));
    let spill = PathBuf::from(spill);
    let fill = |out: &mut dyn Write| {
        written = match format {
            Format::Kineto => kineto::export::write(out, merged, options)?,
            Format::Perfetto => perfetto::write(out, merged, options, &spill)?,
        };
        Ok(())
    };
    file::put(path, |out| compressed(out, compression, fill))?;
    Ok(written)
}

fn form(path: &Path) -> (Format, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (stem, compression) = if let Some(stem) = name.strip_suffix(".gz") {
        (stem, Compression::Gzip)
    } else if let Some(stem) = name.strip_suffix(".zst") {
        (stem, Compression::Zstd)
    } else {
        (name.as_str(), Compression::None)
    };
    let is_perfetto = stem.ends_with(".pftrace") || stem.ends_with(".perfetto-trace");
    (if is_perfetto { Format::Perfetto } else { Format::Kineto }, compression)
}

fn compressed(
    out: &mut BufWriter<File>,
    compression: Compression,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    match compression {
        Compression::None => fill(out),
        Compression::Gzip => packed::gzip(out, fill).map(drop),
        Compression::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
            fill(&mut encoder)?;
            encoder.finish().map(drop)
        }
    }
}

#[cfg(test)]
mod tests;
