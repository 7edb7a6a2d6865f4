//! The order of rows in an epoch, and positions in it. This module computes without files or
//! threads.
//!
//! Row groups are permuted and taken in *windows* that fit the shuffle buffer. Within a window,
//! rows are permuted (Fisher–Yates). Both permutations depend only on seed, epoch and window, so
//! any position can be reached by decoding a single window.

use std::ops::Range;

use schema::random::CounterRng;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Separates the shuffle's random numbers from other uses of the seed.
const STREAM: u64 = 0x7368_7566_666c_6531;

/// All settings on which the order of rows and batches depends. The settings are saved with a
/// position, so that resuming with other settings is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuffleOrder {
    /// Seed of the shuffle. Without a seed, rows keep the order of the files.
    pub seed: Option<u64>,
    /// Rows in the shuffle buffer; 0 without shuffling.
    pub buffer_rows: u64,
    pub batch_size: u64,
    pub drop_last: bool,
    pub first_row: u64,
    /// End of the rows, which is exclusive.
    pub end_row: u64,
    pub row_group_rows: u64,
}

/// A position between two batches. Resuming there yields exactly the batches that would have
/// followed. [`Position::default`] is the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch of the next batch, from 0.
    pub epoch: u64,
    /// Batches of that epoch already consumed.
    pub batch: u64,
    /// Index of the window that holds the next row.
    pub window: u64,
    /// Rows of that window already consumed.
    pub offset: u64,
    /// Settings of the order that the position belongs to; `None` matches any order.
    pub order: Option<ShuffleOrder>,
}

/// A contiguous part of one row group, which one thread decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupPiece {
    pub group: u64,
    /// Rows of the piece, relative to the start of the group.
    pub rows: Range<u32>,
}

/// One of the ranks that share the reading of a dataset. Each decodes a part of the row groups and
/// returns its consecutive part of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankShare {
    pub rank: u64,
    pub ranks: u64,
}

impl RankShare {
    /// The only rank of a loader that shares nothing.
    pub(crate) const ALONE: Self = Self { rank: 0, ranks: 1 };

    /// Returns this rank's part of `count` samples.
    pub(crate) fn part_of(self, count: u64) -> Range<u64> {
        let cut = |rank| count * rank / self.ranks;
        cut(self.rank)..cut(self.rank + 1)
    }
}

/// Row groups that are decoded and shuffled together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupWindow {
    pub epoch: u64,
    pub index: u64,
    /// Position of the window's first row within the epoch.
    pub first_row: u64,
    pub pieces: Vec<GroupPiece>,
}

impl GroupPiece {
    /// Divides the piece into up to `most` pieces of at least `rows_least` rows.
    fn divided(&self, most: usize, rows_least: usize) -> impl Iterator<Item = Self> + use<> {
        let Range { start, end } = self.rows;
        let count = (self.rows.len() / rows_least).clamp(1, most.max(1)) as u64;
        let cut = move |at: u64| start + (u64::from(end - start) * at / count) as u32;
        let group = self.group;
        (0..count).map(move |at| Self { group, rows: cut(at)..cut(at + 1) })
    }
}

impl GroupWindow {
    /// Divides each piece of the window into up to `most` pieces of at least `rows_least` rows.
    pub(crate) fn divided(self, most: usize, rows_least: usize) -> Self {
        let divided = |piece: &GroupPiece| piece.divided(most, rows_least);
        Self { pieces: self.pieces.iter().flat_map(divided).collect(), ..self }
    }

    pub(crate) fn row_count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.rows.len() as u64).sum()
    }

    /// Returns the rank that reads each piece, among `ranks`. Ranks take turns in the order of the
    /// row groups in the dataset: a window has the same readers in each epoch that reuses it.
    pub(crate) fn readers(&self, ranks: u64) -> Vec<u64> {
        let mut by_group: Vec<usize> = (0..self.pieces.len()).collect();
        by_group.sort_by_key(|&piece| self.pieces[piece].group);
        // The turn goes on in the next window, which may have fewer pieces than there are ranks.
        let turn = self.index * self.pieces.len() as u64;
        let mut readers = vec![0; self.pieces.len()];
        for (turn, piece) in (turn..).zip(by_group) {
            readers[piece] = turn % ranks;
        }
        readers
    }

    /// Returns the pieces that a rank reads.
    pub(crate) fn own_pieces(&self, share: RankShare) -> Vec<GroupPiece> {
        let readers = self.readers(share.ranks);
        let own = self.pieces.iter().zip(readers).filter(|&(_, reader)| reader == share.rank);
        own.map(|(piece, _)| piece.clone()).collect()
    }
}

impl ShuffleOrder {
    pub(crate) fn rows(&self) -> u64 {
        self.end_row - self.first_row
    }

