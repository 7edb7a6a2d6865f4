//! The launches of the plain products on a GPU, on row-major matrices.

use schema::Precision;

use crate::cuda::{Arguments, Buffer, Driver, DriverError, Grid, Kernel, Source, Stream};

/// The kernels.
pub const SOURCE: Source = Source { name: "ops/gemm/kernel.cu", text: include_str!("kernel.cu") };
/// Rows and columns of a block's tile.
const EDGE: usize = 16;
const SUM_THREADS: u32 = 128;
const ROUND_THREADS: u32 = 256;
/// Rows that are summed on their own, as on the CPU.
const BLOCK_ROWS: usize = 64;

/// Sizes of a linear layer's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// B, samples.
    pub b: usize,
    /// N, outputs.
    pub n: usize,
    /// K, inputs.
    pub k: usize,
}

/// Where a product goes, and what becomes of its sums.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The matrix.
    pub to: &'a Buffer,
    /// What follows the sums.
    pub epilogue: Epilogue<'a>,
    /// To which they are rounded; a matrix of bf16 holds f32 that are.
    pub precision: Precision,
}

/// What a product does with what it has computed.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// Nothing.
    Plain,
    /// `max(y, 0)`; NaN stays NaN.
    Relu,
    /// 0 where this matrix, the output of a ReLU, is not above 0.
    BeforeRelu(&'a Buffer),
}

impl<'a> Target<'a> {
    /// The sums as they are.
    #[must_use]
    pub fn plain(to: &'a Buffer) -> Self {
        Self { to, epilogue: Epilogue::Plain, precision: Precision::F32 }
    }
}

/// Whether a product joins what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// It is overwritten.
    Write,
    /// It is added to.
    Add,
}

/// The loaded kernels.
#[derive(Clone, Debug)]
pub struct Gemm {
    product: Kernel,
    round: Kernel,
    blocks: Kernel,
    total: Kernel,
}

/// A product `C[m, n] = start + Σ_k A(m, k) B(k, n)`.
struct Product<'a> {
    a: (&'a Buffer, [usize; 2]),
    b: (&'a Buffer, [usize; 2]),
    target: Target<'a>,
    bias: Option<&'a Buffer>,
    sizes: [usize; 3],
    start: u32,
}

impl Gemm {
    /// Compiles and loads.
    ///
    /// # Errors
    /// As [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            product: module.kernel("gemm")?,
            round: module.kernel("round_bf16")?,
            blocks: module.kernel("column_sums_blocks")?,
            total: module.kernel("column_sums_total")?,
        })
    }

    /// `Y = f(X Wᵀ + bias)` with `x` `[B, K]`, `weight` `[N, K]`, `bias` `[N]` and `y` `[B, N]`.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn forward(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        ([x, weight], bias): ([&Buffer; 2], Option<&Buffer>),
        y: Target<'_>,
    ) -> Result<(), DriverError> {
        let start = u32::from(bias.is_some());
        let (a, b_matrix) = ((x, [k, 1]), (weight, [1, k]));
        let product = Product { a, b: b_matrix, target: y, bias, sizes: [b, n, k], start };
        self.launch(stream, &product)
    }

    /// `dX = f(dY W)` or `dX = f(dX + dY W)` with `d_y` `[B, N]`, `weight` `[N, K]` and `d_x`
    /// `[B, K]`.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn backward_input(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        [d_y, weight]: [&Buffer; 2],
        (d_x, join): (Target<'_>, Join),
    ) -> Result<(), DriverError> {
        let (a, b_matrix) = ((d_y, [n, 1]), (weight, [k, 1]));
        let start = if join == Join::Add { 2 } else { 0 };
        let (sizes, bias) = ([b, k, n], None);
        self.launch(stream, &Product { a, b: b_matrix, target: d_x, bias, sizes, start })
    }

    /// `dW = dYᵀ X` with `d_y` `[B, N]`, `x` `[B, K]` and `d_weight` `[N, K]`, overwritten.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn backward_weight(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        [d_y, x, d_weight]: [&Buffer; 3],
    ) -> Result<(), DriverError> {
        let (a, b_matrix) = ((d_y, [1, n]), (x, [k, 1]));
        let (sizes, target) = ([n, k, b], Target::plain(d_weight));
        let product = Product { a, b: b_matrix, target, bias: None, sizes, start: 0 };
        self.launch(stream, &product)
    }

    /// `to = from`, each value rounded to the nearest bf16.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn round(
        &self,
        stream: &Stream,
        [from, to]: [&Buffer; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = Arguments::new().buffer(from).buffer(to).count(elements);
        stream.launch(&self.round, Grid::over(elements, ROUND_THREADS, ROUND_THREADS), &arguments)
    }

    /// `sums[n] = Σ_b matrix[b, n]`, 64 rows at a time; `partials` has [`partial_bytes`].
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn column_sums(
        &self,
        stream: &Stream,
        [rows, columns]: [usize; 2],
        [matrix, sums, partials]: [&Buffer; 3],
    ) -> Result<(), DriverError> {
        let arguments = Arguments::new()
            .buffer(matrix)
            .buffer(sums)
            .buffer(partials)
            .u32(rows as u32)
            .u32(columns as u32);
        let total = Grid::over(columns, SUM_THREADS, SUM_THREADS);
        let blocks = [total.blocks[0], rows.div_ceil(BLOCK_ROWS) as u32];
        stream.launch(&self.blocks, Grid { blocks, ..total }, &arguments)?;
        stream.launch(&self.total, total, &arguments)
    }

    fn launch(&self, stream: &Stream, product: &Product<'_>) -> Result<(), DriverError> {
        let Product { a, b, target, bias, sizes: [m, n, k], start } = *product;
        let (is_relu, mask) = match target.epilogue {
            Epilogue::Plain => (false, None),
            Epilogue::Relu => (true, None),
            Epilogue::BeforeRelu(output) => (false, Some(output)),
        };
        let arguments = Arguments::new()
            .buffer(a.0)
            .buffer(b.0)
            .buffer(target.to)
            .optional(bias)
            .optional(mask)
            .count(a.1[0])
            .count(a.1[1])
            .count(b.1[0])
            .count(b.1[1])
            .u32(m as u32)
            .u32(n as u32)
            .u32(k as u32)
            .u32(start)
            .u32(u32::from(is_relu))
            .u32(u32::from(target.precision == Precision::Bf16));
        let blocks = [n.div_ceil(EDGE) as u32, m.div_ceil(EDGE) as u32];
        let grid = Grid { blocks, threads: (EDGE * EDGE) as u32, shared_bytes: 0 };
        stream.launch(&self.product, grid, &arguments)
    }
}

/// Bytes of the partial sums of [`Gemm::column_sums`].
#[must_use]
pub fn partial_bytes([rows, columns]: [usize; 2]) -> usize {
    rows.div_ceil(BLOCK_ROWS) * columns * size_of::<f32>()
}
