//! Launch of both halves of an exchange on a GPU, and the lists of columns that the kernel reads.

use super::PooledColumns;
use crate::cuda::{Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, Stream};

/// The CUDA source of the exchange kernel, compiled when it is loaded.
pub const SOURCE: crate::cuda::KernelSource =
    crate::cuda::KernelSource { name: "ops/exchange/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// The sources of each column of a result, in the format of the kernel. Routes are built once and
/// used in every step.
#[derive(Debug)]
pub struct Routes {
    starts: Buffer,
    firsts: Buffer,
    parts: Buffer,
    bases: Buffer,
    segments: usize,
    width: usize,
}

impl Routes {
    /// Builds the routes of `sources` to a result `[samples, width]`. Rank `r` sends a matrix of
    /// `widths[r]` columns.
    ///
    /// # Errors
    /// Fails with [`DriverError::OutOfMemory`] if the device has too little free memory.
    pub fn new(
        stream: &Stream,
        sources: &[PooledColumns],
        widths: &[usize],
        width: usize,
    ) -> Result<Self, DriverError> {
        // A segment ends wherever a source begins or ends, so all its columns have the same
        // sources.
        let mut cuts: Vec<usize> = sources.iter().flat_map(|s| [s.to, s.to + s.len]).collect();
        cuts.extend([0, width]);
        cuts.sort_unstable();
        cuts.dedup();
        let (mut firsts, mut parts) = (vec![0u32], Vec::new());
        for &cut in &cuts[..cuts.len() - 1] {
            let begun = parts.len();
            let covers =
                |source: &&PooledColumns| (source.to..source.to + source.len).contains(&cut);
            for source in sources.iter().filter(covers) {
                // A first part is written instead of added, so parts that precede it have no
                // effect.
                if source.first {
                    parts.truncate(begun);
                }
                parts.push([source.rank as u32, (source.from + cut - source.to) as u32]);
            }
            firsts.push(parts.len() as u32);
        }
        let starts: Vec<u32> = cuts.iter().map(|&cut| cut as u32).collect();
        // `bases` has the number of columns in the matrices of all preceding ranks.
        let bases: Vec<u32> = std::iter::once(0)
            .chain(widths.iter().scan(0, |base, &width| {
                *base += width as u32;
                Some(*base)
            }))
            .collect();
        let put = |bytes: &[u8]| {
            let buffer = stream.driver().alloc(bytes.len())?;
            stream.upload(&buffer, 0, bytes)?;
            Ok(buffer)
        };
        Ok(Self {
            starts: put(bytemuck::cast_slice(&starts))?,
            firsts: put(bytemuck::cast_slice(&firsts))?,
            parts: put(bytemuck::cast_slice(&parts))?,
            bases: put(bytemuck::cast_slice(&bases))?,
            segments: cuts.len() - 1,
            width,
        })
    }
}

/// The matrices that the ranks send, `samples` rows each.
#[derive(Clone, Copy, Debug)]
pub struct DeviceGiven<'a> {
    /// Index of this rank, and its own matrix.
    pub own: (usize, &'a Buffer),
    /// The matrices of all ranks, one after the other. The place of this rank is not read.
    pub others: Option<&'a Buffer>,
    pub samples: usize,
}

/// The exchange kernel, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct ExchangeKernel {
    kernel: Kernel,
}

impl ExchangeKernel {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        Ok(Self { kernel: driver.module(SOURCE)?.kernel("exchange")? })
    }

    /// Computes `out[b, to..] = Σ given[rank][b, from..]` over the sources in order. The
    /// operation is [`super::assemble`], or [`super::gather`] if there is a single matrix.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch(
        &self,
        stream: &Stream,
        routes: &Routes,
        given: DeviceGiven<'_>,
        out: &Buffer,
    ) -> Result<(), DriverError> {
        let DeviceGiven { own: (rank, own), others, samples } = given;
        let arguments = KernelArguments::new()
            .buffer(&routes.starts)
            .buffer(&routes.firsts)
            .buffer(&routes.parts)
            .buffer(&routes.bases)
            .buffer(own)
            .optional(others)
            .buffer(out)
            .u32(samples as u32)
            .u32(routes.width as u32)
            .u32(routes.segments as u32)
            .u32(rank as u32);
        let items = samples * routes.width;
        stream.launch(&self.kernel, Grid::over(items, THREADS, THREADS), &arguments)
    }
}
