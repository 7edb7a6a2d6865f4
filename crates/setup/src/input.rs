//! Opens the rows that a command reads. Files are prepared once into the run's folder, and a
//! prepared folder is opened as it is. Held-out rows are separated from training rows.

use std::cmp::Reverse;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::{
    Begin, DataShape, Dataset, Fitted, IdCount, Losses, PrepareRequest, Prepared, Strictness,
};
use schema::source::{CategoricalColumn, OutOfRange};
use schema::{Bytes, DataConfig, JobConfig, Share};
use xxhash_rust::xxh3::Xxh3;

use crate::args;
use crate::error::{Error, RunError, UsageError};
use crate::progress::{Meter, ProgressUnit};
use crate::{Session, prepared};
use crate::{interrupt, output, render};

/// The path that stands for standard input.
const STDIN: &str = "-";
/// Part of the key that names prepared data. This version must be increased when a change prepares
/// the same inputs differently.
const KEY_VERSION: u8 = 2;

/// The input paths of the user, with the settings to read and prepare their rows.
#[derive(Clone, Copy, Debug)]
pub struct InputSource<'a> {
    /// Files, or `-` for standard input, or one prepared folder.
    pub paths: &'a [String],
    pub config: &'a DataConfig,
    /// Transforms and vocabularies to use. If the value is `None`, transforms and vocabularies are
    /// fitted on the input.
    pub fitted: Option<&'a Fitted>,
    /// Share of the rows, at the end of the input, that are held out and not used for fitting.
    pub hold_out: f64,
    /// The folder in which prepared data is cached.
    pub cache: &'a Path,
    pub strictness: Strictness,
    /// The report of the generator if the rows are generated. The report is stored with the
    /// dataset.
    pub generator: Option<&'a serde_json::Value>,
}

/// Converts the command-line options for malformed rows to a rule for reading them.
pub fn strictness(malformed: args::Malformed) -> Strictness {
    if malformed.strict { Strictness::Stop } else { Strictness::AtMost(malformed.malformed_max) }
}

/// Opens the input, and prepares it first if that is necessary. Reports on stderr whether prepared
/// data is reused.
pub fn dataset(session: &Session, source: &InputSource<'_>) -> Result<Dataset, Error> {
    let paths = files_of(source.paths)?;
    let source = &InputSource { paths: &paths, ..*source };
    for path in source.paths {
        // All paths are checked before any is read, so that a wrong one does not waste a
        // preparation.
        check(path, source.paths.len())?;
    }
    if let [path] = source.paths
        && Path::new(path).is_dir()
    {
        session.console.detail(format_args!("reading the prepared dataset {path}"));
        let dataset = open(session, Path::new(path))?;
        let fitted = dataset.fitted();
        fitted.check_rules(source.config)?;
        if fitted.wraps_unsigned() {
            session.console.warn(format_args!(
                "{path} was prepared by an earlier version, by whose rule ids below 0 wrap as \
                 unsigned numbers of 64 bits; convert the files again for the remainder as in \
                 Python (-1 becomes a table's last row)"
            ));
        }
        report_ids(session, source.config, &dataset.manifest().losses);
        let by = source.config.hold_out_by.as_ref().filter(|_| source.hold_out > 0.0);
        if let (Some(by), None) = (by, dataset.manifest().held_out) {
            session.console.warn(format_args!(
                "{path} was prepared without data.hold_out_by: its last rows are held out, not the \
                 greatest of {by}"
            ));
        }
        if let Strictness::AtMost(_) = source.strictness {
            source.strictness.check(dataset.rows(), &dataset.manifest().losses)?;
        }
        return Ok(dataset);
    }
    let files = data::input_files(source.config.format, &absolute(source.paths))?;
    let place = prepared::find(session, &source.cache.join(key(source, &files)?), &files)?;
    let folder = match place {
        prepared::PreparedFolder::Same(folder) => {
            let shown = folder.display();
            session.console.say(format_args!("using the data prepared earlier: {shown}"));
            let dataset = open(session, &folder)?;
            report_ids(session, source.config, &dataset.manifest().losses);
            return Ok(dataset);
        }
        prepared::PreparedFolder::None(folder) => folder,
    };
    let prepared = match prepare(session, source, &folder, Begin::Resume) {
        // Rows prepared before an input changed must not be mixed with its new rows.
        Err(Error::Run(RunError::Data { source: error @ data::Error::InputChanged { .. } })) => {
            session.console.say(format_args!("{error}; beginning anew"));
            prepare(session, source, &folder, Begin::Restart)?
        }
        prepared => prepared?,
    };
    prepared::record(&folder, &files, prepared.origins)?;
    Ok(prepared.dataset)
}