    /// Returns the number of row groups in an epoch.
    pub(crate) fn groups(&self) -> u64 {
        self.end_row.div_ceil(self.row_group_rows) - self.first_row / self.row_group_rows
    }

    /// Returns the number of batches in an epoch.
    pub(crate) fn batches(&self) -> u64 {
        if self.drop_last {
            self.rows() / self.batch_size
        } else {
            self.rows().div_ceil(self.batch_size)
        }
    }

    fn rng(&self, epoch: u64) -> Option<CounterRng> {
        self.seed.map(|seed| CounterRng::new(seed, STREAM).child(epoch))
    }

    /// Returns the windows of `epoch` in order, and the cumulative number of rows up to the end of
    /// each.
    pub(crate) fn windows(&self, epoch: u64) -> (Vec<GroupWindow>, Vec<u64>) {
        let size = self.row_group_rows;
        let mut groups: Vec<u64> = (self.first_row / size..self.end_row.div_ceil(size)).collect();
        let mut per_window = 1;
        if let Some(rng) = self.rng(epoch) {
            // No window has this number, so the order of row groups is independent of the order of
            // rows within windows.
            shuffle_items(&mut groups, rng.child(u64::MAX));
            // Without shuffling, a window is one row group, because a larger one would only take
            // more memory.
            per_window = self.buffer_rows.div_ceil(size).max(1) as usize;
        }
        let mut end = 0;
        let (mut windows, mut ends) = (Vec::new(), Vec::new());
        for (index, groups) in (0..).zip(groups.chunks(per_window)) {
            let pieces: Vec<GroupPiece> = groups.iter().map(|&group| self.piece(group)).collect();
            let first_row = end;
            let window = GroupWindow { epoch, index, first_row, pieces };
            end += window.row_count();
            windows.push(window);
            ends.push(end);
        }
        (windows, ends)
    }

    fn piece(&self, group: u64) -> GroupPiece {
        let start = group * self.row_group_rows;
        let end = (start + self.row_group_rows).min(self.end_row);
        let first = self.first_row.max(start);
        GroupPiece { group, rows: (first - start) as u32..(end - start) as u32 }
    }

    /// Returns the rows of `window` in shuffled order as (piece, row within the piece). The order
    /// does not depend on how the window is divided into pieces.
    pub(crate) fn rows_of(&self, window: &GroupWindow) -> Vec<(u32, u32)> {
        let mut rows: Vec<(u32, u32)> = (0..)
            .zip(&window.pieces)
            .flat_map(|(piece, part)| (0..part.rows.len() as u32).map(move |row| (piece, row)))
            .collect();
        if let Some(rng) = self.rng(window.epoch) {
            shuffle_items(&mut rows, rng.child(window.index));
        }
        rows
    }

    /// Returns the rows of `window` that follow `start`, in shuffled order, see [`Self::rows_of`].
    pub(crate) fn rows_from(&self, start: &Position, window: &GroupWindow) -> Vec<(u32, u32)> {
        let mut rows = self.rows_of(window);
        if (window.epoch, window.index) == (start.epoch, start.window) {
            rows.drain(..start.offset as usize);
        }
        rows
    }

    /// Returns the number of samples of batch `batch` of an epoch, or 0 after the last batch.
    pub(crate) fn batch_samples(&self, batch: u64) -> u64 {
        let is_batch = batch < self.batches();
        let left = || self.rows() - batch * self.batch_size;
        if is_batch { left().min(self.batch_size) } else { 0 }
    }

    /// Returns the number of batches between `start` and the batch that holds the first row of
    /// `window`.
    pub(crate) fn first_batch_of(&self, window: &GroupWindow, start: &Position) -> u64 {
        let batch = (window.first_row / self.batch_size).min(self.batches());
        ((window.epoch - start.epoch) * self.batches() + batch).saturating_sub(start.batch)
    }

    /// Returns the position after `batch` batches of `epoch`, whose windows end at rows `ends`.
    pub(crate) fn position(&self, epoch: u64, batch: u64, ends: &[u64]) -> Position {
        let order = Some(*self);
        if batch >= self.batches() {
            return Position { epoch: epoch + 1, batch: 0, window: 0, offset: 0, order };
        }
        let row = batch * self.batch_size;
        let window = ends.partition_point(|&end| end <= row);
        let start = if window == 0 { 0 } else { ends[window - 1] };
        Position { epoch, batch, window: window as u64, offset: row - start, order }
    }

