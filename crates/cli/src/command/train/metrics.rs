//! Writes the metrics of a run to `RUN/metrics.jsonl`, with one JSON object per line, and to an
//! event file that TensorBoard reads.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use trace::file::create_anew;

use super::tensorboard::TensorBoardWriter;

/// Writes the metrics of one run. If a file cannot be written, the run continues without metrics.
pub struct Metrics {
    path: PathBuf,
    file: Option<File>,
    events: TensorBoardWriter,
    /// The reason why the file cannot be written, until [`Metrics::take_failure`] returns it.
    failed: Option<io::Error>,
}

impl Metrics {
    /// Creates the writer for the run in `folder`. No file is opened yet.
    pub fn for_run(folder: &Path) -> Self {
        let (path, events) = (folder.join("metrics.jsonl"), TensorBoardWriter::for_run(folder));
        Self { path, file: None, events, failed: None }
    }

    /// The path of the metrics file, RUN/metrics.jsonl.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the files at `step`. If the run was resumed from an earlier checkpoint, the lines of
    /// later steps are removed.
    pub fn begin(&mut self, step: u64) {
        match self.read_until(step).and_then(|kept| self.open(&kept)) {
            Ok(file) => self.file = Some(file),
            Err(error) => self.failed = Some(error),
        }
    }

    /// Reads the lines of the existing file that belong to steps up to `step`.
    fn read_until(&self, step: u64) -> io::Result<String> {
        let mut kept = String::new();
        if step == 0 || !self.path.exists() {
            return Ok(kept);
        }
        for line in BufReader::new(File::open(&self.path)?).lines() {
            let line = line?;
            // A killed process may leave its last line half written, so a line that is not valid
            // JSON is skipped.
            let value: Option<Value> = serde_json::from_str(&line).ok();
            let line_step =
                value.as_ref().and_then(|value| value.get("step")).and_then(Value::as_u64);
            if line_step.is_some_and(|line_step| line_step <= step) {
                kept += &line;
                kept.push('\n');
            }
        }
        Ok(kept)
    }

    fn open(&mut self, kept: &str) -> io::Result<File> {
        self.events.begin(kept)?;
        // The new file is written beside the old one and then renamed, so that a crash loses no
        // metrics.
        let mut partial = self.path.clone().into_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let mut file = create_anew(Path::new(&partial))?;
        file.write_all(kept.as_bytes())?;
        std::fs::rename(&partial, &self.path)?;
        OpenOptions::new().append(true).open(&self.path)
    }

    /// Appends one JSON line. After a failed write, nothing more is written.
    pub fn write(&mut self, line: &impl Serialize) {
        let Some(file) = &mut self.file else { return };
        let text = serde_json::to_vec(line).map(|mut text| {
            text.push(b'\n');
            text
        });
        let written = text.map_err(io::Error::from).and_then(|text| {
            file.write_all(&text)?;
            self.events.write(&serde_json::from_slice(&text)?)
        });
        if let Err(error) = written {
            self.file = None;
            self.failed = Some(error);
        }
    }

    /// Returns the reason of a failed write. Further calls return `None`.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }
}