/// Opens a prepared folder, and warns if its files have no checksums.
fn open(session: &Session, folder: &Path) -> Result<Dataset, Error> {
    let dataset = Dataset::open(folder)?;
    if !dataset.manifest().has_checksums() {
        session.console.warn(format_args!(
            "{}: prepared by an earlier version, without checksums: damage to it would go \
             unnoticed; prepare the data again to add them",
            folder.display()
        ));
    }
    Ok(dataset)
}

/// Prepares the input into `folder` with a progress bar, and reports the rows that could not be
/// read.
pub fn prepare(
    session: &Session,
    source: &InputSource<'_>,
    folder: &Path,
    begin: Begin,
) -> Result<Prepared, Error> {
    let paths = files_of(source.paths)?;
    let source = &InputSource { paths: &paths, ..*source };
    // `_made` is dropped last, so that a failed preparation leaves no empty folders.
    let _made = folder.parent().filter(|parent| *parent != Path::new("")).map(output::folder);
    let _made = _made.transpose()?;
    let _interrupted = interrupt::scoped({
        let (folder, goes_on) = (folder.to_owned(), goes_on(source, begin));
        move || say_what_is_kept(&folder, goes_on)
    });
    let mut meter = Meter::start(session.console, "preparing", ProgressUnit::Bytes, None);
    let request = PrepareRequest {
        inputs: source.paths,
        config: source.config,
        fitted: source.fitted,
        hold_out: source.hold_out,
        out: folder,
        row_group_rows: data::DEFAULT_ROW_GROUP_ROWS,
        strictness: source.strictness,
        threads: session.threads,
        generator: source.generator.cloned(),
        begin,
    };
    let (mut bytes, mut temporary) = (0, 0);
    let prepared = data::prepare(&request, &mut |progress| {
        bytes = progress.bytes_done;
        if progress.temporary_bytes > temporary {
            temporary = progress.temporary_bytes;
            let size = Bytes(temporary);
            meter.say(format_args!("counting will need about {size} of temporary files"));
        }
        meter.set_total(progress.bytes_total);
        meter.advance(progress.bytes_done, &render::counted(progress.rows, "row"));
    })?;
    let seconds = meter.finish();
    session.console.say(format_args!(
        "prepared {} in {} ({}/s) into {}",
        render::counted(prepared.dataset.rows(), "row"),
        render::duration(seconds),
        Bytes((bytes as f64 / seconds.max(1e-9)) as u64),
        folder.display()
    ));
    if prepared.resumed_rows > 0 {
        let rows = render::count(prepared.resumed_rows);
        session.console.say(format_args!("{rows} of them by an earlier, interrupted preparation"));
    }
    report_losses(session, prepared.dataset.rows(), &prepared.losses);
    report_ids(session, source.config, &prepared.losses);
    if source.fitted.is_none() {
        report_rare(session, prepared.dataset.fitted());
    }
    Ok(prepared)
}

/// Returns whether a repeated preparation continues an interrupted one. A preparation from standard
/// input never continues, because standard input cannot be read again.
fn goes_on(source: &InputSource<'_>, begin: Begin) -> bool {
    begin == Begin::Resume && !source.paths.iter().any(|path| path == STDIN)
}

