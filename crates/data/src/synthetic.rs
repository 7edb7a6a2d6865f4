//! Made-up click data with a known truth: labels come from a planted model with pairwise
//! interactions, so a training run can be held against the best AUC any model could reach.
//!
//! Owns the configuration, the file writing and the report. Knows nothing of how such files are
//! read or trained on; the parts live below: `draw` (ids and counts), `planted` (probabilities),
//! `text` (lines), `linear` and `score` (what the report states), `file`.

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

/// Rows at the file's beginning over which the ceiling is measured at most.
const CEILING_ROWS: u64 = 1 << 20;

/// What is known about the file that was written.
///
/// The ceiling is the AUC of the true probabilities against the labels drawn from them: no model
/// can expect more on these rows. The linear figure comes from a logistic regression on one-hot ids
/// (ids without effect share a weight, as they share the optimum), presence of each field and
/// piecewise linear functions of `ln(1 + x)`; it starts from the planted additive part and is
/// fitted to the true probabilities of further rows. The better of start and fit is reported, so it
/// is an estimate of the best linear model from below that training on labels will hardly beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticReport {
    pub rows: u64,
    /// Bytes of text, before compression.
    pub bytes_text: u64,
    /// Seed of the planted model and of the rows.
    pub seed: u64,
    /// Share of clicks among the rows written.
    pub click_rate: f64,
    /// AUC of the true probabilities over the first `ceiling_rows` rows.
    pub ceiling_auc: f64,
    /// Normalized entropy of the true probabilities over the same rows.
    pub ceiling_normalized_entropy: f64,
    /// Rows at the file's beginning over which the ceiling was measured.
    pub ceiling_rows: u64,
    /// AUC of the best linear model over the first `linear_rows` rows.
    pub linear_auc: f64,
    /// Rows at the file's beginning over which the linear model was measured.
    pub linear_rows: u64,
    /// Rows behind the file's end to which the linear model was fitted.
    pub linear_fit_rows: u64,
}

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProgress {
    /// Rows written so far.
    pub rows: u64,
    /// Bytes of text written so far, before compression.
    pub bytes_text: u64,
}

/// Writes the rows to `path`: compressed where it ends in `.gz` or `.zst`, under a temporary name
/// that becomes `path` once everything is on the disk.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met, before any file is touched;
/// [`Error::Io`] for what the disk says.
pub fn write(
    config: &SyntheticConfig,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(WriteProgress),
) -> Result<SyntheticReport, Error> {
    config.check()?;
    file::replace(path, |out| write_to(config, out, threads, progress))
}

/// Writes the rows to `out`, uncompressed.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met; [`Error::Io`] where `out` fails.
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

/// The rows of a range, which may lie behind the file's end: any part can be drawn by itself.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met.
pub fn draw_rows(config: &SyntheticConfig, rows: Range<u64>) -> Result<DrawnBlock, Error> {
    config.check()?;
    Ok(Planted::new(config).block(config, rows))
}

/// AUC of the true probabilities over a range of rows, such as the held-out ones.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met.
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

/// Bytes that writing such rows takes at most: the rows on which the planted model is scaled, or
/// the chunks of the file, or those of the linear model that is fitted to it.
#[must_use]
pub fn estimate_memory(config: &SyntheticConfig, threads: usize) -> u64 {
    let ids: f64 = config.features.iter().map(|feature| feature.hotness.mean()).sum();
    let row = draw::DrawnBlock::row_bytes(config, ids);
    let in_flight = (ordered::in_flight(threads) as u64 * CHUNK_ROWS) as f64;
    let rows = |most: u64| in_flight.min(most as f64);
    let written = rows(config.rows) * (row + text::row_bytes(config, ids));
    let fitted = rows(linear::fit_rows(config)) * (row + linear::row_bytes(config));
    let pilot = planted::PILOT_ROWS as f64 * row;
    // Probabilities and labels, for the figures.
    let kept = config.rows.min(CEILING_ROWS) as f64 * (size_of::<f64>() + size_of::<bool>()) as f64;
    (written.max(fitted).max(pilot) + kept) as u64
}

/// Running figures of one file.
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
