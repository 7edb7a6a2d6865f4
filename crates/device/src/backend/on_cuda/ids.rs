//! The ids of a batch in GPU memory, and their exchange between ranks. Kernels split and join the
//! ids in a stream of their own, and messages pass through host memory.

use std::ops::Range;

use bytemuck::Pod;
use schema::JaggedTensor;

use super::handles::{grown, put};
use super::staging::Staging;
use crate::backend::DistributedIds;
use crate::cuda::{Buffer, Driver, DriverError, EventPurpose, Stream, StreamEvent};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::jagged::cuda::{Bags, Jagged as Kernels, Join, Lengths, Split, slot_bytes};
use crate::ops::jagged::{IdCounts, IdLayout, IdMessages, LocalIds};
use crate::ops::prefix_sum::cuda::scratch_bytes;

/// The ids of a batch for the tiles of a rank, in GPU memory.
#[derive(Debug, Default)]
pub struct CudaIds {
    local: BagBuffers,
    shape: BagShape,
    staging: Staging,
    counts: IdCounts,
    /// Is `None` if the ids of a batch are looked up unchanged.
    exchange: Option<DeviceIdExchange>,
}

/// The size of the ids of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BagShape {
    pub features: usize,
    pub batch_size: usize,
    pub ids: usize,
    pub has_weights: bool,
    pub has_scales: bool,
}

/// Device buffers of bags. The capacity for ids is a power of two, so few reallocations are needed
/// until every batch fits.
#[derive(Debug, Default)]
struct BagBuffers {
    offsets: Option<Buffer>,
    ids: Option<Buffer>,
    weights: Option<Buffer>,
    scales: Option<Buffer>,
    lengths: Option<Buffer>,
    scratch: Option<Buffer>,
    /// Number of ids that the buffers can hold.
    capacity: usize,
    bags: usize,
}

/// The stream, the slots and the buffers of an exchange of ids.
#[derive(Debug)]
struct DeviceIdExchange {
    stream: Stream,
    kernels: Kernels,
    layout: IdLayout,
    slots: Buffer,
    /// How many slots look up an id of each feature, at most.
    copies: Vec<usize>,
    /// The ids of this rank's batch.
    given: BagBuffers,
    staging: Staging,
    /// The ids for each rank, rank after rank.
    split: BagBuffers,
    /// Positions of this rank's own ids in `split`.
    own: Range<usize>,
    /// The ids that each rank sent, rank after rank.
    received: BagBuffers,
    bases: Buffer,
    /// The end of the last operation that writes the joined ids.
    ready: StreamEvent,
    /// The end of the last operation of the compute queue that reads the joined ids.
    free: StreamEvent,
}

impl BagShape {
    fn new(jagged: &JaggedTensor) -> Self {
        Self {
            features: jagged.features,
            batch_size: jagged.batch_size,
            ids: jagged.values.len(),
            has_weights: jagged.weights.is_some(),
            has_scales: false,
        }
    }

    fn bags(&self) -> usize {
        self.features * self.batch_size
    }
}

impl BagBuffers {
    /// Provides buffers for at least as many ids and bags.
    fn reserve(&mut self, driver: &Driver, shape: &BagShape) -> Result<(), DriverError> {
        if shape.ids > self.capacity || self.ids.is_none() {
            self.capacity = self.capacity.max(shape.ids.next_power_of_two());
        }
        self.bags = self.bags.max(shape.bags());
        let Self { capacity, bags, .. } = *self;
        grown(driver, &mut self.offsets, (bags + 1) * size_of::<u64>())?;
        grown(driver, &mut self.ids, capacity * size_of::<i64>())?;
        if shape.has_weights {
            grown(driver, &mut self.weights, capacity * size_of::<f32>())?;
        }
        if shape.has_scales {
            grown(driver, &mut self.scales, bags.max(1) * size_of::<f32>())?;
        }
        Ok(())
    }

    /// Provides the buffers, and those for computing offsets from lengths.
    fn reserve_lengths(&mut self, driver: &Driver, shape: &BagShape) -> Result<(), DriverError> {
        self.reserve(driver, shape)?;
        grown(driver, &mut self.lengths, self.bags.max(1) * size_of::<u32>())?;
        grown(driver, &mut self.scratch, scratch_bytes(self.bags))?;
        Ok(())
    }

