//! Estimates the peak memory of a [`super::Loader`] from the shape of its data. This module does
//! not open files.

use super::{FeaturePlan, Loaded, batches_ahead, batches_together};
use crate::dataset::column_shape::ColumnShape;
use crate::dataset::part;
use crate::load::decode_queue::{PIECE_ROWS_LEAST, decode_threads, pieces_ahead};
use crate::load::gather::{BatchBuilder, DecodedRows};
use crate::load::shuffle::ShuffleOrder;
use crate::prepare::shape::DataShape;

/// Number of windows from which memory is estimated. Later windows are alike.
const WINDOWS: usize = 64;

/// Number of arrays in a batch. The allocator's overhead for each dominates in small batches.
const ALLOCATIONS: usize = 4;
const ALLOCATION_BYTES: usize = 16;

/// Peak memory of a loader in bytes, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderMemory {
    /// Decoded rows of the window in use and of those ahead.
    pub decoded: u64,
    /// Batches in use, kept ready or being assembled.
    pub batches: u64,
    /// Buffers of the decoder threads.
    pub decoding: u64,
    /// Whether all rows fit in one window, which is decoded once and kept.
    pub is_one_window: bool,
}

impl LoaderMemory {
    /// Returns the decoder buffers that remain after the first batch has arrived.
    #[must_use]
    pub fn decoding_in_steps(&self) -> u64 {
        if self.is_one_window { 0 } else { self.decoding }
    }
}

/// The shape of the rows a loader reads, and the options that decide how many it holds.
#[derive(Clone, Debug)]
pub struct LoaderShape<'a> {
    pub data: &'a DataShape,
    pub features: &'a FeaturePlan,
    pub rows: u64,
    pub batch_size: usize,
    /// Size of the shuffle buffer; 0 without shuffling.
    pub shuffle_rows: usize,
    pub epochs: u64,
    /// Number of ranks that share the reading; 1 for a loader that reads whole batches.
    pub ranks: u64,
}

