//! Writes rows to a dataset folder. Row groups are encoded on several threads and appended in
//! order.
//!
//! The folder is built under a temporary name and renamed when complete, so that an interrupted
//! preparation never looks like a dataset. `resume` continues an interrupted one.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use ::parquet::errors::ParquetError;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::dataset::Dataset;
use crate::dataset::fitted::{Fitted, FittedDense};
use crate::dataset::manifest::{CategoricalEntry, DatasetColumns, DatasetPart, Manifest};
use crate::dataset::part::{Encoded, Encoder, PartWriter};
use crate::dataset::prepared_rows::PreparedRows;
use crate::error::Error;
use crate::loss::Losses;
use crate::prepare::resume::StagingFolder;
use crate::scan::resume_point::ResumePoint;

/// Number of row groups per file. An interrupted preparation resumes after the last complete file.
const GROUPS_PER_PART: usize = 64;

/// Layout of a dataset, and the number of encoding threads.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// Number of rows per row group, at least 1.
    pub row_group_rows: usize,
    pub threads: usize,
}

/// Largest number of row groups that are being filled, queued or encoded at the same time. Encoded
/// groups are much smaller.
pub(crate) fn groups_in_flight(threads: usize) -> usize {
    threads + 2
}

/// A row group to encode, and the channel for its result.
type EncodeTask = (PreparedRows, Sender<Result<Encoded, ParquetError>>);

/// Writes one dataset, row group by row group. [`Self::finish`] makes it visible; a dropped writer
/// leaves nothing, or state to resume from.
pub struct DatasetWriter {
    out: PathBuf,
    staging: Option<StagingFolder>,
    /// Number of rows still to be pushed that finished parts already contain.
    skip: u64,
    /// Resume points of rows that are not yet in finished parts, preceded by the last resume point
    /// before these rows.
    marks: VecDeque<ResumePoint>,
    columns: DatasetColumns,
    options: WriterOptions,
    group: PreparedRows,
    jobs: Option<Sender<EncodeTask>>,
    workers: Vec<JoinHandle<()>>,
    pending: VecDeque<Receiver<Result<Encoded, ParquetError>>>,
    part: Option<(PartWriter, DatasetPart, usize)>,
    parts: Vec<DatasetPart>,
}

/// Facts about a dataset that are recorded in its manifest beside the rows.
pub struct DatasetNotes {
    /// Paths or URLs as the user gave them.
    pub inputs: Vec<String>,
    pub fitted: Fitted,
    pub losses: Losses,
    /// Number of rows at the end that a split by time holds out.
    pub held_out: Option<u64>,
    pub validation: Option<u64>,
    /// Report of the generator, for synthetic rows.
    pub generator: Option<serde_json::Value>,
}

impl DatasetWriter {
    /// Starts a dataset at `out` with the columns of `fitted`; `is_list` tells which categorical
    /// columns hold lists.
    ///
    /// # Errors
    /// Returns [`Error::OutExists`], [`Error::Write`], or [`Error::Config`] if row groups would
    /// have no rows.
    pub fn create(
        out: &Path,
        fitted: &Fitted,
        is_list: &[bool],
        options: WriterOptions,
    ) -> Result<Self, Error> {
        check(out, options)?;
        Self::resume(out, StagingFolder::anew(out)?, fitted, is_list, options)
    }

    /// Like [`Self::create`], in a folder that may already have parts. Rows from its resume point
    /// on are pushed again.
    pub(crate) fn resume(
        out: &Path,
        staging: StagingFolder,
        fitted: &Fitted,
        is_list: &[bool],
        options: WriterOptions,
    ) -> Result<Self, Error> {
        check(out, options)?;
        // `components` drops a trailing slash of the path, which `rename` would not accept.
        let out: PathBuf = out.components().collect();
        let parts = staging.parts().to_vec();
        let entries = fitted.categorical.iter().zip(is_list);
        let columns = DatasetColumns {
            dense: fitted.dense.iter().map(FittedDense::name).collect(),
            categorical: entries
                .map(|(c, &is_list)| {
                    let name = c.column.clone();
                    CategoricalEntry { name, is_list, unsigned: false }
                })
                .collect(),
        };
        let (jobs, workers) =
            start_encoders(&columns, options.threads).map_err(Error::parquet(&out))?;
        Ok(Self {
            out,
            // Reading resumes at a line start before the end of the last part, so some rows are
            // pushed again.
            skip: parts.iter().map(|part| part.rows).sum::<u64>()
                - staging.resume_point().map_or(0, ResumePoint::rows_before),
            marks: staging.resume_point().cloned().into_iter().collect(),
            staging: Some(staging),
            group: PreparedRows::empty(columns.dense.len(), is_list),
            columns,
            options,
            jobs: Some(jobs),
            workers,
            pending: VecDeque::new(),
            part: None,
            parts,
        })
    }

    /// Records the position in the inputs of the rows that are pushed from now on.
    pub(crate) fn note_resume_point(&mut self, mark: ResumePoint) {
        self.marks.push_back(mark);
    }

    /// Appends rows, which must have the columns of this dataset.
    ///
    /// # Errors
    /// Returns [`Error::Write`] or [`Error::Parquet`].
    pub fn push(&mut self, rows: &PreparedRows) -> Result<(), Error> {
        let mut start = self.skip.min(rows.len() as u64) as usize;
        self.skip -= start as u64;
        while start < rows.len() {
            let room = self.options.row_group_rows - self.group.len();
            let end = rows.len().min(start + room);
            self.group.extend(rows, start..end);
            start = end;
            if self.group.len() == self.options.row_group_rows {
                self.submit()?;
            }
        }
        Ok(())
    }

