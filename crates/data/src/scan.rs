//! All inputs of a request, in order, through the reading pipeline: produce blocks, convert, take.
//!
//! Knows the formats' readers; not what becomes of the rows.

use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schema::source::Format;
use schema::{Bytes, DataConfig};

use crate::convert::{Accept, Parsed, convert};
use crate::criteo_tsv;
use crate::csv;
use crate::decompress::{self, STDIN};
use crate::error::Error;
use crate::ids;
use crate::layout::{LabelNeed, Layout, Wanted};
use crate::limit::{Far, Strictness, check_early};
use crate::loss::Losses;
use crate::npy;
use crate::ordered;
use crate::origin::{Origins, Tap};
use crate::parquet::input;
use crate::prepare::Progress;
use crate::resume::Mark;
use crate::text::{self, Block, Body, First, Head, Pace, Place};

/// The inputs and how they are read.
pub(crate) struct Source<'a> {
    pub inputs: &'a [String],
    pub config: &'a DataConfig,
    pub wanted: &'a Wanted,
    pub label: LabelNeed,
    pub strictness: Strictness,
    pub pace: Pace,
    pub threads: usize,
}

/// How far all passes over the inputs are.
pub(crate) struct Meter<'a> {
    tap: Tap,
    bytes_total: Option<u64>,
    passes: u64,
    temporary: Arc<AtomicU64>,
    show: &'a mut dyn FnMut(Progress),
}

/// One pass over the inputs, as those see it who need to know how far it is.
pub(crate) struct Pass {
    tap: Tap,
    /// Bytes read by earlier passes, and those of this one.
    start: u64,
    length: u64,
    temporary: Arc<AtomicU64>,
}

impl Pass {
    /// A pass over inputs whose length does not matter.
    pub(crate) fn counting(tap: &Tap) -> Self {
        let (start, length, temporary) = Default::default();
        Self { tap: tap.clone(), start, length, temporary }
    }

    /// The share of the inputs that has been read; 1 where their length is unknown.
    pub(crate) fn share(&self) -> f64 {
        if self.length == 0 {
            return 1.0;
        }
        (self.bytes() as f64 / self.length as f64).min(1.0)
    }

    /// Bytes that have been read.
    pub(crate) fn bytes(&self) -> u64 {
        self.tap.bytes_done.load(Ordering::Relaxed).saturating_sub(self.start)
    }

    /// Says how much of the disk will be used for a while.
    pub(crate) fn state_temporary(&self, bytes: Bytes) {
        self.temporary.store(bytes.0, Ordering::Relaxed);
    }
}

impl<'a> Meter<'a> {
    /// A meter for `passes` passes over `inputs`.
    pub(crate) fn new(
        (format, inputs): (Format, &[String]),
        passes: u64,
        show: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, Error> {
        let files = input_files(format, inputs)?;
        let bytes_total = decompress::total_bytes(&files)?.map(|bytes| bytes * passes);
        let (tap, temporary) = Default::default();
        Ok(Self { tap, bytes_total, passes, temporary, show })
    }

    /// Has the files hashed while they are read.
    #[must_use]
    pub(crate) fn noting(mut self, origins: Arc<Origins>) -> Self {
        self.tap.origins = Some(origins);
        self
    }

    /// The pass that begins now.
    pub(crate) fn pass(&self) -> Pass {
        Pass {
            start: self.tap.bytes_done.load(Ordering::Relaxed),
            length: self.bytes_total.map_or(0, |total| total / self.passes),
            tap: self.tap.clone(),
            temporary: Arc::clone(&self.temporary),
        }
    }

    pub(crate) fn show(&mut self, rows: u64) {
        let bytes_done = self.tap.bytes_done.load(Ordering::Relaxed);
        let temporary_bytes = self.temporary.load(Ordering::Relaxed);
        (self.show)(Progress { bytes_done, bytes_total: self.bytes_total, temporary_bytes, rows });
    }
}

/// The files that `inputs` stand for: themselves, or all arrays of the sets they name.
///
/// # Errors
/// [`Error::Array`] for the name of no set.
pub fn input_files(format: Format, inputs: &[String]) -> Result<Vec<String>, Error> {
    if format == Format::Npy { npy::files(inputs) } else { Ok(inputs.to_vec()) }
}

impl Source<'_> {
    /// Which categorical columns hold lists: those with a separator, or of a list type in the first
    /// file.
    pub(crate) fn lists(&self) -> Result<Vec<bool>, Error> {
        match (self.config.format, self.inputs.first()) {
            (Format::Parquet, Some(path)) if path != STDIN => {
                input::lists(Path::new(path), self.wanted)
            }
            (Format::Npy, Some(input)) => {
                Ok(vec![npy::is_multi_hot(input)?; self.wanted.categorical.len()])
            }
            _ => Ok(self.wanted.categorical.iter().map(|c| c.separator.is_some()).collect()),
        }
    }