/// Reports at Ctrl-C which prepared rows are kept and how to resume. If none can be kept, the
/// partial results are removed.
fn say_what_is_kept(folder: &Path, goes_on: bool) {
    match data::find_unfinished(folder).filter(|_| goes_on) {
        Some(kept) if kept.rows > 0 => eprintln!(
            "interrupted; {} prepared rows are kept in {}, and the same command goes on from there",
            render::count(kept.rows),
            kept.folder.display()
        ),
        Some(kept) => eprintln!(
            "interrupted; what was learned from the files is kept in {}, and the same command goes on \
             from there",
            kept.folder.display()
        ),
        None => {
            data::discard_unfinished(folder);
            eprintln!("interrupted; nothing was prepared that could be kept, start again");
        }
    }
}

/// Makes paths absolute, so that a run can be evaluated from another folder.
pub fn absolute(paths: &[String]) -> Vec<String> {
    let absolute = |path: &String| {
        if path == STDIN || data::is_remote(path) {
            return path.clone();
        }
        std::path::absolute(path).map_or_else(|_| path.clone(), |p| p.display().to_string())
    };
    paths.iter().map(absolute).collect()
}

/// Reports the lines that were left out, in addition to `rows` good rows, and quotes the first of
/// them.
pub fn report_losses(session: &Session, rows: u64, losses: &Losses) {
    for (left_out, what) in [
        (&losses.unlabeled, "rows without a label"),
        (&losses.repeated_headers, "repeated header lines"),
    ] {
        if let Some((file, line)) = &left_out.first {
            let count = render::count(left_out.count);
            session
                .console
                .warn(format_args!("{what}: left out {count}, the first at {file}:{line}"));
        }
    }
    if let Some((file, _)) = &losses.empty_files.first {
        let files = render::counted(losses.empty_files.count, "file");
        session.console.warn(format_args!("skipped {files} without rows, the first {file}"));
    }
    let malformed = losses.malformed_lines;
    if malformed == 0 {
        return;
    }
    let (count, all) = (render::count(malformed), render::count(rows + malformed));
    let share = Share::from_parts(malformed, rows + malformed);
    let often = match losses.most_common_reason() {
        Some((reason, count)) if losses.first.len() > 1 => {
            format!(" Most often ({}): {reason}.", render::counted(count, "time"))
        }
        _ => String::new(),
    };
    session.console.warn(format_args!(
        "left out {count} malformed of {all} rows ({share}).{often} The first of them:"
    ));
    for malformed in &losses.first {
        session.console.say(format_args!("  {malformed}"));
    }
}

/// Reports the columns with categories that are too rare to get a row of their own.
fn report_rare(session: &Session, fitted: &Fitted) {
    const SHOWN: usize = 5;
    let columns = fitted.categorical.iter().zip(&fitted.rare);
    let mut some: Vec<_> = columns.filter(|(_, rare)| rare.categories > 0).collect();
    some.sort_by_key(|(_, rare)| Reverse(rare.categories));
    for (column, rare) in some.iter().take(SHOWN) {
        let kept = column.vocabulary.as_ref().map_or(0, Vec::len) as u64;
        session.console.say(format_args!(
            "column {:?}: {} of {} categories occur less often than min_count and share row 1, {} \
             of the ids",
            column.column,
            render::count(rare.categories),
            render::count(kept + rare.categories),
            Share::from_parts(rare.ids, rare.all_ids)
        ));
    }
    if some.len() > SHOWN {
        let more = some.len() - SHOWN;
        session.console.say(format_args!("{more} more columns have rare categories"));
    }
}

