//! The trainer's handles to GPU memory: matrices, vectors, weights, ids, and the queue that
//! orders the work on them. This module does not depend on the operations.

use std::cell::RefCell;
use std::sync::Arc;

use schema::{Granularity, JaggedTensor, Optimizer, Precision};

use super::staging::Staging;
use crate::MatrixShape;
use crate::backend::WeightShape;
use crate::cpu::Pool;
use crate::cuda::{Buffer, Driver, DriverError, Stream};
use crate::error::Error;
use crate::ops::dense_update::cuda::scratch_bytes;
use crate::ops::extent;
use crate::ops::gemm::cuda::{Operand, partial_bytes};

/// Size of a bf16 value in bytes.
pub(super) const NARROW: usize = size_of::<u16>();

/// A stream with the scratch buffers of its operations.
#[derive(Debug)]
pub struct Queue {
    pub stream: Arc<Stream>,
    /// Partial sums over the rows of a matrix. Operations of one queue run one after the other, so
    /// they share this buffer.
    partials: RefCell<Option<Buffer>>,
    /// Host copy of the values that are about to be sent to another rank.
    pub(super) lent: RefCell<Vec<f32>>,
}

impl Queue {
    pub(super) fn new(driver: &Driver) -> Result<Self, DriverError> {
        Ok(Self {
            stream: Arc::new(driver.stream()?),
            partials: RefCell::default(),
            lent: RefCell::default(),
        })
    }

    /// Returns a scratch buffer for the sums over the rows of a matrix of this shape.
    pub(super) fn partials(
        &self,
        driver: &Driver,
        shape: [usize; 2],
    ) -> Result<Buffer, DriverError> {
        grown(driver, &mut self.partials.borrow_mut(), partial_bytes(shape))
    }
}

/// Returns the device buffer, reallocated if it is smaller than `bytes`.
pub(super) fn grown(
    driver: &Driver,
    buffer: &mut Option<Buffer>,
    bytes: usize,
) -> Result<Buffer, DriverError> {
    match buffer {
        Some(buffer) if buffer.bytes() >= bytes => Ok(buffer.clone()),
        _ => Ok(buffer.insert(driver.alloc(bytes)?).clone()),
    }
}

/// A row of f32 values in GPU memory.
#[derive(Debug, Default)]
pub struct Vector {
    pub(super) buffer: Option<Buffer>,
    pub(super) len: usize,
    /// Scratch space of the LAMB update, if this vector is a parameter.
    pub(super) scratch: Option<Buffer>,
}

impl Vector {
    /// Returns the buffer of a vector that has at least `len` values.
    pub(super) fn get(
        &self,
        op: &'static str,
        what: &'static str,
        len: usize,
    ) -> Result<&Buffer, Error> {
        let room = if self.buffer.is_some() { self.len } else { 0 };
        extent::within(op, what, room, len)?;
        self.buffer.as_ref().ok_or(Error::Shape { op, what, expected: 0, got: len })
    }
}

/// A row-major matrix on the GPU, in f32 or bf16.
#[derive(Debug, Default)]
pub struct Matrix {
    pub(super) values: Vector,
    pub(super) precision: Precision,
    /// Pinned memory through which the host's rows are uploaded.
    pub(super) staging: Staging,
}

impl Matrix {
    /// Returns the buffer if it is large enough for a matrix of this shape, whatever its
    /// precision.
    pub(super) fn get(
        &self,
        op: &'static str,
        MatrixShape { rows, columns }: MatrixShape,
    ) -> Result<Operand<'_>, Error> {
        let matrix = self.values.get(op, "[rows, columns]", rows * columns)?;
        Ok(Operand { matrix, precision: self.precision })
    }

    /// Returns the buffer like [`Self::get`], but requires this precision.
    pub(super) fn in_precision(
        &self,
        op: &'static str,
        what: &'static str,
        precision: Precision,
        shape: MatrixShape,
    ) -> Result<Operand<'_>, Error> {
        let got = self.precision;
        if got != precision {
            return Err(Error::Precision { op, what, expected: precision, got });
        }
        self.get(op, shape)
    }

    /// Returns the buffer of an f32 matrix with this shape.
    pub(super) fn f32(&self, op: &'static str, shape: MatrixShape) -> Result<&Buffer, Error> {
        Ok(self.in_precision(op, "matrix", Precision::F32, shape)?.matrix)
    }
}