impl LoaderShape<'_> {
    /// Estimates the peak memory of the loader.
    #[must_use]
    pub fn memory(&self) -> LoaderMemory {
        if self.rows == 0 {
            return LoaderMemory::default();
        }
        let (window, mut held, pieces) = self.rows_held();
        // The permutation of the rows of the window in use takes memory, too.
        let order = window * size_of::<(u32, u32)>() as u64;
        if self.ranks > 1 {
            // Besides the pieces that it decodes, a rank holds its rows of the window in use and of
            // the next one, and the messages of one window in both directions.
            held = (held + 4 * window).div_ceil(self.ranks);
        }
        let decoded =
            (held as f64 * DecodedRows::row_bytes(&self.columns(), self.data.dense)) as u64;
        let group = self.data.row_group_rows.min(self.rows);
        let decoders = (decode_threads() as u64).min(pieces.div_ceil(self.ranks));
        LoaderMemory {
            is_one_window: window == self.rows,
            decoded: decoded + order,
            batches: self.batches(),
            decoding: decoders * part::decode_bytes(self.data.dense, &self.used(), group),
        }
    }

    fn batches(&self) -> u64 {
        let samples = self.batch_size.min(usize::try_from(self.rows).unwrap_or(usize::MAX));
        let samples = samples.div_ceil(self.ranks as usize);
        let features = self.features.columns.len();
        let together = batches_together(self.batch_size);
        let queued = batches_ahead(features, self.batch_size) * together;
        // Besides the queued batches, one group of batches is in use, and another is assembled or
        // waits for a place in the queue. Small data may not have that many batches.
        let whole = ((queued + 2 * together) as u64).saturating_mul(samples as u64);
        let held = whole.min(self.rows.div_ceil(self.ranks).saturating_mul(self.epochs));
        let ids: f64 = self.columns().iter().map(|column| column.ids_per_row).sum();
        let ids_of_group = (ids * samples as f64) as usize;
        let content = schema::Batch::bytes(samples, self.data.dense, features, ids_of_group);
        let batch = (content + size_of::<Loaded>() + ALLOCATIONS * ALLOCATION_BYTES) as f64;
        let filling = BatchBuilder::bytes(samples * features, ids_of_group) as u64;
        (held as f64 * batch / samples.max(1) as f64) as u64 + filling
    }

    /// Returns the column of each feature.
    fn columns(&self) -> Vec<ColumnShape> {
        let single =
            |name: &String| ColumnShape { name: name.clone(), ids_per_row: 1.0, is_list: false };
        let columns = self.features.columns.iter();
        columns
            .map(|(name, _)| self.data.column(name).cloned().unwrap_or_else(|| single(name)))
            .collect()
    }

    /// Returns each column in use once.
    fn used(&self) -> Vec<ColumnShape> {
        let mut columns = self.columns();
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        columns.dedup_by(|a, b| a.name == b.name);
        columns
    }

    /// Returns the rows of the largest window, the rows of all windows held at the same time, and
    /// the pieces decoded at the same time.
    fn rows_held(&self) -> (u64, u64, u64) {
        let order = ShuffleOrder {
            seed: (self.shuffle_rows > 0).then_some(0),
            buffer_rows: self.shuffle_rows as u64,
            batch_size: self.batch_size as u64,
            drop_last: false,
            first_row: 0,
            end_row: self.rows,
            row_group_rows: self.data.row_group_rows.max(1),
        };
        let decoders = decode_threads();
        let ahead = pieces_ahead(decoders) * self.ranks as usize;
        let per_group = if self.ranks > 1 { 1 } else { decoders.div_ceil(order.groups() as usize) };
        let mut windows = order.windows(0).0;
        // If the dataset is one window, the next epoch reuses its rows.
        if windows.len() == 1 {
            let pieces = windows.remove(0).divided(per_group, PIECE_ROWS_LEAST).pieces.len();
            return (self.rows, self.rows, pieces as u64);
        }
        if self.epochs > 1 {
            windows.extend(order.windows(1).0);
        }
        let windows = windows.into_iter().take(WINDOWS);
        let windows: Vec<(usize, u64)> = windows
            .map(|window| window.divided(per_group, PIECE_ROWS_LEAST))
            .map(|window| {
                let rows = window.pieces.iter().map(|piece| piece.rows.len() as u64).sum();
                (window.pieces.len(), rows)
            })
            .collect();
        let held = |first: usize| {
            let (mut pieces, mut rows) = (0, windows[first].1);
            for &(count, more) in &windows[first + 1..] {
                if pieces >= ahead {
                    break;
                }
                pieces += count;
                rows += more;
            }
            rows
        };
        let largest = windows.iter().map(|&(_, rows)| rows).max().unwrap_or(0);
        let most = (0..windows.len()).map(held).max().unwrap_or(0);
        (largest, most, decoders as u64 * self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: u64, shuffle_rows: usize, epochs: u64, ranks: u64) -> (u64, u64) {
        let data = DataShape {
            rows,
            row_group_rows: 10,
            dense: 0,
            categorical: Vec::new(),
            vocabulary: 0,
            text_row_bytes: 0.0,
        };
        let features = FeaturePlan { columns: Vec::new() };
        let shape = LoaderShape {
            data: &data,
            features: &features,
            rows,
            batch_size: 4,
            shuffle_rows,
            epochs,
            ranks,
        };
        let (window, held, _) = shape.rows_held();
        (window, held)
    }

    #[test]
    fn a_single_window_is_held_once_and_others_with_their_successors() {
        assert_eq!(check(95, 1000, 9, 1), (95, 95));
        let ahead = pieces_ahead(decode_threads()) as u64;
        // Without shuffling, each row group is a window.
        assert_eq!(check(10_000, 0, 1, 1), (10, 10 + 10 * ahead));
        // A window has as many groups as are decoded ahead, so one further window is enough.
        assert_eq!(check(10_000, 10 * ahead as usize, 1, 1), (10 * ahead, 20 * ahead));
        // The dataset has only 20 rows, so both of its windows are held.
        assert_eq!(check(20, 10, 1, 1), (10, 20));
    }
    #[test]
    fn ranks_that_share_the_reading_hold_as_many_rows_together_and_read_further_ahead() {
        let ahead = pieces_ahead(decode_threads()) as u64;
        assert_eq!(check(10_000, 0, 1, 4), (10, 10 + 10 * 4 * ahead));
        let data = DataShape {
            rows: 1_000_000,
            row_group_rows: 1000,
            dense: 3,
            categorical: Vec::new(),
            vocabulary: 0,
            text_row_bytes: 0.0,
        };
        let memory = |ranks| {
            let (features, rows) = (FeaturePlan { columns: Vec::new() }, data.rows);
            let (data, batch_size, shuffle_rows) = (&data, 1024, 500_000);
            let epochs = 1;
            let shape = LoaderShape {
                data,
                features: &features,
                rows,
                batch_size,
                shuffle_rows,
                epochs,
                ranks,
            };
            shape.memory()
        };
        let (one, four) = (memory(1), memory(4));
        assert!(four.decoded < one.decoded && 3 * four.batches < one.batches, "{one:?} {four:?}");
    }
}