/// Warns about ids outside their tables. The columns with the most such ids come first.
pub fn report_ids(session: &Session, config: &DataConfig, losses: &Losses) {
    const SHOWN: usize = 5;
    let columns = config.categorical_columns();
    // Counts that were made for tables of other sizes do not apply, so they are ignored.
    let fits = |(column, count): &(&CategoricalColumn, &IdCount)| {
        let rows = config.table_rows.get(&column.column);
        count.outside > 0 && count.rows.is_some() && count.rows == rows.copied()
    };
    let mut outside: Vec<_> = columns.iter().zip(&losses.ids).filter(fits).collect();
    outside.sort_by_key(|(_, count)| Reverse(count.outside));
    for (column, count) in outside.iter().take(SHOWN) {
        let became = match column.out_of_range.unwrap_or_default() {
            OutOfRange::Missing => "count as missing",
            OutOfRange::Modulo | OutOfRange::Error => {
                "wrap around, -1 to the last row; see out_of_range and missing in [data]"
            }
        };
        let negative = match count.negative {
            0 => String::new(),
            negative => format!(", {} of them below 0,", render::count(negative)),
        };
        session.console.warn(format_args!(
            "column {:?}: {} of {} ids are outside their table of {}{negative} and {became}",
            column.column,
            render::count(count.outside),
            render::count(count.ids),
            render::counted(count.rows.unwrap_or_default(), "row"),
        ));
    }
    if outside.len() > SHOWN {
        let more = outside.len() - SHOWN;
        session.console.warn(format_args!("{more} more columns have ids outside their tables"));
    }
}

/// A dataset, with the range of its rows to use.
pub type InputRows = (Arc<Dataset>, Range<u64>);

/// The training data of a job, with the range of its rows that are held out.
pub struct Inputs {
    pub train: Arc<Dataset>,
    pub train_rows: Range<u64>,
    /// Rows that are held out for validation and for a test.
    validation: Range<u64>,
    test: Range<u64>,
}

/// The held-out rows of a run, by their use.
#[derive(Clone, Debug, Default)]
pub struct HeldOutRows {
    /// Rows that the run evaluates repeatedly, and by which it chooses its best checkpoint.
    pub validation: Option<InputRows>,
    /// Rows that are evaluated once, at the end. `None` unless `data.validation` is above 0.
    pub test: Option<InputRows>,
}

/// Opens the training data of a job. Data that is not prepared yet is prepared in the folder
/// `cache`.
pub fn prepare_training_data(
    session: &Session,
    config: &DataConfig,
    cache: &Path,
    strictness: Strictness,
) -> Result<Inputs, Error> {
    let shares = config.held_out_shares();
    let source = InputSource {
        paths: &config.train,
        config,
        fitted: None,
        hold_out: shares.total(),
        cache,
        strictness,
        generator: None,
    };
    let train = Arc::new(dataset(session, &source)?);
    let (train_rows, held_out) = train.split(shares.total());
    let (validation, test) = train.split_held_out(held_out, shares);
    Ok(Inputs { train, train_rows, validation, test })
}

impl Inputs {
    /// Rejects training rows that all have the same label, and warns if a batch is larger than the
    /// data.
    pub fn check_for_training(&self, session: &Session, job: &JobConfig) -> Result<(), Error> {
        let rows = self.train_rows.end - self.train_rows.start;
        if let Some(label) = self.train.only_label(self.train_rows.clone())? {
            let positive = job.data.label_column().map(|column| column.positive);
            let (positive, folder) = (positive.unwrap_or_default(), self.train.dir().to_owned());
            return Err(RunError::OneLabel { rows, label, positive, folder }.into());
        }
        let batch = job.training.batch_size as u64;
        if batch > rows && !job.training.drop_last {
            let (batch, rows) = (render::count(batch), render::counted(rows, "row"));
            session.console.warn(format_args!(
                "a batch of {batch} samples is larger than the training data: each epoch is one \
                 step on its {rows}; a smaller one takes more: --set batch_size=N"
            ));
        }
        Ok(())
    }

    /// Opens the held-out rows of the job, and prepares its evaluation files if it names any.
    pub fn held_out(
        &self,
        session: &Session,
        config: &DataConfig,
        cache: &Path,
        strictness: Strictness,
    ) -> Result<HeldOutRows, Error> {
        let test = self.evaluation(session, config, cache, strictness)?;
        if config.validation == 0.0 {
            return Ok(HeldOutRows { validation: test, test: None });
        }
        let rows = self.validation.clone();
        let validation = (!rows.is_empty()).then(|| (Arc::clone(&self.train), rows));
        Ok(HeldOutRows { validation, test })
    }

