//! Generates synthetic click data with a known truth. Labels are drawn from a planted model with
//! pairwise interactions, so a training run can be compared with the best AUC any model could
//! reach.
//!
//! The module `config` describes the data, `draw` draws ids and counts, `planted` computes
//! probabilities, and `text` formats lines. The modules `linear` and `score` compute numbers of the
//! report, and `file` writes files.

mod chunk;
mod config;
mod draw;
mod file;
mod linear;
mod planted;
mod reuse;
pub(crate) mod score;
mod text;

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ordered;
use chunk::{CHUNK_ROWS, for_each_chunk};
use planted::Planted;

pub use config::{Hotness, PlantedConfig, RowLayout, SyntheticConfig, SyntheticFeature};
pub use draw::DrawnBlock;
pub use reuse::reuse_histogram;

/// Largest number of rows, from the start of the file, on which the ceiling is measured.
const CEILING_ROWS: u64 = 1 << 20;

/// Measurements of the written file, with which the results of a training run can be compared.
///
/// The ceiling is the AUC of the true probabilities against the labels drawn from them. No model
/// can be expected to do better on these rows. The linear result comes from a logistic regression
/// on one-hot ids (ids without effect share a weight), on the presence of each field, and on
/// piecewise linear functions of `ln(1 + x)`. The regression starts from the planted additive part
/// and is fitted to the true probabilities of further rows. The better of start and fit is
/// reported. The linear result is therefore a lower estimate of the best linear model, which
/// training on labels will hardly exceed. exceed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticReport {
    pub rows: u64,
    /// Number of bytes of the text before it is compressed.
    pub bytes_text: u64,
    pub seed: u64,
    /// Share of clicks in the written rows.
    pub click_rate: f64,
    /// AUC of the true probabilities on the first `ceiling_rows` rows.
    pub ceiling_auc: f64,
    /// Normalized entropy of the true probabilities on the same rows.
    pub ceiling_normalized_entropy: f64,
    /// Number of rows on which the ceiling was measured.
    pub ceiling_rows: u64,
    /// AUC of the best linear model on the first `linear_rows` rows.
    pub linear_auc: f64,
    /// Number of rows on which the linear model was measured.
    pub linear_rows: u64,
    /// Number of rows, past the end of the file, to which the linear model was fitted.
    pub linear_fit_rows: u64,
}

/// Progress of writing, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProgress {
    pub rows: u64,
    /// Number of bytes of the text before it is compressed.
    pub bytes_text: u64,
}

/// Writes the rows to `path`, compressed if the name ends in `.gz` or `.zst`. The file appears
/// under its name only when it is complete.
///
/// # Errors
/// Returns [`Error::Synthetic`] for an impossible configuration, before any file is created, or
/// [`Error::Io`] if writing fails.
pub fn write(
    config: &SyntheticConfig,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(WriteProgress),
) -> Result<SyntheticReport, Error> {
    config.check()?;
    file::replace(path, |out| write_to(config, out, threads, progress))
}

/// Writes the rows to `out` without compression.
///
/// # Errors
/// Returns [`Error::Synthetic`] for an impossible configuration, or [`Error::Io`] if `out` fails.
pub fn write_to(
    config: &SyntheticConfig,
    out: &mut dyn Write,
    threads: usize,
    progress: &mut dyn FnMut(WriteProgress),
) -> Result<SyntheticReport, Error> {
    config.check()?;
    let planted = Planted::new(config);
    let mut tally = SyntheticTally::default();
    let header = text::header(config);
    let mut emit = |bytes: &[u8]| out.write_all(bytes).map_err(file::stream_error);
    emit(&header)?;
    tally.bytes_text = header.len() as u64;
    let make = |rows: Range<u64>| {
        let block = planted.block(config, rows);
        (text::lines(config, &block), block)
    };
    for_each_chunk(threads, 0..config.rows, make, |(lines, block)| {
        emit(&lines)?;
        tally.add(&lines, &block);
        progress(WriteProgress { rows: tally.rows, bytes_text: tally.bytes_text });
        Ok(())
    })?;
    let linear = linear::fit_best(config, &planted, threads)?;
    Ok(tally.report(config, &linear))
}

