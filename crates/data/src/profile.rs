//! Profiles files without a configuration: their format, their columns, and statistics of the
//! values of every column. Files are streamed in bounded memory, and the result does not depend on
//! the number of threads.
//!
//! The profile contains only facts. The module `schema::proposal` decides what the columns are used
//! for.

mod column;
mod leak;
mod sniff;

use std::path::Path;

use schema::DataConfig;
use schema::facts::{ColumnFacts, FileFacts, KnownLayout};
use schema::source::{CategoricalColumn, CategoryKind, DataFormat, LabelColumn, NumberForm};

use crate::error::Error;
use crate::input::partition;
use crate::loss::Losses;
use crate::ordered;
use crate::parse::block::{BlockPace, CellText};
use crate::parse::criteo_tsv;
use crate::parse::field;
use crate::parse::format;
use crate::parse::layout::{LabelNeed, WantedColumns};
use crate::parse::reader::InputColumns;
use crate::scan::ScanInputs;
use crate::scan::limit::Strictness;
use crate::scan::progress::{DataProgress, Pass, ProgressMeter};
use crate::scan::record_block::RecordBlock;

pub use leak::{Leak, find_leaks};

use column::{BlockColumnTally, ColumnCandidates, ProfiledColumn};
use sniff::TextForm;

/// Number of rows of Parquet files and arrays that are sampled to detect the kinds of values.
const SAMPLE_ROWS: usize = 5000;
/// Largest number of files that are sampled if paths encode columns.
const SAMPLE_FILES: usize = 32;

/// The result of [`profile_files`]: facts about the files, the way they are read, and a sample of
/// rows.
pub struct Profile {
    pub facts: FileFacts,
    /// Format, column names and punctuation, without the choice of columns.
    pub data: DataConfig,
    /// Records that training would leave out as well, for any choice of columns.
    pub losses: Losses,
    sample: Vec<SampleColumn>,
}

/// Sample of a column: its trimmed values in the first rows.
struct SampleColumn {
    name: String,
    values: Vec<Vec<u8>>,
}

/// Profiles `inputs`, which must have the same columns. `delimiter` replaces the detected one.
///
/// # Cost
/// Reads the files once, in the memory of [`crate::stats::summarize_inputs`].
/// # Errors
/// Returns any [`Error`] of reading the files. The limit of [`Error::TooManyMalformed`] is the
/// default limit of training.
pub fn profile_files(
    inputs: &[String],
    delimiter: Option<&str>,
    threads: usize,
    progress: &mut dyn FnMut(DataProgress),
) -> Result<Profile, Error> {
    let mut first = format::first_with_content(inputs)?;
    let announced = format::announced(first)?;
    let form = match announced {
        Some(_) => None,
        None => {
            let form;
            (first, form) = first_form(inputs, delimiter)?;
            Some(form)
        }
    };
    let data = data_config(announced.unwrap_or(DataFormat::Csv), form.as_ref());
    let header_columns = format::reader(&data).columns(first)?;
    let InputColumns { mut names, mut lists, unreadable } = header_columns.unwrap_or_else(|| {
        let names = form.as_ref().map(|form| form.names.clone()).unwrap_or_default();
        InputColumns { lists: vec![false; names.len()], names, unreadable: Vec::new() }
    });
    let own = names.len();
    let has_names = form.as_ref().is_none_or(|form| form.has_header);
    if data.format != DataFormat::Npy {
        let keys = partition::keys_missing_from(&names, Path::new(first));
        names.extend(keys.into_iter().map(|(key, _)| key));
        lists.resize(names.len(), false);
    }
    let wanted = every_column(&data, &names, &lists);
    let source = ScanInputs {
        inputs,
        config: &data,
        wanted: &wanted,
        label: LabelNeed::Required,
        strictness: Strictness::ANY,
        pace: BlockPace::FullBlocks,
        threads: threads.max(1),
    };
    source.check(1)?;
    let sample = match form {
        Some(form) => transpose_records(form.records, own),
        None => sample_first_rows(&source, lists.len(), SAMPLE_ROWS)?,
    };
    let candidates = find_all_candidates(inputs, &sample, &names, own, &lists);
    let mut meter = ProgressMeter::new(data.format, inputs, 1, progress)?;
    let mut looked = tally_all_blocks(&source, &mut meter, &names, &candidates)?;
    looked.check(inputs)?;
    let losses = std::mem::take(&mut looked.losses);
    let mut facts = looked.facts(&data, has_names);
    facts.columns.extend(unreadable.into_iter().map(|(name, kind)| ColumnFacts {
        name,
        unreadable: Some(kind),
        ..ColumnFacts::default()
    }));
    facts.layout = detect_layout(&facts);
    // Values from paths differ between files, so several files are sampled.
    let sample = if names.len() > own { sample_files(&source, names.len())? } else { sample };
    let sample = names.into_iter().zip(sample);
    let sample = sample.map(|(name, values)| SampleColumn { name, values }).collect();
    Ok(Profile { facts, data, losses, sample })
}

