//! Sends pooled vectors to the ranks of their samples, and sends the gradients of these vectors
//! back.
//!
//! Vectors of tiles that a host can add up take the exchange over two levels, and all others go
//! from rank to rank. This file decides which message carries which columns of the vectors. The
//! device copies the columns into messages, and adds up what arrives.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use device::Backend;
use device::backend::{Assemble, ExchangeLayout, Gather};
use device::ops::exchange::{OwnedColumns, PooledColumns};
use schema::Rank;

use super::layout::{Slot, SlotLayout};
use crate::Error;
use crate::context::{DeviceQueue, PooledLanes};
use crate::lane::{AllToAll, HostDirection, HostExchange};
use crate::memory::CountingAllocator;

/// Computes the size of the messages of an exchange for `samples` of a group. With several ranks,
/// gradients exist twice: as received and concatenated. Sums of hosts exist once in each direction.
pub(super) fn message_bytes(layout: &SlotLayout, rank: usize, samples: usize) -> usize {
    let (ranks, vectors) = (layout.group_size(), samples * layout.local_width(rank));
    let sums = samples.div_ceil(ranks) * layout.widths[ranks..].iter().sum::<usize>();
    size_of::<f32>() * if ranks > 1 { 2 * (vectors + sums) } else { vectors }
}

/// Computes the layout of the exchange: the source and the destination of every column.
///
/// The message of `rank` to itself stays where it is. It has all columns of the rank's tiles, those
/// that its host adds up included.
fn exchange_layout(layout: &SlotLayout, rank: usize) -> ExchangeLayout {
    let source = |slot: &Slot| PooledColumns {
        rank: slot.message,
        from: slot.message_column,
        to: slot.column,
        len: slot.dim,
        first: slot.first,
    };
    let mut columns = vec![Vec::new(); layout.widths.len()];
    for slot in &layout.in_sum_order {
        let (from, len) = (slot.column, slot.dim);
        columns[slot.message].push(OwnedColumns { from, to: slot.message_column, len });
        if slot.message == layout.host_message(rank) {
            columns[rank].push(OwnedColumns { from, to: layout.local_column(rank, slot), len });
        }
    }
    let mut widths = layout.widths.clone();
    widths[rank] = layout.local_width(rank);
    let sources = layout.in_sum_order.iter().map(source).collect();
    ExchangeLayout { sources, columns, widths, row: layout.pooled_width }
}

/// The exchange of pooled vectors and of their gradients. The next step reuses its buffers.
pub struct PooledExchange<B: Backend> {
    layout: Arc<SlotLayout>,
    rank: usize,
    on_device: B::Exchange,
    /// Buffers while no exchange is under way.
    by_rank: AllToAll<f32>,
    by_host: HostExchange,
    gradient: B::Vector,
}

/// The gradient of the pooled vectors of this rank's samples.
pub struct PooledGradient<'a, B: Backend> {
    /// `[B, ΣD]`
    pub d_pooled: &'a B::Vector,
    pub samples: usize,
    /// Factor of the gradients of tiles, if they are those of another loss than `d_pooled`.
    pub factor: Option<f32>,
}

/// A reference to the pooled vectors that a rank looked up for the samples of all ranks.
pub struct LocalVectors<'a, B: Backend> {
    /// `[B_global, width]`, see [`SlotLayout::local_width`].
    pub vectors: &'a B::Vector,
    /// Samples of each rank.
    pub batch_sizes: &'a [usize],
}

// Derived impls would demand `B: Clone`, which devices are not.
impl<B: Backend> Clone for LocalVectors<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LocalVectors<'_, B> {}

impl<B: Backend> PooledExchange<B> {
    /// Creates the exchange of `rank`.
    #[must_use]
    pub fn new(room: &mut CountingAllocator<'_, B>, layout: Arc<SlotLayout>, rank: Rank) -> Self {
        let rank = rank.index();
        Self {
            on_device: room.exchange(exchange_layout(&layout, rank)),
            layout,
            rank,
            by_rank: AllToAll::default(),
            by_host: HostExchange::default(),
            gradient: B::Vector::default(),
        }
    }

    /// Sends each rank the rows of its samples. This rank's own part is not copied, unless its host
    /// adds it up.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    /// # Panics
    /// Panics if the lanes were not opened for the plan of this exchange.
    pub fn send_vectors(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lanes: &mut PooledLanes,
        local: LocalVectors<'_, B>,
    ) -> Result<(), Error> {
        let (width, own_columns) =
            (self.layout.local_width(self.rank), self.layout.widths[self.rank]);
        let mut at = 0;
        for (rank, samples) in local.batch_sizes.iter().enumerate() {
            let values = at..at + samples * width;
            at = values.end;
            // This rank's own part is read in place.
            let samples_sent = if rank == self.rank { 0 } else { *samples };
            let mut part = lanes.buffer(samples_sent * own_columns);
            let mut sum = lanes.buffer(samples * (width - own_columns));
            if !part.is_empty() || !sum.is_empty() {
                device.lend(queue, local.vectors, values, &mut |values| {
                    copy_columns(values, width, 0..own_columns, &mut part);
                    copy_columns(values, width, own_columns..width, &mut sum);
                })?;
            }
            self.by_rank.parts.push(part);
            self.by_host.parts.push(sum);
        }
        self.start(lanes, HostDirection::Reduce)
    }

