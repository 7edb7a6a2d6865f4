//! The trainer's handles to GPU memory: matrices, vectors, weights, and the queue that orders the
//! work on them. This module does not depend on the operations.

use std::cell::RefCell;
use std::sync::Arc;

use schema::{Granularity, Optimizer, Precision};

use super::staging::Staging;
use crate::MatrixShape;
use crate::backend::{WeightPart, WeightShape};
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

/// Allocates a device buffer and uploads these bytes to it.
pub(super) fn put(stream: &Stream, bytes: &[u8]) -> Result<Buffer, DriverError> {
    let buffer = stream.driver().alloc(bytes.len())?;
    stream.upload(&buffer, 0, bytes)?;
    Ok(buffer)
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

    /// Returns the buffer of a part of the weight, and its number of elements.
    pub(super) fn part(&self, part: WeightPart) -> (&Buffer, usize) {
        let buffers = self.buffers();
        match part {
            WeightPart::Values => (&buffers.values, self.len()),
            WeightPart::State => (&buffers.state, self.state_len()),
        }
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