impl Profile {
    /// Renames the columns in order, for files without a header.
    pub fn name_columns(&mut self, names: impl IntoIterator<Item = String>) {
        for (column, name) in self.sample.iter_mut().zip(names) {
            column.name = name;
        }
    }
}

/// Finds the candidate kinds of each column from a sample. The first `own` columns come from rows,
/// the others from paths.
fn find_all_candidates(
    inputs: &[String],
    sample: &[Vec<Vec<u8>>],
    names: &[String],
    own: usize,
    lists: &[bool],
) -> Vec<ColumnCandidates> {
    let sniffed = |values: &[Vec<u8>]| {
        sniff::find_candidates(&values.iter().map(Vec::as_slice).collect::<Vec<_>>())
    };
    let row_candidates = sample.iter().zip(lists).take(own).map(|(values, &is_list)| {
        if is_list {
            ColumnCandidates { is_list, ..ColumnCandidates::default() }
        } else {
            sniffed(values)
        }
    });
    let path_candidates =
        names.iter().skip(own).map(|name| sniffed(&partition_values(inputs, name)));
    row_candidates.chain(path_candidates).collect()
}

/// Collects the values of column `name` from the paths of `inputs`.
fn partition_values(inputs: &[String], name: &str) -> Vec<Vec<u8>> {
    let path_values = |input: &String| {
        let keys = partition::parse_keys(Path::new(input)).into_iter();
        keys.filter(|(key, _)| key == name).map(|(_, value)| value)
    };
    inputs.iter().flat_map(path_values).collect()
}

/// Describes how the files are read. `form` is the detected layout of text files.
fn data_config(format: DataFormat, form: Option<&TextForm>) -> DataConfig {
    let delimiter = form.filter(|form| form.format == DataFormat::Csv).and_then(|form| match &form
        .punctuation
        .delimiter[..]
    {
        b"," => None,
        b"\t" => Some("tab".to_owned()),
        other => Some(String::from_utf8_lossy(other).into_owned()),
    });
    let quote = form.and_then(|form| form.punctuation.quote).filter(|&quote| quote != b'"');
    let named = form.filter(|form| !form.has_header);
    DataConfig {
        hold_out: 0.0,
        delimiter,
        quote: quote.map(|quote| char::from(quote).to_string()),
        columns: named.map(|form| form.names.clone()).unwrap_or_default(),
        ..DataConfig::new(form.map_or(format, |form| form.format))
    }
}

/// Requests every column as text. The label is required, so the first column serves as one.
fn every_column(data: &DataConfig, names: &[String], lists: &[bool]) -> WantedColumns {
    let categorical = names.iter().zip(lists).map(|(name, is_list)| CategoricalColumn {
        column: name.clone(),
        kind: CategoryKind::String,
        separator: is_list.then(|| "|".to_owned()),
        out_of_range: None,
        missing: None,
        min_count: None,
    });
    let label = LabelColumn::new(names.first().cloned().unwrap_or_default());
    WantedColumns::from_categorical(data, label, categorical.collect())
}

/// Returns the first of `inputs` that has rows, with its layout.
fn first_form<'a>(
    inputs: &'a [String],
    delimiter: Option<&str>,
) -> Result<(&'a str, TextForm), Error> {
    let mut without_rows = None;
    for input in inputs {
        match sniff::text_form(input, delimiter) {
            Err(error @ (Error::EmptyInput { .. } | Error::HeaderOnly { .. })) => {
                without_rows.get_or_insert(error);
            }
            form => return Ok((input, form?)),
        }
    }
    Err(without_rows.unwrap_or(Error::Config {
        key: "inputs",
        problem: "expected at least one file, got none".to_owned(),
    }))
}

