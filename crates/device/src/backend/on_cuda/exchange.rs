//! The exchange of pooled vectors on a GPU: routes that are built once, and buffers for the
//! vectors of other ranks, which pass through host memory.

use super::handles::{Vector, grown};
use crate::backend::{Assemble, ExchangeLayout, Gather};
use crate::cuda::{Buffer, DriverError, Stream};
use crate::error::Error;
use crate::ops::exchange::cuda::{DeviceGiven, ExchangeKernel as Kernels, Routes};
use crate::ops::exchange::{OwnedColumns, PooledColumns};
use crate::ops::extent;

/// Routes of the exchange, and buffers for the vectors that other ranks send and receive.
#[derive(Debug, Default)]
pub struct Exchange {
    assembled: Option<Routes>,
    /// Routes of the gradient columns that each rank receives.
    gathered: Vec<Routes>,
    widths: Vec<usize>,
    row: usize,
    others: Option<Buffer>,
    message: Option<Buffer>,
}

impl Exchange {
    pub(super) fn new(stream: &Stream, layout: ExchangeLayout) -> Result<Self, DriverError> {
        let ExchangeLayout { sources, columns, widths, row } = layout;
        let gather = |(columns, &width): (&Vec<OwnedColumns>, &usize)| {
            let sources: Vec<PooledColumns> = columns.iter().map(OwnedColumns::as_source).collect();
            Routes::new(stream, &sources, &[row], width)
        };
        let assembled = Some(Routes::new(stream, &sources, &widths, row)?);
        let gathered = columns.iter().zip(&widths).map(gather).collect::<Result<_, _>>()?;
        stream.synchronize()?;
        Ok(Self { assembled, gathered, widths, row, others: None, message: None })
    }

    pub(super) fn assemble<B: crate::Backend<Vector = Vector>>(
        &mut self,
        stream: &Stream,
        kernels: &Kernels,
        arguments: &Assemble<'_, B>,
        pooled: &Vector,
    ) -> Result<(), Error> {
        const OP: &str = "assemble";
        let Assemble { own: (rank, first), local, parts, samples } = *arguments;
        extent::check(OP, "parts, one per rank", self.widths.len(), parts.len())?;
        let out = pooled.get(OP, "pooled [B, ΣD]", samples * self.row)?;
        let len = samples * self.widths[rank];
        let own = local.get(OP, "own rows", first + len)?;
        let float = size_of::<f32>();
        let own = own.slice(first * float..(first + len) * float)?;
        let all = samples * self.widths.iter().sum::<usize>() * float;
        let others = grown(stream.driver(), &mut self.others, all)?;
        let mut at = 0;
        for (other, (part, width)) in parts.iter().zip(&self.widths).enumerate() {
            if other != rank {
                extent::check(OP, "matrix of a rank [B, width]", samples * width, part.len())?;
                stream.upload(&others, at, bytemuck::cast_slice(part))?;
            }
            // The place of this rank stays unused, because the routes count the columns of all
            // ranks.
            at += samples * width * float;
        }
        let Some(routes) = &self.assembled else { return Ok(()) };
        let given = DeviceGiven { own: (rank, &own), others: Some(&others), samples };
        Ok(kernels.launch(stream, routes, given, out)?)
    }

    pub(super) fn gather<B: crate::Backend<Vector = Vector>>(
        &mut self,
        stream: &Stream,
        kernels: &Kernels,
        arguments: &Gather<'_, B>,
        to: &mut [f32],
    ) -> Result<(), Error> {
        const OP: &str = "gather";
        let Gather { rank, from, samples } = *arguments;
        let from = from.get(OP, "gradient [B, ΣD]", samples * self.row)?;
        extent::check(OP, "to [B, width]", samples * self.widths[rank], to.len())?;
        let out = grown(stream.driver(), &mut self.message, size_of_val(to))?;
        let given = DeviceGiven { own: (0, from), others: None, samples };
        kernels.launch(stream, &self.gathered[rank], given, &out)?;
        Ok(stream.download(&out, 0, bytemuck::cast_slice_mut(to))?)
    }
}