    /// Checks that `start` is a valid position of this order and fills in its window and offset.
    pub(crate) fn resume(&self, start: &Position) -> Result<Position, Error> {
        let (_, ends) = self.windows(start.epoch);
        if let Some(saved) = &start.order {
            self.check_same(saved)?;
        }
        if start.batch > self.batches() {
            return Err(position_mismatch(
                "batch",
                &format!("at most {}", self.batches()),
                &start.batch,
            ));
        }
        let position = self.position(start.epoch, start.batch, &ends);
        let place = |position: &Position| (position.window, position.offset);
        // Equal settings must give the saved place again. If they do not, the saved position is
        // damaged.
        if start.order.is_some() && start.batch < self.batches() && place(&position) != place(start)
        {
            let text = |(window, offset)| format!("window {window}, offset {offset}");
            return Err(position_mismatch("row", &text(place(&position)), &text(place(start))));
        }
        Ok(position)
    }

    fn check_same(&self, saved: &Self) -> Result<(), Error> {
        let named = |order: &Self| {
            [
                ("seed", order.seed.map_or("none".to_owned(), |seed| seed.to_string())),
                ("shuffle rows", order.buffer_rows.to_string()),
                ("batch size", order.batch_size.to_string()),
                ("drop last", order.drop_last.to_string()),
                ("first row", order.first_row.to_string()),
                ("end row", order.end_row.to_string()),
                ("rows of a row group", order.row_group_rows.to_string()),
            ]
        };
        for ((what, expected), (_, got)) in named(saved).iter().zip(named(self)) {
            if *expected != got {
                return Err(position_mismatch(what, expected, &got));
            }
        }
        Ok(())
    }
}

fn position_mismatch(
    what: &'static str,
    expected: &dyn std::fmt::Display,
    got: &dyn std::fmt::Display,
) -> Error {
    Error::PositionMismatch { what, expected: expected.to_string(), got: got.to_string() }
}

fn shuffle_items<T>(items: &mut [T], rng: CounterRng) {
    for last in (1..items.len()).rev() {
        // The items are shuffled by Fisher–Yates from the end. The index is also the counter of the
        // random number, so no state is kept.
        items.swap(last, rng.below(last as u64, last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupWindow, Position, ShuffleOrder};

    fn order(seed: Option<u64>) -> ShuffleOrder {
        ShuffleOrder {
            seed,
            buffer_rows: 25,
            batch_size: 7,
            drop_last: false,
            first_row: 13,
            end_row: 98,
            row_group_rows: 10,
        }
    }

    fn rows(order: &ShuffleOrder, epoch: u64) -> Vec<u64> {
        let (windows, ends) = order.windows(epoch);
        let mut all = Vec::new();
        for (window, end) in windows.iter().zip(ends) {
            let rows = order.rows_of(window);
            let row = |window: &GroupWindow, &(piece, row): &(u32, u32)| {
                let piece = &window.pieces[piece as usize];
                piece.group * 10 + u64::from(piece.rows.start + row)
            };
            all.extend(rows.iter().map(|at| row(window, at)));
            assert_eq!(all.len() as u64, end);
            for (most, rows_least, least) in [(1, 1, 1), (2, 5, 1), (3, 1, 3), (100, 3, 1)] {
                let divided = window.clone().divided(most, rows_least);
                assert!(divided.pieces.len() >= window.pieces.len() * least);
                let again: Vec<u64> =
                    order.rows_of(&divided).iter().map(|at| row(&divided, at)).collect();
                assert_eq!(again, all[all.len() - rows.len()..]);
            }
        }
        all
    }

    #[test]
    fn an_epoch_is_a_permutation_that_differs_by_epoch_and_seed() {
        let straight: Vec<u64> = (13..98).collect();
        assert_eq!(rows(&order(None), 3), straight);
        let first = rows(&order(Some(1)), 0);
        assert_eq!(first, rows(&order(Some(1)), 0));
        assert_ne!(first, rows(&order(Some(1)), 1));
        assert_ne!(first, rows(&order(Some(2)), 0));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, straight);
    }

    #[test]
    fn a_position_of_another_order_is_refused() {
        let mine = order(Some(1));
        let saved = mine.position(0, 5, &mine.windows(0).1);
        assert_eq!(mine.resume(&saved).ok(), Some(saved.clone()));
        let other = ShuffleOrder { batch_size: 8, ..mine };
        let text = other.resume(&saved).map_err(|error| error.to_string());
        assert_eq!(text, Err("resume position: batch size: expected 7, got 8".to_owned()));
        let moved = Position { offset: saved.offset + 1, ..saved };
        assert!(mine.resume(&moved).is_err());
    }

    #[test]
    fn the_end_of_an_epoch_is_the_start_of_the_next() {
        let order = order(Some(1));
        assert_eq!(order.batches(), 13);
        let end = order.position(2, 13, &order.windows(2).1);
        assert_eq!((end.epoch, end.batch, end.window, end.offset), (3, 0, 0, 0));
    }
}