/// Transposes the records that have `columns` fields.
fn transpose_records(records: Vec<Vec<Vec<u8>>>, columns: usize) -> Vec<Vec<Vec<u8>>> {
    let mut sample = vec![Vec::with_capacity(records.len()); columns];
    for record in records.into_iter().filter(|record| record.len() == columns) {
        sample.iter_mut().zip(record).for_each(|(column, field)| column.push(field));
    }
    sample
}

/// Samples the first rows of several evenly chosen files, including the values from their paths.
fn sample_files(source: &ScanInputs<'_>, columns: usize) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let step = source.inputs.len().div_ceil(SAMPLE_FILES);
    let chosen: Vec<&String> = source.inputs.iter().step_by(step.max(1)).collect();
    let mut samples: Vec<Vec<Vec<u8>>> = vec![Vec::new(); columns];
    for input in &chosen {
        let one = ScanInputs { inputs: std::slice::from_ref(*input), ..*source };
        let rows = (SAMPLE_ROWS / chosen.len()).max(1);
        let file_values = sample_first_rows(&one, columns, rows)?;
        samples.iter_mut().zip(file_values).for_each(|(sample, values)| sample.extend(values));
    }
    Ok(samples)
}

/// Samples the first rows of any input. Lists have no values in the sample.
fn sample_first_rows(
    source: &ScanInputs<'_>,
    columns: usize,
    rows: usize,
) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let mut samples: Vec<Vec<Vec<u8>>> = vec![Vec::new(); columns];
    let observer = crate::input::origin::ReadObserver::default();
    source.produce(None, &Pass::counting(&observer), &mut |block: RecordBlock| {
        for (at, sample) in samples.iter_mut().enumerate() {
            block.records.for_each_cell(at, block.place(source.wanted), &mut |cell| match cell {
                CellText::Text(text) if sample.len() < rows => sample.push(text.to_vec()),
                CellText::Missing if sample.len() < rows => sample.push(Vec::new()),
                _ => {}
            });
        }
        // The first block is enough for a sample.
        false
    })?;
    Ok(samples)
}

/// Statistics of one block, column by column.
struct BlockTally {
    file: usize,
    columns: Vec<BlockColumnTally>,
    rows: u64,
    /// Number of occurrences of each text of [`sniff::MISSING`].
    missing: Vec<u64>,
    losses: Losses,
}

/// Statistics of all blocks.
struct ProfileTally {
    columns: Vec<ProfiledColumn>,
    rows: u64,
    /// The most frequent text that represents missing values, if any.
    missing: Option<String>,
    losses: Losses,
}

impl ProfileTally {
    /// Fails if training would leave out too many rows, or if there are none.
    fn check(&self, inputs: &[String]) -> Result<(), Error> {
        Strictness::AtMost(Strictness::DEFAULT_MAX).check(self.rows, &self.losses)?;
        if self.rows == 0 {
            let path = inputs[0].clone().into();
            return Err(Error::NoGoodRows { path, malformed: 0, first: None });
        }
        Ok(())
    }

    /// Summarizes the columns of files that are read as `data` describes.
    fn facts(self, data: &DataConfig, has_names: bool) -> FileFacts {
        let rows = self.rows;
        // Columns whose number format is ambiguous take the format of an unambiguous column.
        let shown = self.columns.iter().find_map(|column| column.shown_form(rows));
        let usual = shown.unwrap_or(match data.delimiter.as_deref() {
            Some(";") => NumberForm::DecimalComma,
            _ => NumberForm::Money,
        });
        let columns = self.columns.into_iter().map(|column| column.finish(rows, usual));
        FileFacts {
            format: data.format,
            delimiter: data.delimiter.clone(),
            quote: data.quote.clone(),
            has_names,
            layout: None,
            rows,
            missing: self.missing,
            columns: columns.collect(),
        }
    }
}

