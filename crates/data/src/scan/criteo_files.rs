//! Reads files in Criteo's layout into columns of integers, block by block in order, and skips
//! malformed lines. Values are raw: neither transformed nor taken modulo the table's rows.

use schema::DataConfig;
use schema::source::{DataFormat, Preset};

use crate::error::Error;
use crate::loss::Losses;
use crate::parse::block::BlockPace;
use crate::parse::criteo_tsv::{CATEGORICAL, DENSE};
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::{LabelNeed, WantedColumns};
use crate::scan::ScanInputs;
use crate::scan::limit::Strictness;
use crate::scan::progress::ProgressMeter;

/// Reads files in Criteo's layout into columns of integers, block by block in their order, and
/// skips malformed lines. Values are as they are written, neither transformed nor taken modulo
/// anything.
///
/// # Errors
/// Returns any [`Error`] of reading the files, or the first error of `take`.
pub fn scan_criteo_files(
    inputs: &[String],
    threads: usize,
    mut take: impl FnMut(IntegerColumns) -> Result<(), Error>,
) -> Result<Losses, Error> {
    let preset = Some(Preset::CriteoDlrm);
    let config = DataConfig { preset, ..DataConfig::new(DataFormat::Criteo) };
    let wanted = WantedColumns::new(&config)?;
    let source = ScanInputs {
        inputs,
        config: &config,
        wanted: &wanted,
        label: LabelNeed::Optional,
        strictness: Strictness::ANY,
        pace: BlockPace::FullBlocks,
        threads,
    };
    source.check(1)?;
    let mut silent = |_| {};
    let mut meter = ProgressMeter::new(config.format, inputs, 1, &mut silent)?;
    source.scan(
        &mut meter,
        || IntegerColumns::with_room(DENSE, CATEGORICAL, 0),
        |block| take(block.sink),
    )
}