    /// Refuses what can be seen to fail before anything is read; `passes` is how often it will be
    /// read.
    pub(crate) fn check(&self, passes: u64) -> Result<(), Error> {
        if self.inputs.is_empty() {
            let problem = "expected at least one file, got none".to_owned();
            return Err(Error::Config { key: "inputs", problem });
        }
        let stdin = self.inputs.iter().filter(|input| *input == STDIN).count();
        if stdin > 0 && matches!(self.config.format, Format::Parquet | Format::Npy) {
            return Err(Error::Stdin { problem: "cannot be Parquet or arrays; give a file" });
        }
        if stdin > 1 {
            return Err(Error::Stdin { problem: "is named more than once" });
        }
        if stdin > 0 && passes > 1 {
            let problem = "can be read only once, but standardised columns and exact ids need a \
                           pass of their own; give files";
            return Err(Error::Stdin { problem });
        }
        Ok(())
    }

    /// Reads everything once; `taker` makes what takes a block's rows, `take` gets it in order.
    pub(crate) fn scan<A: Accept>(
        &self,
        meter: &mut Meter<'_>,
        taker: impl Fn() -> A + Sync,
        mut take: impl FnMut(Parsed<A>) -> Result<(), Error>,
    ) -> Result<Losses, Error> {
        self.scan_from((None, meter), taker, |parsed, _| take(parsed))
    }

