//! Writes generated rows to text files. [`crate::synthetic`] chooses the columns and the values of
//! the rows.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use data::synthetic::{self, RowLayout, SyntheticConfig, SyntheticReport, WriteProgress, write_to};
use schema::{Bytes, DataConfig};
use trace::file::create_anew;

use crate::Session;
use crate::error::Error;
use crate::progress::{Meter, ProgressUnit};

/// Writes the rows to `path` in the form that `columns` describes. [`crate::synthetic::adapt`] must
/// have adapted `columns` to generated rows.
///
/// # Errors
/// Returns an error if `path` cannot be written. A partial file is removed.
pub fn write(
    config: &SyntheticConfig,
    columns: &DataConfig,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(WriteProgress),
) -> Result<SyntheticReport, Error> {
    let written = write_file(config, columns, path, threads, progress);
    if written.is_err() {
        // The writing error is reported, even if the removal of the file fails too.
        drop(std::fs::remove_file(path));
    }
    written
}

fn write_file(
    config: &SyntheticConfig,
    columns: &DataConfig,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(WriteProgress),
) -> Result<SyntheticReport, Error> {
    let file = create_anew(path).map_err(Error::io(path, "create"))?;
    let skipping = config.layout == RowLayout::Csv && !columns.columns.is_empty();
    let mut out = WithoutHeader { out: BufWriter::with_capacity(1 << 20, file), skipping };
    let report =
        write_to(config, &mut out, threads, progress).map_err(|error| named(error, path))?;
    out.flush().map_err(Error::io(path, "write"))?;
    Ok(report)
}

/// Adds the path of the file to an error of the stream that writes the file.
pub fn named(error: data::Error, path: &Path) -> Error {
    match error {
        data::Error::Io { source, .. } => Error::io(path, "write")(source),
        error => error.into(),
    }
}

/// A writer that drops the first line, which is the header. A job that names its columns reads
/// files without a header.
struct WithoutHeader<W> {
    out: W,
    skipping: bool,
}

impl<W: Write> Write for WithoutHeader<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.skipping {
            return self.out.write(bytes);
        }
        let end = bytes.iter().position(|&byte| byte == b'\n');
        self.skipping = end.is_none();
        Ok(end.map_or(bytes.len(), |end| end + 1))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes generated rows to `out` with a progress bar. Returns a report about the rows, and the
/// elapsed seconds.
///
/// # Errors
/// Returns an error if `out` cannot be written.
pub fn write_with_progress(
    config: &SyntheticConfig,
    out: &Path,
    session: &Session,
) -> Result<(SyntheticReport, f64), Error> {
    let mut meter =
        Meter::start(session.console, "generating", ProgressUnit::Rows, Some(config.rows));
    let report = synthetic::write(config, out, session.threads, &mut |written| {
        meter.advance(written.rows, &Bytes(written.bytes_text).to_string());
    })
    .map_err(|error| named(error, out))?;
    Ok((report, meter.finish()))
}
