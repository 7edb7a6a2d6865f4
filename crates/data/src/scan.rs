//! Reads all inputs of a request in order through a pipeline: one thread produces blocks, several
//! convert them into rows, and the caller consumes the rows.
//!
//! The pipeline is independent of the format of the inputs and of the consumer of the rows.

pub(crate) mod convert;
pub(crate) mod criteo_files;
pub(crate) mod limit;
pub(crate) mod progress;
pub(crate) mod record_block;
pub(crate) mod resume_point;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use schema::DataConfig;

use crate::error::Error;
use crate::input::decompress::{self, STDIN};
use crate::loss::Losses;
use crate::ordered;
use crate::parse::block::{BlockPace, LineStart, Records};
use crate::parse::format;
use crate::parse::ids;
use crate::parse::layout::{FieldLayout, LabelNeed, WantedColumns};
use crate::parse::reader::InputReading;
use crate::parse::row_sink::RowSink;
use crate::scan::convert::{ConvertedBlock, convert};
use crate::scan::limit::{ReadProgress, Strictness, check_early};
use crate::scan::progress::{Pass, ProgressMeter};
use crate::scan::record_block::RecordBlock;
use crate::scan::resume_point::ResumePoint;

/// The inputs of a scan and the options for reading them.
pub(crate) struct ScanInputs<'a> {
    pub inputs: &'a [String],
    pub config: &'a DataConfig,
    pub wanted: &'a WantedColumns,
    pub label: LabelNeed,
    pub strictness: Strictness,
    pub pace: BlockPace,
    pub threads: usize,
}

impl ScanInputs<'_> {
    /// Tells for each categorical column whether it holds lists. A column holds lists if it has a
    /// separator, or if it holds lists in the first file.
    pub(crate) fn lists(&self) -> Result<Vec<bool>, Error> {
        let first = format::first_with_content(self.inputs)?;
        let first = Some(first).filter(|input| !input.is_empty() && *input != STDIN);
        format::reader(self.config).lists(self.wanted, first)
    }

    /// Fails for problems that are visible before reading. `passes` is the number of times that the
    /// inputs will be read.
    pub(crate) fn check(&self, passes: u64) -> Result<(), Error> {
        if self.inputs.is_empty() {
            let problem = "expected at least one file, got none".to_owned();
            return Err(Error::Config { key: "inputs", problem });
        }
        let stdin = self.inputs.iter().filter(|input| *input == STDIN).count();
        if stdin > 0 && !format::reader(self.config).reads_streams() {
            return Err(Error::Stdin { problem: "cannot be Parquet or NumPy arrays; use a file" });
        }
        if stdin > 1 {
            return Err(Error::Stdin { problem: "is given more than once" });
        }
        if stdin > 0 && passes > 1 {
            let problem = "can be read only once, but standardized columns and exact ids need \
                           another pass; use files";
            return Err(Error::Stdin { problem });
        }
        Ok(())
    }

    /// Reads all inputs once. `new_sink` creates a sink for each block, and `take` receives the
    /// converted blocks in order.
    pub(crate) fn scan<A: RowSink>(
        &self,
        meter: &mut ProgressMeter<'_>,
        new_sink: impl Fn() -> A + Sync,
        mut take: impl FnMut(ConvertedBlock<A>) -> Result<(), Error>,
    ) -> Result<Losses, Error> {
        self.scan_from(None, meter, new_sink, |parsed, _| take(parsed))
    }

    /// Like [`Self::scan`], starting at a resume point. `take` also receives the resume point of
    /// each block, if the format supports it.
    pub(crate) fn scan_from<A: RowSink>(
        &self,
        from: Option<&ResumePoint>,
        meter: &mut ProgressMeter<'_>,
        new_sink: impl Fn() -> A + Sync,
        mut take: impl FnMut(ConvertedBlock<A>, Option<ResumePoint>) -> Result<(), Error>,
    ) -> Result<Losses, Error> {
        let pass = meter.pass();
        let produce = |send: ordered::SendItem<'_, RecordBlock>| self.produce(from, &pass, send);
        let work = |block: RecordBlock| convert(&block, self.wanted, new_sink());
        let mut tally = FileTally::new(self, from);
        let mut rows = from.map_or(0, ResumePoint::rows_before);
        let consume = |mut parsed: ConvertedBlock<A>| {
            let mark = parsed.start.map(|place| tally.resume_point(parsed.file, place));
            tally.count(&mut parsed)?;
            rows += parsed.rows;
            take(parsed, mark)?;
            meter.show(rows);
            Ok(())
        };
        ordered::run(self.threads, produce, work, consume)?;
        tally.finish()
    }

    /// Reads all inputs once and sends them in blocks, until `send` returns `false`.
    pub(crate) fn produce(
        &self,
        from: Option<&ResumePoint>,
        pass: &Pass,
        send: ordered::SendItem<'_, RecordBlock>,
    ) -> Result<(), Error> {
        let (reader, observer) = (format::reader(self.config), pass.observer());
        let mut text = 0;
        let first = from.map_or(0, |mark| mark.file);
        let passed = decompress::total_bytes(&self.inputs[..first])?;
        // Inputs before the resume point count as read.
        observer.bytes_done.fetch_add(passed.unwrap_or(0), Ordering::Relaxed);
        for (file, name) in self.inputs.iter().enumerate().skip(first) {
            let shared: Arc<str> = name.as_str().into();
            let mut stopped = false;
            let mut send = |layout: Arc<FieldLayout>, records: Box<dyn Records>| {
                text += records.text_bytes() as u64;
                let progress = ReadProgress {
                    bytes: pass.bytes(),
                    // After resuming, the text before the resume point is unknown, so the total is
                    // unknown, too.
                    bytes_total: from.map_or(pass.length(), |_| 0),
                    text,
                    row_bytes_least: layout.fields as u64,
                };
                stopped = !send(RecordBlock {
                    file,
                    name: Arc::clone(&shared),
                    layout,
                    records,
                    progress,
                });
                !stopped
            };
            let from = from.filter(|mark| mark.file == file).map(|mark| mark.place);
            let (wanted, label, pace) = (self.wanted, self.label, self.pace);
            match reader.send(
                name,
                &InputReading { wanted, label, pace, observer, from },
                &mut send,
            ) {
                // Engines that write one file per part leave some of them empty.
                Err(Error::EmptyInput { .. }) if self.inputs.len() > 1 => {}
                sent => sent?,
            }
            if stopped {
                break;
            }
        }
        Ok(())
    }
}

