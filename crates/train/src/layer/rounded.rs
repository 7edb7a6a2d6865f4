//! Rounds f32 matrices once for products of a lower precision, and keeps them for the backward
//! pass.

use device::Backend;
use device::MatrixShape;
use schema::{Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::memory::{CountingAllocator, MemoryUse};

/// A matrix in the products' precision. For f32 products it has no buffer, and the source matrix is
/// used instead.
pub struct Rounded<B: Backend> {
    columns: usize,
    room: Option<B::Matrix>,
}

impl<B: Backend> Rounded<B> {
    /// Allocates a buffer of the given shape, unless `precision` is f32.
    #[must_use]
    pub fn new(
        room: &mut CountingAllocator<'_, B>,
        of: MemoryUse,
        precision: Precision,
        shape: MatrixShape,
    ) -> Self {
        let room = match precision {
            Precision::F32 => None,
            Precision::Bf16 => Some(room.matrix(of, precision, shape)),
        };
        Self { columns: shape.columns, room }
    }

    /// Rounds `matrix` to the products' precision and returns the result. For f32 products it
    /// returns `matrix` itself.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn take<'a>(
        &'a mut self,
        context: &mut RankContext<B>,
        matrix: &'a B::Matrix,
        rows: usize,
    ) -> Result<&'a B::Matrix, Error> {
        let Self { columns, room } = self;
        let Some(room) = room else { return Ok(matrix) };
        let RankContext { device, queue, profiler, .. } = context;
        let op = Op::Pack { elements: B::matrix_len(rows, *columns) };
        profiler.op(op, || device.round(queue, matrix, MatrixShape::new(rows, *columns), room))?;
        Ok(room)
    }

    /// Returns the matrix that was rounded last. For f32 products it returns `matrix` itself.
    #[must_use]
    pub fn get<'a>(&'a self, matrix: &'a B::Matrix) -> &'a B::Matrix {
        self.room.as_ref().unwrap_or(matrix)
    }
}