    /// Returns the buffers for ids of this shape, or `None` if they were not provided.
    fn view(&self, shape: &BagShape) -> Option<Bags<'_>> {
        Some(Bags {
            offsets: self.offsets.as_ref()?,
            ids: self.ids.as_ref()?,
            weights: if shape.has_weights { Some(self.weights.as_ref()?) } else { None },
            scales: if shape.has_scales { Some(self.scales.as_ref()?) } else { None },
            capacity: self.capacity,
        })
    }

    fn view_lengths(&self, shape: &BagShape) -> Option<(Bags<'_>, Lengths<'_>)> {
        let (lengths, scratch) = (self.lengths.as_ref()?, self.scratch.as_ref()?);
        Some((self.view(shape)?, Lengths { lengths, scratch }))
    }

    /// Uploads a batch through one pinned block, so that a batch needs only one event. `copy` fills
    /// pinned memory.
    fn upload(
        &mut self,
        stream: &Stream,
        staging: &mut Staging,
        jagged: &JaggedTensor,
        copy: impl Fn(&[u8], &mut [u8]),
    ) -> Result<(), DriverError> {
        let shape = BagShape::new(jagged);
        self.reserve(stream.driver(), &shape)?;
        let Some(Bags { offsets, ids, weights, .. }) = self.view(&shape) else {
            unreachable!("the buffers are reserved")
        };
        let parts = [
            Some((bytemuck::cast_slice(&jagged.offsets), offsets)),
            Some((bytemuck::cast_slice(&jagged.values), ids)),
            jagged.weights.as_deref().map(bytemuck::cast_slice).zip(weights),
        ];
        let parts = || parts.iter().flatten().copied();
        let room = parts().map(|(_, to): (&[u8], &Buffer)| to.bytes()).sum();
        let (mut pinned, done) = staging.take(stream.driver(), room)?;
        let (mut at, mut copies) = (0, Vec::with_capacity(parts().count()));
        for (bytes, to) in parts() {
            copy(bytes, &mut pinned.bytes_mut()[at..at + bytes.len()]);
            copies.push((at..at + bytes.len(), to));
            at += to.bytes();
        }
        let flight = stream.upload_pinned(pinned, done, &copies)?;
        staging.put(flight);
        Ok(())
    }
}

impl CudaIds {
    pub(super) fn new(
        driver: &Driver,
        kernels: &Kernels,
        layout: IdLayout,
    ) -> Result<Self, DriverError> {
        let stream = driver.stream()?;
        let slots = put(&stream, &slot_bytes(layout.slots.iter().flatten()))?;
        let features = layout.slots.iter().flatten().map(|slot| slot.feature + 1).max();
        let exchange = DeviceIdExchange {
            kernels: kernels.clone(),
            slots,
            copies: layout.copies(features.unwrap_or(0)),
            given: BagBuffers::default(),
            staging: Staging::default(),
            split: BagBuffers::default(),
            own: 0..0,
            received: BagBuffers::default(),
            bases: driver.alloc((layout.slots.len() + 1) * size_of::<u32>())?,
            ready: driver.event(EventPurpose::Order)?,
            free: driver.event(EventPurpose::Order)?,
            layout,
            stream,
        };
        Ok(Self { exchange: Some(exchange), ..Self::default() })
    }

    /// Uploads a batch that is looked up unchanged.
    pub(super) fn send(
        &mut self,
        stream: &Stream,
        jagged: &JaggedTensor,
        copy: impl Fn(&[u8], &mut [u8]),
    ) -> Result<(), DriverError> {
        self.shape = BagShape::new(jagged);
        self.local.upload(stream, &mut self.staging, jagged, copy)
    }

    /// Makes later work of `stream` wait until the ids are joined.
    pub(super) fn acquire(&self, stream: &Stream) -> Result<(), DriverError> {
        self.exchange.as_ref().map_or(Ok(()), |exchange| stream.wait(&exchange.ready))
    }

