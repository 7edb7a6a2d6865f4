//! Writes traces to files for other tools, as Kineto JSON or as Perfetto's TrackEvent protobuf.
//!
//! The file name decides the format and the compression. The module of each format encodes the
//! rows.

pub(crate) mod argument;
pub(crate) mod binding;
pub(crate) mod layout;
mod options;
pub(crate) mod original;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

pub use options::{Counter, ExportedEvents, Options, Overlaps, WhichArguments};

use crate::Error;
use crate::file;
use crate::format::timeline::WriteTimeline;
use crate::format::{TIMELINES, kineto};
use crate::merge::Merged;
use crate::packed;

const ZSTD_LEVEL: i32 = 3;

/// Compression of an output file, chosen by the extension of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Writes one file atomically, so that an existing file stays in place until the new one is
/// complete.
///
/// The extensions `.pftrace` and `.perfetto-trace` select Perfetto's protobuf. Any other name
/// selects Kineto JSON. An additional `.gz` or `.zst` compresses the file.
///
/// # Errors
/// [`Error::Write`] if writing fails, and then the file at `path` is unchanged.
pub fn write(path: &Path, merged: &Merged<'_>, options: &Options) -> Result<ExportedEvents, Error> {
    let (format, compression) = form(path);
    let mut written = ExportedEvents::default();
    // Perfetto's writer keeps arguments in a temporary file, which needs a unique name.
    let mut spill = path.as_os_str().to_owned();
    spill.push(format!(".{}.arguments.tmp", std::process::id()));
    let spill = PathBuf::from(spill);
    let fill = |out: &mut dyn Write| {
        written = (format.write)(out, merged, options, &spill)?;
        Ok(())
    };
    file::put(path, |out| compressed(out, compression, fill))?;
    Ok(written)
}

fn form(path: &Path) -> (&'static WriteTimeline, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    // The extension of the compression comes last, so it is removed before the format is decided.
    let (stem, compression) = if let Some(stem) = name.strip_suffix(".gz") {
        (stem, Compression::Gzip)
    } else if let Some(stem) = name.strip_suffix(".zst") {
        (stem, Compression::Zstd)
    } else {
        (name.as_str(), Compression::None)
    };
    let mut formats = TIMELINES.iter().filter_map(|format| format.write);
    let is_named =
        |format: &&WriteTimeline| format.extensions.iter().any(|end| stem.ends_with(end));
    (formats.find(is_named).unwrap_or(&kineto::WRITER), compression)
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
