//! f32 panels on their way into products of a lower precision: rounded once, kept for the backward.

use device::ops::gemm::{Matrix, Operand, OperandMut, pairs};
use schema::{Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::memory::{MemoryUse, Room};

/// Room for one matrix of some columns as products read it; in f32 they read it where it is.
#[derive(Debug)]
pub struct Rounded {
    columns: usize,
    room: Option<Matrix>,
}

impl Rounded {
    /// Room for `[rows, columns]`.
    #[must_use]
    pub fn new(
        room: &mut Room,
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

    /// `matrix` `[rows, columns]` in panels, rounded.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn take<'a>(
        &'a mut self,
        context: &mut RankContext,
        matrix: &'a [f32],
        rows: usize,
    ) -> Result<Operand<'a>, Error> {
        let Self { columns, room } = self;
        let Some(room) = room else { return Ok(Operand::F32(matrix)) };
        if let OperandMut::Bf16(to) = room.get_mut(rows, *columns) {
            let RankContext { cpu, profiler, .. } = context;
            let op = Op::Pack { elements: matrix.len() };
            profiler.op(op, || pairs::round(cpu, matrix, (rows, *columns), to))?;
        }
        Ok(room.get(rows, *columns))
    }

    /// What was last taken: from here, or `matrix` itself.
    #[must_use]
    pub fn get<'a>(&'a self, matrix: &'a [f32], rows: usize) -> Operand<'a> {
        self.room.as_ref().map_or(Operand::F32(matrix), |room| room.get(rows, self.columns))
    }
}