    /// Makes the next exchange wait for the work that `stream` has queued.
    pub(super) fn release(&self, stream: &Stream) -> Result<(), DriverError> {
        self.exchange.as_ref().map_or(Ok(()), |exchange| stream.record(&exchange.free))
    }

    pub(super) fn shape(&self) -> BagShape {
        self.shape
    }

    /// Returns the buffers of the ids, or `None` if there are no ids on the device yet.
    pub(super) fn bags(&self) -> Option<Bags<'_>> {
        self.local.view(&self.shape)
    }

    fn exchange(&mut self) -> &mut DeviceIdExchange {
        let Some(exchange) = &mut self.exchange else {
            unreachable!("ids without an exchange are looked up unchanged")
        };
        exchange
    }
}

impl DistributedIds for CudaIds {
    fn split(&mut self, sparse: &JaggedTensor, messages: &mut IdMessages) -> Result<(), Error> {
        let exchange = self.exchange();
        let shape = exchange.prepare(sparse)?;
        exchange.split.reserve_lengths(exchange.stream.driver(), &shape)?;
        exchange.launch_split(&exchange.split, sparse, &shape)?;
        Ok(exchange.download(&shape, messages)?)
    }

    fn join(&mut self, messages: &mut IdMessages) -> Result<(), Error> {
        let Self { local, shape, counts, exchange: Some(exchange), .. } = self else {
            unreachable!("ids without an exchange are looked up unchanged")
        };
        *shape = exchange.count(messages, counts)?;
        exchange.upload(shape, messages)?;
        let stream = &exchange.stream;
        local.reserve_lengths(stream.driver(), shape)?;
        let bases: Vec<u32> = std::iter::once(0)
            .chain(counts.batch_sizes.iter().scan(0, |base, &samples| {
                *base += samples as u32;
                Some(*base)
            }))
            .collect();
        stream.upload(&exchange.bases, 0, bytemuck::cast_slice(&bases))?;
        let (Some((from, sent)), Some((to, joined))) =
            (exchange.received.view_lengths(shape), local.view_lengths(shape))
        else {
            unreachable!("the buffers are reserved")
        };
        let join = Join {
            bases: &exchange.bases,
            ranks: counts.batch_sizes.len(),
            slots: shape.features,
            samples: shape.batch_size,
        };
        stream.wait(&exchange.free)?;
        exchange.kernels.join(stream, join, [from, to], [sent, joined])?;
        Ok(stream.record(&exchange.ready)?)
    }

    fn select(&mut self, sparse: &JaggedTensor) -> Result<(), Error> {
        let Self { local, shape, counts, exchange: Some(exchange), .. } = self else {
            unreachable!("ids without an exchange are looked up unchanged")
        };
        let most = exchange.prepare(sparse)?;
        local.reserve_lengths(exchange.stream.driver(), &most)?;
        counts.batch_sizes.clear();
        counts.batch_sizes.push(sparse.batch_size);
        counts.ids_per_slot.clear();
        let slots = exchange.layout.slots.iter().flatten();
        counts.ids_per_slot.extend(slots.map(|slot| slot.count(sparse)));
        *shape = BagShape { ids: counts.ids(), ..most };
        exchange.stream.wait(&exchange.free)?;
        exchange.launch_split(local, sparse, &most)?;
        Ok(exchange.stream.record(&exchange.ready)?)
    }

    fn counts(&self) -> &IdCounts {
        &self.counts
    }

    fn read<'a>(&'a self, room: &'a mut LocalIds) -> Result<&'a LocalIds, Error> {
        let (Some(bags), Some(exchange)) = (self.bags(), &self.exchange) else {
            *room = LocalIds::default();
            return Ok(room);
        };
        let (stream, shape) = (&exchange.stream, self.shape);
        let weights = bags.weights.map(|weights| downloaded(stream, weights, shape.ids));
        let jagged = JaggedTensor {
            features: shape.features,
            batch_size: shape.batch_size,
            offsets: downloaded(stream, bags.offsets, shape.bags() + 1)?,
            values: downloaded(stream, bags.ids, shape.ids)?,
            weights: weights.transpose()?,
        };
        let scales = bags.scales.map(|scales| downloaded(stream, scales, shape.bags()));
        *room = LocalIds { jagged, scales: scales.transpose()? };
        Ok(room)
    }
}