/// A weight `[N, K]` in GPU memory with its gradient and optimizer state.
#[derive(Debug)]
pub struct Weight {
    pub(super) shape: WeightShape,
    pub(super) buffers: Option<WeightBuffers>,
}

/// The buffers of a weight: its values, their rounded copy, the gradient and the optimizer state.
#[derive(Debug)]
pub(super) struct WeightBuffers {
    pub values: Buffer,
    /// The values of the weight rounded to bf16, for products in bf16.
    rounded: Option<Buffer>,
    pub gradient: Buffer,
    /// Optimizer state in the layout of checkpoints.
    pub state: Buffer,
    pub scratch: Option<Buffer>,
}

impl Default for Weight {
    fn default() -> Self {
        let (precision, optimizer) = (Precision::F32, Optimizer::Sgd);
        Self { shape: WeightShape { n: 0, k: 0, precision, optimizer }, buffers: None }
    }
}

impl Weight {
    /// The number of elements of the weight, `N · K`.
    pub(super) fn len(&self) -> usize {
        self.shape.n * self.shape.k
    }

    pub(super) fn state_len(&self) -> usize {
        self.shape.n * self.shape.optimizer.state_per_row(self.shape.k)
    }

    pub(super) fn buffers(&self) -> &WeightBuffers {
        let Some(buffers) = &self.buffers else {
            unreachable!("operations never get an empty handle")
        };
        buffers
    }
}

impl WeightBuffers {
    /// Allocates the buffers of a weight and its optimizer state. The function `zeroed` allocates
    /// each of them and fills it with zeros.
    pub fn new(
        shape: WeightShape,
        mut zeroed: impl FnMut(usize) -> Result<Buffer, Error>,
    ) -> Result<Self, Error> {
        let WeightShape { n, k, precision, optimizer } = shape;
        let bytes = n * k * size_of::<f32>();
        let state = n * optimizer.state_per_row(k) * size_of::<f32>();
        let rounded = precision == Precision::Bf16;
        let has_norms = optimizer.granularity() == Granularity::Tensor;
        Ok(Self {
            values: zeroed(bytes)?,
            rounded: rounded.then(|| zeroed(n * k * NARROW)).transpose()?,
            gradient: zeroed(bytes)?,
            state: zeroed(state)?,
            scratch: has_norms.then(|| zeroed(scratch_bytes(n * k))).transpose()?,
        })
    }

    /// Returns the operand that products read: the rounded copy if there is one, else the values.
    pub fn factor(&self) -> Operand<'_> {
        match &self.rounded {
            Some(matrix) => Operand { matrix, precision: Precision::Bf16 },
            None => Operand::f32(&self.values),
        }
    }

    /// Returns the buffer of the rounded values, if products in bf16 need one.
    pub fn rounded(&self) -> Option<&Buffer> {
        self.rounded.as_ref()
    }
}

/// Returns the memory size in bytes of a weight with its gradient, its optimizer state, and the
/// scratch buffers of its products and updates.
pub(super) fn weight_bytes(shape: WeightShape) -> usize {
    let mut bytes = 0;
    let WeightShape { n, k, precision, optimizer } = shape;
    bytes += 2 * n * k * size_of::<f32>();
    if precision == Precision::Bf16 {
        bytes += n * k * NARROW;
    }
    bytes += n * optimizer.state_per_row(k) * size_of::<f32>();
    if optimizer.granularity() == Granularity::Tensor {
        bytes += scratch_bytes(n * k);
    }
    bytes
}