/// Generates the rows of a range, which may lie past the end of the file. Any range can be
/// generated without the rows before it.
///
/// # Errors
/// Returns [`Error::Synthetic`] for an impossible configuration.
pub fn draw_rows(config: &SyntheticConfig, rows: Range<u64>) -> Result<DrawnBlock, Error> {
    config.check()?;
    Ok(Planted::new(config).block(config, rows))
}

/// Computes the AUC of the true probabilities over a range of rows, such as the held-out ones.
///
/// # Errors
/// Returns [`Error::Synthetic`] for an impossible configuration.
pub fn ceiling_auc(
    config: &SyntheticConfig,
    rows: Range<u64>,
    threads: usize,
) -> Result<f64, Error> {
    config.check()?;
    let planted = Planted::new(config);
    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    let make = |rows: Range<u64>| planted.block(config, rows);
    for_each_chunk(threads, rows, make, |block| {
        scores.extend_from_slice(&block.probabilities);
        labels.extend_from_slice(&block.labels);
        Ok(())
    })?;
    Ok(score::auc(&scores, &labels))
}

/// Estimates the peak memory of writing the rows of `config`. The peak is that of the pilot rows on
/// which the planted model is scaled, of the chunks of the file, or of the chunks on which the
/// linear model is fitted.
#[must_use]
pub fn estimate_memory(config: &SyntheticConfig, threads: usize) -> u64 {
    let ids: f64 = config.features.iter().map(|feature| feature.hotness.mean()).sum();
    let row = draw::DrawnBlock::row_bytes(config, ids);
    let in_flight = (ordered::in_flight(threads) as u64 * CHUNK_ROWS) as f64;
    let rows = |most: u64| in_flight.min(most as f64);
    let written = rows(config.rows) * (row + text::row_bytes(config, ids));
    let fitted = rows(linear::fit_rows(config)) * (row + linear::row_bytes(config));
    let pilot = planted::PILOT_ROWS as f64 * row;
    // The report needs the probabilities and labels of the first rows.
    let kept = config.rows.min(CEILING_ROWS) as f64 * (size_of::<f64>() + size_of::<bool>()) as f64;
    (written.max(fitted).max(pilot) + kept) as u64
}

/// Running totals for the report of one file.
#[derive(Default)]
struct SyntheticTally {
    rows: u64,
    clicks: u64,
    bytes_text: u64,
    probabilities: Vec<f64>,
    labels: Vec<bool>,
}

impl SyntheticTally {
    fn add(&mut self, lines: &[u8], block: &DrawnBlock) {
        self.rows += block.labels.len() as u64;
        self.clicks += block.labels.iter().filter(|&&label| label).count() as u64;
        self.bytes_text += lines.len() as u64;
        if self.labels.len() as u64 + block.labels.len() as u64 <= CEILING_ROWS {
            self.probabilities.extend_from_slice(&block.probabilities);
            self.labels.extend_from_slice(&block.labels);
        }
    }

    fn report(&self, config: &SyntheticConfig, linear: &linear::BestLinear) -> SyntheticReport {
        SyntheticReport {
            rows: self.rows,
            bytes_text: self.bytes_text,
            seed: config.seed,
            click_rate: self.clicks as f64 / self.rows.max(1) as f64,
            ceiling_auc: score::auc(&self.probabilities, &self.labels),
            ceiling_normalized_entropy: score::normalized_entropy(
                &self.probabilities,
                &self.labels,
            ),
            ceiling_rows: self.labels.len() as u64,
            linear_auc: linear.auc,
            linear_rows: linear.rows,
            linear_fit_rows: linear.fit_rows,
        }
    }
}