impl DeviceIdExchange {
    /// Uploads this rank's batch. Returns the size of its ids for all slots, with the largest
    /// number of ids that the slots can look up.
    fn prepare(&mut self, sparse: &JaggedTensor) -> Result<BagShape, Error> {
        sparse.check().map_err(|cause| Error::Jagged { op: "split ids", cause })?;
        let copy = |from: &[u8], to: &mut [u8]| to.copy_from_slice(from);
        self.given.upload(&self.stream, &mut self.staging, sparse, copy)?;
        let copies = self.copies.iter().enumerate();
        Ok(BagShape {
            features: self.layout.slot_count(),
            batch_size: sparse.batch_size,
            ids: copies.map(|(feature, copies)| copies * sparse.feature(feature).len()).sum(),
            has_weights: sparse.weights.is_some(),
            has_scales: self.layout.has_scales,
        })
    }

    fn launch_split(
        &self,
        to: &BagBuffers,
        sparse: &JaggedTensor,
        shape: &BagShape,
    ) -> Result<(), DriverError> {
        let (Some(from), Some((to, lengths))) =
            (self.given.view(&BagShape::new(sparse)), to.view_lengths(shape))
        else {
            unreachable!("the buffers are reserved")
        };
        let split =
            Split { slots: &self.slots, slot_count: shape.features, batch_size: shape.batch_size };
        self.kernels.split(&self.stream, split, [from, to], lengths)
    }

    /// Copies the ids for other ranks to their messages. This rank's own ids stay on the device.
    fn download(&mut self, shape: &BagShape, messages: &mut IdMessages) -> Result<(), DriverError> {
        let Some((bags, Lengths { lengths, .. })) = self.split.view_lengths(shape) else {
            unreachable!("the buffers are reserved")
        };
        messages.clear(self.layout.slots.len(), shape.batch_size, shape.has_weights);
        let (mut first_bag, mut first) = (0, 0);
        for (rank, slots) in self.layout.slots.iter().enumerate() {
            let bag_count = slots.len() * shape.batch_size;
            let lengths_of_rank = &mut messages.lengths[rank];
            download(&self.stream, lengths, first_bag..first_bag + bag_count, lengths_of_rank)?;
            let ids = first..first + count_ids(lengths_of_rank);
            if rank == self.own_rank() {
                self.own = ids.clone();
            } else {
                download(&self.stream, bags.ids, ids.clone(), &mut messages.values[rank])?;
                if let Some(weights) = bags.weights {
                    download(&self.stream, weights, ids.clone(), &mut messages.weights[rank])?;
                }
            }
            if let Some(scales) = bags.scales {
                let range = first_bag..first_bag + bag_count;
                download(&self.stream, scales, range, &mut messages.scales[rank])?;
            }
            (first_bag, first) = (first_bag + bag_count, ids.end);
        }
        Ok(())
    }

    /// Counts the ids of messages, and checks that their parts have the same size.
    fn count(&self, messages: &IdMessages, counts: &mut IdCounts) -> Result<BagShape, Error> {
        const OP: &str = "join ids";
        let IdMessages { lengths, values, scales, weights, has_weights, samples, .. } = messages;
        let (features, has_scales) =
            (self.layout.slots[self.own_rank()].len(), self.layout.has_scales);
        extent::check(OP, "messages, one per rank", self.layout.slots.len(), lengths.len())?;
        counts.batch_sizes.clone_from(samples);
        counts.ids_per_slot.clear();
        for (rank, lengths) in lengths.iter().enumerate() {
            let samples = counts.batch_sizes[rank];
            extent::check(OP, "lengths [slots, B]", features * samples, lengths.len())?;
            if has_scales {
                extent::check(OP, "scales [slots, B]", lengths.len(), scales[rank].len())?;
            }
            let ids = count_ids(lengths);
            if rank == self.own_rank() {
                extent::check(OP, "own ids", self.own.len(), ids)?;
                continue;
            }
            extent::check(OP, "ids of a rank", ids, values[rank].len())?;
            if *has_weights {
                extent::check(OP, "weights of a rank", ids, weights[rank].len())?;
            }
        }
        let per_rank = |slot: usize| {
            let bags = |samples: usize| slot * samples..(slot + 1) * samples;
            let ranks = lengths.iter().zip(&counts.batch_sizes);
            ranks.map(|(lengths, &samples)| count_ids(&lengths[bags(samples)])).sum::<usize>()
        };
        counts.ids_per_slot.extend((0..features).map(per_rank));
        let (batch_size, ids) = (counts.samples(), counts.ids());
        Ok(BagShape { features, batch_size, ids, has_weights: *has_weights, has_scales })
    }

