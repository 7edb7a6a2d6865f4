//! Rounds f32 matrices for products of a lower precision, once, and keeps them for the backward.

use device::Backend;
use schema::{Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::memory::{MemoryUse, ZeroBuffers};

/// Room for one matrix of some columns as products read it; in f32 they read it where it is.
pub struct Rounded<B: Backend> {
    columns: usize,
    room: Option<B::Matrix>,
}

impl<B: Backend> Rounded<B> {
    /// Room for `[rows, columns]`.
    #[must_use]
    pub fn new(
        room: &mut ZeroBuffers<'_, B>,
        of: MemoryUse,
        precision: Precision,
        (rows, columns): (usize, usize),
    ) -> Self {
        let room = match precision {
            Precision::F32 => None,
            Precision::Bf16 => Some(room.matrix(of, precision, (rows, columns))),
        };
        Self { columns, room }
    }

    /// `matrix` `[rows, columns]`, rounded.
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
        profiler.op(op, || device.round(queue, matrix, (rows, *columns), room))?;
        Ok(room)
    }

    /// What was last taken: from here, or `matrix` itself.
    #[must_use]
    pub fn get<'a>(&'a self, matrix: &'a B::Matrix) -> &'a B::Matrix {
        self.room.as_ref().unwrap_or(matrix)
    }
}