fn tally_all_blocks(
    source: &ScanInputs<'_>,
    meter: &mut ProgressMeter<'_>,
    names: &[String],
    candidates: &[ColumnCandidates],
) -> Result<ProfileTally, Error> {
    let pass = meter.pass();
    let produce = |send: ordered::SendItem<'_, RecordBlock>| source.produce(None, &pass, send);
    let mut columns: Vec<ProfiledColumn> = names
        .iter()
        .zip(candidates)
        .map(|(name, candidates)| ProfiledColumn::new(name, candidates.clone()))
        .collect();
    let (mut rows, mut missing) = (0, vec![0; sniff::MISSING.len()]);
    let mut losses = Losses::default();
    let mut has_records = vec![false; source.inputs.len()];
    ordered::run(
        source.threads,
        produce,
        |block| tally_block(&block, source.wanted, candidates),
        |looked| {
            rows += looked.rows;
            // Files without any record are reported as empty.
            has_records[looked.file] |= looked.rows + looked.losses.records() > 0;
            losses.append(looked.losses);
            missing.iter_mut().zip(&looked.missing).for_each(|(sum, count)| *sum += count);
            columns.iter_mut().zip(&looked.columns).for_each(|(column, look)| column.add(look));
            meter.show(rows);
            Ok::<(), Error>(())
        },
    )?;
    for (input, _) in source.inputs.iter().zip(&has_records).filter(|(_, has)| !**has) {
        losses.empty_files.count(input, 0);
    }
    let most = (0..missing.len()).filter(|&at| missing[at] > 0).max_by_key(|&at| missing[at]);
    let missing = most.map(|at| sniff::MISSING[at].to_owned());
    Ok(ProfileTally { columns, rows, missing, losses })
}

fn tally_block(
    block: &RecordBlock,
    wanted: &WantedColumns,
    candidates: &[ColumnCandidates],
) -> BlockTally {
    let mut looked = BlockTally {
        file: block.file,
        columns: candidates.iter().map(BlockColumnTally::new).collect(),
        rows: 0,
        missing: vec![0; sniff::MISSING.len()],
        losses: Losses::default(),
    };
    block.records.for_each_refused(&block.layout, &mut |line, refusal| {
        looked.losses.count(&block.name, line, refusal);
    });
    for (at, candidates) in candidates.iter().enumerate() {
        let (mut rows, look, missing) = (0, &mut looked.columns[at], &mut looked.missing);
        block.records.for_each_cell(at, block.place(wanted), &mut |cell| match cell {
            CellText::Element(text) => look.element(text),
            CellText::Missing => {
                rows += 1;
                look.missing();
            }
            CellText::List(text) => {
                rows += 1;
                look.take(text, &ColumnCandidates::default());
            }
            CellText::Text(text) => {
                rows += 1;
                match sniff::MISSING.iter().position(|missing| missing.as_bytes() == text) {
                    Some(at) => {
                        missing[at] += 1;
                        look.missing();
                    }
                    None if text.is_empty() => look.missing(),
                    None => look.take(text, candidates),
                }
            }
        });
        // Every column has one cell per row, so each column gives the number of rows.
        looked.rows = looked.rows.max(rows);
    }
    looked
}

/// Recognizes the layout of a published dataset.
fn detect_layout(facts: &FileFacts) -> Option<KnownLayout> {
    let names: Vec<&str> = facts.columns.iter().map(|column| column.name.as_str()).collect();
    if facts.format == DataFormat::Npy {
        return Some(KnownLayout::Arrays);
    }
    if is_criteo(facts) {
        return Some(KnownLayout::Criteo);
    }
    if names.starts_with(&["id", "click", "hour", "C1", "banner_pos"]) {
        return Some(KnownLayout::Avazu);
    }
    let is_stars = |at: usize| {
        let column = &facts.columns[at];
        column.least >= Some(0.0) && column.greatest <= Some(5.0) && column.distinct <= 11
    };
    // MovieLens gives times in seconds since 1970, all of them after 1992.
    let is_stamp = |at: usize| facts.columns[at].least > Some(7e8);
    let has_form = names.len() == 4 && is_stars(2) && is_stamp(3);
    let is_named = !facts.has_names || names == ["userId", "movieId", "rating", "timestamp"];
    (has_form && is_named).then_some(KnownLayout::MovieLens)
}

/// Recognizes Criteo's layout: a label, 13 integers and 26 hexadecimal numbers of eight digits,
/// without a header.
fn is_criteo(facts: &FileFacts) -> bool {
    if facts.format != DataFormat::Tsv || facts.has_names || facts.columns.len() != 40 {
        return false;
    }
    let (numbers, categories) = facts.columns.split_at(1 + criteo_tsv::DENSE);
    let is_label = numbers[0].greatest <= Some(1.0) && numbers[0].distinct <= 2;
    let is_hex =
        |(text, _): &(String, u64)| text.len() == 8 && field::parse_hex(text.as_bytes()).is_ok();
    is_label
        && numbers.iter().all(|column| column.integers == column.present)
        && categories.iter().all(|column| column.values.iter().all(is_hex))
}