    /// Copies messages to the device, rank after rank.
    fn upload(&mut self, shape: &BagShape, messages: &IdMessages) -> Result<(), DriverError> {
        let Self { stream, received, split, own, layout, .. } = self;
        received.reserve_lengths(stream.driver(), shape)?;
        let Some((bags, Lengths { lengths, .. })) = received.view_lengths(shape) else {
            unreachable!("the buffers are reserved")
        };
        let (mut bag, mut at) = (0, 0);
        for (rank, lengths_of_rank) in messages.lengths.iter().enumerate() {
            upload(stream, lengths_of_rank, lengths, bag)?;
            if let Some(scales) = bags.scales {
                upload(stream, &messages.scales[rank], scales, bag)?;
            }
            if rank == layout.own {
                let ids = |buffer: &Option<Buffer>, to: &Buffer, bytes| {
                    let Some(from) = buffer else { unreachable!("the ids were split") };
                    copy_range(stream, from, own, to, at, bytes)
                };
                ids(&split.ids, bags.ids, size_of::<i64>())?;
                if let Some(weights) = bags.weights {
                    ids(&split.weights, weights, size_of::<f32>())?;
                }
            } else {
                upload(stream, &messages.values[rank], bags.ids, at)?;
                if let Some(weights) = bags.weights {
                    upload(stream, &messages.weights[rank], weights, at)?;
                }
            }
            (bag, at) = (bag + lengths_of_rank.len(), at + count_ids(lengths_of_rank));
        }
        Ok(())
    }

    fn own_rank(&self) -> usize {
        self.layout.own
    }
}

/// Returns the device memory in bytes of an exchange of ids: the batch, the split ids, the received
/// ids and the joined ids.
pub(super) fn exchange_bytes(ids: usize, bags: usize, scales: usize) -> usize {
    const COPIES: usize = 4;
    COPIES * (LocalIds::bytes(ids.next_power_of_two(), bags, scales) + bags * size_of::<u32>())
}

fn count_ids(lengths: &[i32]) -> usize {
    lengths.iter().map(|&length| length as usize).sum()
}

/// Replaces the content of `to` by a range of elements of a buffer.
fn download<T: Pod>(
    stream: &Stream,
    from: &Buffer,
    range: Range<usize>,
    to: &mut Vec<T>,
) -> Result<(), DriverError> {
    to.resize(range.len(), T::zeroed());
    stream.download(from, range.start * size_of::<T>(), bytemuck::cast_slice_mut(to))
}

fn downloaded<T: Pod>(stream: &Stream, from: &Buffer, count: usize) -> Result<Vec<T>, DriverError> {
    let mut values = Vec::new();
    download(stream, from, 0..count, &mut values)?;
    Ok(values)
}

/// Copies a range of elements, of `bytes` bytes each, to another buffer from element `at` on.
fn copy_range(
    stream: &Stream,
    from: &Buffer,
    range: &Range<usize>,
    to: &Buffer,
    at: usize,
    bytes: usize,
) -> Result<(), DriverError> {
    let from = from.slice(range.start * bytes..range.end * bytes)?;
    let to = to.slice(at * bytes..(at + range.len()) * bytes)?;
    stream.copy(&from, &to, from.bytes())
}

/// Writes values to a buffer from element `at` on.
fn upload<T: Pod>(
    stream: &Stream,
    values: &[T],
    to: &Buffer,
    at: usize,
) -> Result<(), DriverError> {
    stream.upload(to, at * size_of::<T>(), bytemuck::cast_slice(values))
}