    /// Opens the evaluation data of the job. The data are the job's own evaluation files, which are
    /// prepared now, or held-out rows of the training data that are not used for validation.
    /// Returns `None` if there are neither.
    pub fn evaluation(
        &self,
        session: &Session,
        config: &DataConfig,
        cache: &Path,
        strictness: Strictness,
    ) -> Result<Option<InputRows>, Error> {
        if config.evaluation.is_empty() {
            let test = self.test.clone();
            return Ok((!test.is_empty()).then(|| (Arc::clone(&self.train), test)));
        }
        let source = InputSource {
            paths: &config.evaluation,
            config,
            fitted: Some(self.train.fitted()),
            hold_out: 0.0,
            cache,
            strictness,
            generator: None,
        };
        let evaluation = Arc::new(dataset(session, &source)?);
        let rows = 0..evaluation.rows();
        Ok(Some((evaluation, rows)))
    }
}

/// Returns the shape of the input, and whether it still has to be prepared. The shape is exact for
/// a prepared folder. For files, the shape is an estimate from their first blocks.
pub fn probe(
    paths: &[String],
    config: &DataConfig,
    most_categories: u64,
) -> Result<(DataShape, Preparation), Error> {
    let files = files_of(paths)?;
    let paths = &files[..];
    for path in paths {
        check(path, paths.len())?;
    }
    if let [path] = paths
        && Path::new(path).is_dir()
    {
        return Ok((DataShape::read(&Dataset::open(Path::new(path))?)?, Preparation::Done));
    }
    Ok((DataShape::probe(paths, config, most_categories)?, Preparation::Needed))
}

/// Says whether an input still has to be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    Done,
    Needed,
}

fn check(path: &str, count: usize) -> Result<(), Error> {
    if path == STDIN {
        return Ok(());
    }
    is_there(path)?;
    let path = PathBuf::from(path);
    if path.is_dir() && count > 1 {
        return Err(UsageError::MixedInputs { path, count }.into());
    }
    Ok(())
}

/// Lists the files that paths stand for, which are files themselves and the files in folders.
pub fn files_of(paths: &[String]) -> Result<Vec<String>, Error> {
    paths.iter().filter(|path| *path != STDIN).try_for_each(|path| is_there(path))?;
    Ok(data::expand_folders(paths)?)
}

/// Rejects a local path that does not exist. The address of an object store is not checked. An
/// address whose object is missing fails when it is opened.
pub fn is_there(path: &str) -> Result<(), Error> {
    if data::is_remote(path) || Path::new(path).exists() {
        return Ok(());
    }
    Err(UsageError::NoSuchInput { path: path.into() }.into())
}

/// Names the prepared folder by a hash of the settings on which its content depends. The content of
/// the input files is not part of the hash; the module `prepared` compares it.
fn key(source: &InputSource<'_>, files: &[String]) -> Result<String, Error> {
    let mut columns = source.config.clone();
    columns.train.clear();
    columns.evaluation.clear();
    columns.hold_out = 0.0;
    let mut hash = Xxh3::new();
    let (strict, max) = match source.strictness {
        Strictness::Stop => (1, 0.0),
        // The limit is part of the key, because another limit may reject the same rows.
        Strictness::AtMost(Share(max)) => (0, max),
    };
    hash.update(&[KEY_VERSION, strict]);
    hash.update(&f64::to_le_bytes(max));
    hash.update(&source.hold_out.to_le_bytes());
    hash.update(&serde_json::to_vec(&columns)?);
    hash.update(&serde_json::to_vec(&source.fitted)?);
    for path in files {
        hash.update(path.as_bytes());
        hash.update(&[0]);
    }
    Ok(format!("{:016x}", hash.digest()))
}