    /// Like [`Self::scan`] from a mark on; `take` gets a block's own mark too, if it can have one.
    pub(crate) fn scan_from<A: Accept>(
        &self,
        (from, meter): (Option<&Mark>, &mut Meter<'_>),
        taker: impl Fn() -> A + Sync,
        mut take: impl FnMut(Parsed<A>, Option<Mark>) -> Result<(), Error>,
    ) -> Result<Losses, Error> {
        let pass = meter.pass();
        let produce = |send: ordered::Send<'_, Block>| self.produce((from, &pass), send);
        let work = |block: Block| convert(&block, self.wanted, taker());
        let mut tally = Tally::new(self, from);
        let mut rows = from.map_or(0, Mark::rows_before);
        let consume = |mut parsed: Parsed<A>| {
            let mark = parsed.start.map(|place| tally.mark(parsed.file, place));
            tally.count(&mut parsed)?;
            rows += parsed.rows;
            take(parsed, mark)?;
            meter.show(rows);
            Ok(())
        };
        ordered::run(self.threads, produce, work, consume)?;
        tally.finish()
    }

    /// Reads everything once, and sends it in blocks until `send` wants no more.
    pub(crate) fn produce(
        &self,
        (from, pass): (Option<&Mark>, &Pass),
        send: ordered::Send<'_, Block>,
    ) -> Result<(), Error> {
        let tap = &pass.tap;
        let mut text = 0;
        let first = from.map_or(0, |mark| mark.file);
        let passed = decompress::total_bytes(&self.inputs[..first])?;
        tap.bytes_done.fetch_add(passed.unwrap_or(0), Ordering::Relaxed);
        for (file, name) in self.inputs.iter().enumerate().skip(first) {
            let (path, shared): (_, Arc<str>) = (Path::new(name), name.as_str().into());
            let mut stopped = false;
            let mut send = |layout: Arc<Layout>, body: Body| {
                text += body.text_bytes() as u64;
                let far = Far {
                    bytes: pass.bytes(),
                    // Of a rest alone nobody knows how much text its beginning was.
                    bytes_total: from.map_or(pass.length, |_| 0),
                    text,
                    row_bytes_least: layout.fields as u64,
                };
                stopped = !send(Block { file, name: Arc::clone(&shared), layout, body, far });
                !stopped
            };
            if self.config.format == Format::Parquet {
                input::send_rows(path, (self.wanted, self.label), tap, &mut send)?;
            } else if self.config.format == Format::Npy {
                npy::send_rows(name, (self.wanted, self.label), tap, &mut send)?;
            } else if let Some(mark) = from.filter(|mark| mark.file == file) {
                self.send_lines_from(name, (mark.place, tap), &mut send)?;
            } else {
                let (read, start) = text_of(decompress::open(name, tap)?, path)?;
                let mut first = |head: &Head| self.first(path, head);
                match self.config.format {
                    Format::Csv => {
                        let text = (read, csv::Punctuation::of(self.config));
                        csv::send_records((path, self.pace), text, &mut first, &mut send)?;
                    }
                    _ => text::send_lines((path, self.pace), (read, start), &mut first, &mut send)?,
                }
            }
            if stopped {
                break;
            }
        }
        Ok(())
    }

    /// The lines of a tab-separated file from `place` on, laid out as its first line says.
    fn send_lines_from(
        &self,
        name: &str,
        (place, tap): (Place, &Tap),
        send: &mut dyn FnMut(Arc<Layout>, Body) -> bool,
    ) -> Result<(), Error> {
        let path = Path::new(name);
        let head = text_of(decompress::open(name, &Tap::default())?, path)?;
        let mut layout = None;
        text::send_lines(
            (path, self.pace),
            head,
            &mut |head| self.first(path, head),
            &mut |found, _| {
                layout = Some(found);
                false
            },
        )?;
        let Some(layout) = layout else { return Ok(()) };
        let rest = (decompress::open_at(name, place.offset, tap)?, place);
        text::send_lines(
            (path, self.pace),
            rest,
            &mut |_| Ok(First::Data(Layout::clone(&layout))),
            send,
        )
    }

    fn first(&self, path: &Path, head: &Head) -> Result<First, Error> {
        let names = match self.config.format {
            Format::Criteo => criteo_tsv::column_names(),
            _ => self.config.columns.clone(),
        };
        if names.is_empty() {
            return Ok(First::Header(self.wanted.place(&head.fields, path, self.label)?));
        }
        let place = (path, self.label);
        Ok(First::Data(self.wanted.place_headerless(&names, &head.widths, place)?))
    }
}

/// The text without a byte-order mark, and where it starts.
fn text_of(
    mut read: Box<dyn Read + Send>,
    path: &Path,
) -> Result<(impl Read + Send, Place), Error> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    // Its mark and how the header of its first page begins: a column may be named PAR1.
    const PARQUET: &[u8] = b"PAR1\x15";
    let mut first = Vec::with_capacity(PARQUET.len());
    // Neither mark has a line end, and a stream may wait for the answer to a short line.
    while first.len() < PARQUET.len() && !first.ends_with(b"\n") {
        let got = read.by_ref().take(1).read_to_end(&mut first).map_err(Error::read(path))?;
        if got == 0 {
            break;
        }
    }
    if first.is_empty() {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    if first == PARQUET {
        return Err(Error::NotText { path: path.to_owned() });
    }
    let mut place = Place { offset: 0, line: 1 };
    if first.starts_with(BYTE_ORDER_MARK) {
        first.drain(..BYTE_ORDER_MARK.len());
        place.offset = BYTE_ORDER_MARK.len() as u64;
    }
    Ok((Cursor::new(first).chain(read), place))
}

/// Good rows and losses per file.
struct Tally<'a> {
    source: &'a Source<'a>,
    rows: Vec<u64>,
    losses: Vec<Losses>,
}

impl<'a> Tally<'a> {
    fn new(source: &'a Source<'a>, from: Option<&Mark>) -> Self {
        let files = source.inputs.len();
        let (rows, losses) = match from {
            None => (vec![0; files], vec![Losses::default(); files]),
            Some(mark) => (mark.rows.clone(), mark.losses.clone()),
        };
        Self { source, rows, losses }
    }

    /// The mark of a block that has not been counted yet.
    fn mark(&self, file: usize, place: Place) -> Mark {
        Mark { file, place, rows: self.rows.clone(), losses: self.losses.clone() }
    }

    fn count<A>(&mut self, parsed: &mut Parsed<A>) -> Result<(), Error> {
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
        check_early(self.source.strictness, (self.rows.iter().sum(), &self.all()), &parsed.far)
    }

    /// What was lost of all inputs.
    fn all(&self) -> Losses {
        let mut all = Losses::default();
        self.losses.iter().for_each(|losses| all.append(losses.clone()));
        all
    }

    fn finish(self) -> Result<Losses, Error> {
        for ((rows, losses), input) in self.rows.iter().zip(&self.losses).zip(self.source.inputs) {
            if *rows == 0 {
                return Err(Error::NoGoodRows {
                    path: input.into(),
                    malformed: losses.malformed_lines,
                    first: losses.first.first().cloned().map(Box::new),
                });
            }
        }
        let all = self.all();
        self.source.strictness.check(self.rows.iter().sum(), &all)?;
        Ok(all)
    }
}
