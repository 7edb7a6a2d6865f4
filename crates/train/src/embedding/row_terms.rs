//! Exchanges what an update rule needs of whole rows between the ranks that hold columns of them:
//! the sum of squares of row-wise Adagrad, and the norms of LAMB.
//!
//! All tiles of a row receive the same ids, so they update the same rows in the same order, and
//! ranks need not say to which rows their terms belong. Terms are added in the order of columns,
//! whichever rank holds them.

use std::ops::Range;

use device::Backend;
use device::ops::embedding_backward::RowSums;
use schema::{Rank, ShardingPlan, Tile};

use super::tables::TableGroup;
use crate::Error;
use crate::context::DeviceQueue;
use crate::lane::{AllToAll, Lane};

/// Number of terms of a row.
const TERMS: usize = 2;

/// The exchange of terms between the column tiles of a plan. The next step reuses its buffers.
pub struct RowTermExchange {
    /// Rows that tiles of this rank share with other tiles, in the order in which their terms are
    /// sent.
    sent: Vec<SharedRows>,
    /// Shared rows in the order in which the terms of the other tiles are received.
    received: Vec<SharedRows>,
    /// Terms that make up those of this rank's tiles, by tile and column: a position in
    /// `received`, or the tile's own terms.
    parts: Vec<TermSource>,
    own: Vec<f32>,
    totals: Vec<f32>,
    /// Place of each element of `received` in the message of its rank.
    places: Vec<usize>,
    spare: AllToAll<f32>,
}

/// Rows that a tile of this rank shares with another tile.
#[derive(Clone, Debug)]
struct SharedRows {
    /// The rank of the other tile.
    rank: usize,
    /// Numbers of the shared rows, counted over all tiles of this rank.
    rows: Range<u64>,
}

/// Terms of some rows of this rank, which are added to their totals.
#[derive(Clone, Debug)]
enum TermSource {
    /// Terms that this rank computed for the rows of one of its tiles.
    Own(Range<u64>),
    /// Position in the list of received rows.
    Received(usize),
}

impl RowTermExchange {
    /// Finds the rows that the tiles of `rank` share with other tiles of the plan.
    #[must_use]
    pub fn new(plan: &ShardingPlan, rank: Rank) -> Self {
        let (mut sent, mut received, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_row = 0;
        for (number, own) in plan.tiles_of(rank).enumerate() {
            let numbered = |rows: Range<u64>| {
                first_row + rows.start - own.rows.start..first_row + rows.end - own.rows.start
            };
            let mut sources = vec![(own.columns.start, None)];
            for (sender, other) in plan.tiles().iter().enumerate() {
                let Some(rows) = shared_rows(own, other) else { continue };
                let shared = SharedRows { rank: other.rank.index(), rows: numbered(rows) };
                sent.push(shared.clone());
                // The sender orders its terms by its own tile first.
                received.push(((sender, number), shared));
                sources.push((other.columns.start, Some((sender, number))));
            }
            sources.sort_by_key(|source| source.0);
            let own_rows = numbered(own.rows.clone());
            parts.extend(sources.into_iter().map(|(_, key)| (key, own_rows.clone())));
            first_row += own.rows.end - own.rows.start;
        }
        received.sort_by_key(|(key, _)| *key);
        let source = |(key, own_rows): (Option<(usize, usize)>, Range<u64>)| {
            let place = key.and_then(|key| received.iter().position(|(other, _)| *other == key));
            place.map_or(TermSource::Own(own_rows), TermSource::Received)
        };
        Self {
            sent,
            parts: parts.into_iter().map(source).collect(),
            received: received.into_iter().map(|(_, shared)| shared).collect(),
            own: Vec::new(),
            totals: Vec::new(),
            places: Vec::new(),
            spare: AllToAll::default(),
        }
    }

    /// Returns the bytes for `rows` rows, beside the messages.
    #[must_use]
    pub fn bytes(rows: usize) -> usize {
        2 * TERMS * rows * size_of::<f32>()
    }

    /// Computes the terms of this rank's columns from the summed gradients of its rows.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn compute<B: Backend>(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        group: &mut TableGroup<B>,
        sums: &RowSums,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        device.row_terms(queue, group.on_device(), sums, scalars, &mut self.own)?;
        self.totals.clear();
        self.totals.resize(self.own.len(), 0.0);
        Ok(())
    }

    /// Exchanges the terms of `rows` whose columns are split, and adds them up; see
    /// [`Self::totals`].
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange(&mut self, lane: &mut Lane<AllToAll<f32>>, rows: &[u64]) -> Result<(), Error> {
        let mut exchange = std::mem::take(&mut self.spare);
        for rank in 0..lane.settings().world_size() {
            let sent = || self.sent.iter().filter(|shared| shared.rank == rank);
            let len = sent().map(|shared| terms_of(rows, &shared.rows).len()).sum();
            let (mut part, mut at) = (lane.settings().buffer(len), 0);
            for shared in sent() {
                let terms = &self.own[terms_of(rows, &shared.rows)];
                part[at..at + terms.len()].copy_from_slice(terms);
                at += terms.len();
            }
            exchange.parts.push(part);
        }
        lane.start(exchange)?;
        let mut exchange = lane.finish()?;
        self.add_up(&exchange.parts, rows);
        exchange.parts.drain(..).for_each(|part| lane.keep(part));
        self.spare = exchange;
        Ok(())
    }

    /// Adds the terms of all tiles to the totals, which are zeros.
    fn add_up(&mut self, messages: &[Vec<f32>], rows: &[u64]) {
        self.places.clear();
        for (number, shared) in self.received.iter().enumerate() {
            let before = self.received[..number].iter().filter(|other| other.rank == shared.rank);
            self.places.push(before.map(|other| terms_of(rows, &other.rows).len()).sum());
        }
        for part in &self.parts {
            let (range, terms) = match part {
                TermSource::Own(own) => {
                    let range = terms_of(rows, own);
                    (range.clone(), &self.own[range])
                }
                TermSource::Received(number) => {
                    let SharedRows { rank, rows: shared } = &self.received[*number];
                    let range = terms_of(rows, shared);
                    let place = self.places[*number];
                    (range.clone(), &messages[*rank][place..place + range.len()])
                }
            };
            let totals = self.totals[range].iter_mut();
            totals.zip(terms).for_each(|(total, term)| *total += term);
        }
    }

    /// The terms of the whole rows of the exchange that ended last, `[rows, 2]`.
    #[must_use]
    pub fn totals(&self) -> &[f32] {
        &self.totals
    }
}

/// Returns the rows that two tiles of a table share, if they hold different columns of them.
fn shared_rows(own: &Tile, other: &Tile) -> Option<Range<u64>> {
    let rows = own.rows.start.max(other.rows.start)..own.rows.end.min(other.rows.end);
    let is_other = own.columns.start != other.columns.start;
    (own.table == other.table && is_other && !rows.is_empty()).then_some(rows)
}

/// Returns the places of the terms of the `touched` rows that lie in `rows`.
fn terms_of(touched: &[u64], rows: &Range<u64>) -> Range<usize> {
    let place = |bound: u64| TERMS * touched.partition_point(|&row| row < bound);
    place(rows.start)..place(rows.end)
}