    /// Receives what the peers sent and assembles the pooled vectors `[B, ΣD]` of this rank's
    /// `samples`, which are overwritten.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    /// # Panics
    /// Panics if the lanes were not opened for the plan of this exchange.
    pub fn receive_vectors(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lanes: &mut PooledLanes,
        local: LocalVectors<'_, B>,
        pooled: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        self.finish(lanes)?;
        let own_first = local.batch_sizes[..self.rank].iter().sum::<usize>()
            * self.layout.local_width(self.rank);
        let hosts = self.layout.widths.len() - self.layout.group_size();
        self.by_host.parts.resize_with(hosts, Vec::new);
        let parts = &mut self.by_rank.parts;
        parts.append(&mut self.by_host.parts);
        let (own, local) = ((self.rank, own_first), local.vectors);
        let arguments = Assemble { own, local, parts, samples };
        device.assemble(queue, &mut self.on_device, arguments, pooled)?;
        parts.drain(..).for_each(|part| lanes.by_rank.keep(part));
        Ok(())
    }

    /// Sends each owner its columns of a gradient.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    /// # Panics
    /// Panics if the lanes were not opened for the plan of this exchange.
    pub fn send_gradient(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lanes: &mut PooledLanes,
        given: PooledGradient<'_, B>,
    ) -> Result<(), Error> {
        let PooledGradient { d_pooled, samples, factor } = given;
        let ranks = self.layout.group_size();
        for (message, &columns) in self.layout.widths.iter().enumerate() {
            let is_own = message == self.rank;
            let width = if is_own { self.layout.local_width(self.rank) } else { columns };
            let mut part = lanes.buffer(samples * width);
            if !part.is_empty() {
                let arguments = Gather { rank: message, from: d_pooled, samples };
                device.gather(queue, &mut self.on_device, arguments, &mut part)?;
                if let Some(factor) = factor {
                    part.iter_mut().for_each(|value| *value *= factor);
                }
            }
            let parts =
                if message < ranks { &mut self.by_rank.parts } else { &mut self.by_host.parts };
            parts.push(part);
        }
        self.start(lanes, HostDirection::Gather)
    }

    /// Receives the gradients of this rank's slots, `[B_global, width]`; see [`Self::gradient`].
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    /// # Panics
    /// Panics if the lanes were not opened for the plan of this exchange.
    pub fn receive_gradient(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lanes: &mut PooledLanes,
    ) -> Result<(), Error> {
        self.finish(lanes)?;
        let (width, own_columns) =
            (self.layout.local_width(self.rank), self.layout.widths[self.rank]);
        self.by_host.parts.resize_with(self.layout.group_size(), Vec::new);
        // The part of this rank already has the columns of its host.
        lanes.by_rank.keep(take(&mut self.by_host.parts[self.rank]));
        let (by_rank, by_host) = (&mut self.by_rank.parts, &mut self.by_host.parts);
        let len = by_rank.iter().chain(&*by_host).map(Vec::len).sum();
        device.grow(&mut self.gradient, len)?;
        let mut at = 0;
        for (part, sums) in by_rank.drain(..).zip(by_host.drain(..)) {
            let mut joined = Vec::new();
            let rows = match (part.is_empty(), sums.is_empty()) {
                (true, _) => &sums,
                (_, true) => &part,
                (false, false) => {
                    joined = lanes.buffer(part.len() + sums.len());
                    paste_columns(&part, 0..own_columns, &mut joined, width);
                    paste_columns(&sums, own_columns..width, &mut joined, width);
                    &joined
                }
            };
            device.write(queue, rows, &mut self.gradient, at)?;
            at += rows.len();
            // Return the buffers to the pool, so that the next step allocates nothing.
            [part, sums, joined].into_iter().for_each(|buffer| lanes.by_rank.keep(buffer));
        }
        Ok(())
    }

    fn start(&mut self, lanes: &mut PooledLanes, direction: HostDirection) -> Result<(), Error> {
        if self.layout.sends_by_host() {
            self.by_host.direction = direction;
            lanes.by_host().start(take(&mut self.by_host))?;
        }
        if self.layout.sends_by_rank() {
            lanes.by_rank.start(take(&mut self.by_rank))?;
        }
        Ok(())
    }

    fn finish(&mut self, lanes: &mut PooledLanes) -> Result<(), Error> {
        if self.layout.sends_by_host() {
            self.by_host = lanes.by_host().finish()?;
        }
        if self.layout.sends_by_rank() {
            self.by_rank = lanes.by_rank.finish()?;
        }
        Ok(())
    }

    /// The gradients that were received last.
    #[must_use]
    pub fn gradient(&self) -> &B::Vector {
        &self.gradient
    }
}

/// Copies columns of `rows` `[B, width]` to `to`, or nothing if it is empty.
fn copy_columns(rows: &[f32], width: usize, columns: Range<usize>, to: &mut [f32]) {
    if to.len() == rows.len() {
        to.copy_from_slice(rows);
    } else if !to.is_empty() {
        for (row, to) in rows.chunks_exact(width).zip(to.chunks_exact_mut(columns.len())) {
            to.copy_from_slice(&row[columns.clone()]);
        }
    }
}

/// Copies `from` to columns of `rows` `[B, width]`.
fn paste_columns(from: &[f32], columns: Range<usize>, rows: &mut [f32], width: usize) {
    for (row, from) in rows.chunks_exact_mut(width).zip(from.chunks_exact(columns.len())) {
        row[columns.clone()].copy_from_slice(from);
    }
}