/// The ids of a batch in GPU memory. The capacity for ids is a power of two, so few reallocations
/// are needed until every batch fits.
#[derive(Debug, Default)]
pub struct Jagged {
    ids: Option<Buffer>,
    offsets: Option<Buffer>,
    weights: Option<Buffer>,
    scales: Option<Buffer>,
    /// Numbers of ids and of bags that the device buffers can hold.
    capacity: (usize, usize),
    staging: Staging,
}

/// A part of a batch during its upload: its position in pinned memory and its target buffer.
struct StagedPart<'a> {
    at: usize,
    bytes: &'a [u8],
    to: Buffer,
}

/// The uploaded ids of a batch.
pub(super) struct Sent<'a> {
    pub ids: &'a Buffer,
    pub offsets: &'a Buffer,
    pub weights: Option<&'a Buffer>,
    pub scales: Option<&'a Buffer>,
    /// Number of ids that the device buffers can hold.
    pub capacity: usize,
}

impl Jagged {
    /// Uploads a batch whose layout has already been checked.
    pub(super) fn send(
        &mut self,
        host: &Pool,
        stream: &Stream,
        jagged: &JaggedTensor,
        scales: Option<&[f32]>,
    ) -> Result<(), DriverError> {
        let (ids, bags) = (jagged.values.len(), jagged.offsets.len() - 1);
        // The capacity for ids grows to a power of two, so that a slightly larger batch needs no
        // new buffers.
        if ids > self.capacity.0 || bags > self.capacity.1 || self.ids.is_none() {
            self.capacity.0 = self.capacity.0.max(ids.next_power_of_two());
            self.capacity.1 = self.capacity.1.max(bags);
        }
        let (most, most_bags) = self.capacity;
        let weights = jagged.weights.as_deref().map(bytemuck::cast_slice);
        let scales = scales.map(bytemuck::cast_slice);
        let mut parts: Vec<StagedPart<'_>> = Vec::with_capacity(4);
        let mut room = 0;
        let mut add = |buffer: &mut Option<Buffer>, bytes: Option<_>, capacity: usize| {
            if let Some(bytes) = bytes {
                parts.push(StagedPart {
                    at: room,
                    bytes,
                    to: grown(stream.driver(), buffer, capacity)?,
                });
                room += capacity;
            }
            Ok::<_, DriverError>(())
        };
        let offsets = Some(bytemuck::cast_slice(&jagged.offsets));
        add(&mut self.offsets, offsets, (most_bags + 1) * size_of::<u64>())?;
        let ids = Some(bytemuck::cast_slice(&jagged.values));
        add(&mut self.ids, ids, most * size_of::<i64>())?;
        add(&mut self.weights, weights, most * size_of::<f32>())?;
        add(&mut self.scales, scales, most_bags * size_of::<f32>())?;
        // All parts share one pinned block, so that a batch needs only one event.
        let (mut pinned, done) = self.staging.take(stream.driver(), room)?;
        for StagedPart { at, bytes, .. } in &parts {
            host.copy(bytes, &mut pinned.bytes_mut()[*at..at + bytes.len()]);
        }
        let copies: Vec<_> =
            parts.iter().map(|part| (part.at..part.at + part.bytes.len(), &part.to)).collect();
        let flight = stream.upload_pinned(pinned, done, &copies)?;
        self.staging.put(flight);
        Ok(())
    }

    /// Returns the uploaded buffers, including the weights of ids and the scales of bags if the
    /// batch has them.
    pub(super) fn sent(&self, has_weights: bool, has_scales: bool) -> Option<Sent<'_>> {
        Some(Sent {
            ids: self.ids.as_ref()?,
            offsets: self.offsets.as_ref()?,
            weights: if has_weights { Some(self.weights.as_ref()?) } else { None },
            scales: if has_scales { Some(self.scales.as_ref()?) } else { None },
            capacity: self.capacity.0,
        })
    }
}