/// Accepted rows and losses per file.
struct FileTally<'a> {
    source: &'a ScanInputs<'a>,
    rows: Vec<u64>,
    losses: Vec<Losses>,
}

impl<'a> FileTally<'a> {
    fn new(source: &'a ScanInputs<'a>, from: Option<&ResumePoint>) -> Self {
        let files = source.inputs.len();
        let (rows, losses) = match from {
            None => (vec![0; files], vec![Losses::default(); files]),
            Some(mark) => (mark.rows.clone(), mark.losses.clone()),
        };
        Self { source, rows, losses }
    }

    /// Returns the resume point of a block that has not been counted yet.
    fn resume_point(&self, file: usize, place: LineStart) -> ResumePoint {
        ResumePoint { file, place, rows: self.rows.clone(), losses: self.losses.clone() }
    }

    fn count<A>(&mut self, parsed: &mut ConvertedBlock<A>) -> Result<(), Error> {
        if let Some(error) = parsed.refused.take() {
            return Err(error);
        }
        if let Some(first) = parsed.losses.first.first()
            && self.source.strictness == Strictness::Stop
        {
            return Err(Error::Malformed(first.clone()));
        }
        self.rows[parsed.file] += parsed.rows;
        self.losses[parsed.file].append(parsed.losses.clone());
        if !parsed.losses.ids.is_empty() {
            ids::check_signs(&self.all().ids, &self.source.wanted.categorical)?;
        }
        if parsed.losses.malformed_lines == 0 {
            return Ok(());
        }
        let rows = self.rows.iter().sum();
        check_early(self.source.strictness, rows, &self.all(), &parsed.progress)
    }

    /// Sums the losses of all inputs.
    fn all(&self) -> Losses {
        let mut all = Losses::default();
        self.losses.iter().for_each(|losses| all.append(losses.clone()));
        all
    }

    fn finish(self) -> Result<Losses, Error> {
        let has_rows = self.rows.iter().any(|rows| *rows > 0);
        let mut all = self.all();
        for ((rows, losses), input) in self.rows.iter().zip(&self.losses).zip(self.source.inputs) {
            // A file without any record is accepted if another file has rows.
            if *rows == 0 && losses.records() == 0 && has_rows {
                all.empty_files.count(input, 0);
            } else if *rows == 0 {
                return Err(Error::NoGoodRows {
                    path: input.into(),
                    malformed: losses.malformed_lines,
                    first: losses.first.first().cloned().map(Box::new),
                });
            }
        }
        self.source.strictness.check(self.rows.iter().sum(), &all)?;
        Ok(all)
    }
}