    /// Writes the remaining rows and the manifest, and moves the folder to its final place.
    ///
    /// # Errors
    /// Returns [`Error::Write`] or [`Error::Parquet`].
    pub fn finish(mut self, record: DatasetNotes) -> Result<Dataset, Error> {
        if !self.group.is_empty() {
            self.submit()?;
        }
        while !self.pending.is_empty() {
            self.append_next()?;
        }
        self.close_part()?;
        for (column, count) in self.columns.categorical.iter_mut().zip(&record.losses.ids) {
            // The sign of ids is known only after all rows, because large ids may first appear at
            // the end.
            column.unsigned = count.large > 0;
        }
        let manifest = Manifest {
            version: Manifest::VERSION,
            rows: self.parts.iter().map(|part| part.rows).sum(),
            row_group_rows: self.options.row_group_rows as u64,
            columns: std::mem::take(&mut self.columns),
            parts: std::mem::take(&mut self.parts),
            inputs: record.inputs,
            fitted: record.fitted,
            losses: record.losses,
            held_out: record.held_out,
            validation: record.validation,
            generator: record.generator,
        };
        if let Some(staging) = self.staging.take() {
            manifest.write(staging.folder())?;
            staging.finish(&self.out)?;
        }
        Dataset::open(&self.out)
    }

    fn submit(&mut self) -> Result<(), Error> {
        let lists: Vec<bool> = self.columns.categorical.iter().map(|c| c.is_list).collect();
        let empty = PreparedRows::empty(self.columns.dense.len(), &lists);
        let mut group = std::mem::replace(&mut self.group, empty);
        // Line numbers are not stored in a dataset.
        group.lines = Vec::new();
        let (answer, result) = bounded(1);
        self.pending.push_back(result);
        if let Some(jobs) = &self.jobs {
            // The workers run until this sender is dropped. If a worker panics, its result is
            // missing.
            let _ = jobs.send((group, answer));
        }
        // The number of pending groups is limited to bound the memory. Each thread has one group,
        // and one more waits.
        if self.pending.len() > self.options.threads + 1 {
            self.append_next()?;
        }
        Ok(())
    }

    fn append_next(&mut self) -> Result<(), Error> {
        let Some(result) = self.pending.pop_front() else { return Ok(()) };
        let encoded = result
            .recv()
            .unwrap_or_else(|_| Err(ParquetError::General("an encoder ended early".to_owned())))
            .map_err(Error::parquet(&self.out))?;
        if self.part.as_ref().is_some_and(|(_, _, groups)| *groups == GROUPS_PER_PART) {
            self.close_part()?;
        }
        let (writer, part, groups) = match &mut self.part {
            Some(part) => part,
            empty => {
                let file = format!("rows-{:05}.parquet", self.parts.len());
                let folder = self.staging.as_ref().map_or(&*self.out, StagingFolder::folder);
                let writer = PartWriter::create(&folder.join(&file), &self.columns)?;
                empty.insert((writer, DatasetPart { file, rows: 0, bytes: 0, footer: None }, 0))
            }
        };
        part.rows += encoded.rows;
        *groups += 1;
        writer.append(encoded)
    }

    fn close_part(&mut self) -> Result<(), Error> {
        if let Some((writer, mut part, _)) = self.part.take() {
            let (bytes, footer) = writer.finish()?;
            (part.bytes, part.footer) = (bytes, Some(footer));
            let rows = part.rows + self.parts.iter().map(|part| part.rows).sum::<u64>();
            // The last resume point at or before the end of the finished parts is kept.
            while self.marks.get(1).is_some_and(|mark| mark.rows_before() <= rows) {
                self.marks.pop_front();
            }
            if let Some(staging) = &mut self.staging {
                let mark = self.marks.front().filter(|mark| mark.rows_before() <= rows);
                staging.keep_part(&part, mark)?;
            }
            self.parts.push(part);
        }
        Ok(())
    }
}

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        self.jobs = None;
        self.pending.clear();
        for worker in self.workers.drain(..) {
            // A worker that panicked sent no result, and the writer has already reported that.
            let _ = worker.join();
        }
        self.part = None;
    }
}

fn check(out: &Path, options: WriterOptions) -> Result<(), Error> {
    if options.row_group_rows == 0 {
        let problem = "expected at least 1, got 0".to_owned();
        return Err(Error::Config { key: "row_group_rows", problem });
    }
    if out.exists() {
        return Err(Error::OutExists { path: out.to_owned() });
    }
    Ok(())
}

fn start_encoders(
    columns: &DatasetColumns,
    threads: usize,
) -> Result<(Sender<EncodeTask>, Vec<JoinHandle<()>>), ParquetError> {
    let threads = threads.max(1);
    let (jobs, queue) = bounded::<EncodeTask>(threads);
    let mut workers = Vec::with_capacity(threads);
    for _ in 0..threads {
        let encoder = Encoder::new(columns)?;
        let queue = queue.clone();
        workers.push(std::thread::spawn(move || {
            for (rows, answer) in queue {
                // The send fails if the writer was dropped.
                let _ = answer.send(encoder.encode(rows));
            }
        }));
    }
    Ok((jobs, workers))
}
