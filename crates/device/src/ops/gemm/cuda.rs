//! The products of a linear layer on a GPU, on row-major matrices. cuBLASLt computes them if it
//! is installed; otherwise rowmill's own kernels do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schema::Precision;

use crate::cuda::blas::{self, Blas};
use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, LibraryVersion,
    Stream,
};

/// The CUDA source of the gemm kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/gemm/kernel.cu", text: include_str!("kernel.cu") };
/// Number of rows and of columns of a block's tile.
const EDGE: usize = 16;
const SUM_THREADS: u32 = 128;
const ELEMENT_THREADS: u32 = 256;
/// Number of rows that are summed separately, the same as on the CPU.
const BLOCK_ROWS: usize = 64;

/// A matrix on the device and its number format. A bf16 value takes 2 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub matrix: &'a Buffer,
    pub precision: Precision,
}

impl<'a> Operand<'a> {
    /// Wraps an f32 matrix as an operand of a product.
    #[must_use]
    pub fn f32(matrix: &'a Buffer) -> Self {
        Self { matrix, precision: Precision::F32 }
    }

    /// Returns the code of the number format, `FORMAT_…` in `prelude.cu`.
    fn format(&self) -> u32 {
        match self.precision {
            Precision::F32 => 0,
            Precision::Bf16 => 2,
        }
    }
}

/// The sizes of a linear layer's products: samples, outputs and inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    pub b: usize,
    pub n: usize,
    pub k: usize,
}

/// The output of a product, and the operation that is applied to its sums.
#[derive(Clone, Copy, Debug)]
pub struct ProductTarget<'a> {
    pub to: Operand<'a>,
    /// Operation that is applied to the sums before they are stored.
    pub epilogue: Epilogue<'a>,
}

/// The operation on the sums of a product before they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    Plain,
    /// Computes `max(y, 0)`, where NaN stays NaN.
    Relu,
    /// Stores 0 where this matrix, the output of a ReLU, is not positive.
    BeforeRelu(Operand<'a>),
}

impl<'a> ProductTarget<'a> {
    /// Creates a target that stores the sums unchanged.
    #[must_use]
    pub fn plain(to: &'a Buffer) -> Self {
        Self { to: Operand::f32(to), epilogue: Epilogue::Plain }
    }
}

/// Whether a product overwrites the existing values or is added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    Write,
    /// Add to the existing values.
    Add,
}

/// The gemm kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct Gemm {
    product: Kernel,
    mask: Kernel,
    round: Kernel,
    blocks: Kernel,
    total: Kernel,
    library: Option<Arc<BlasLibrary>>,
}

/// cuBLASLt, with a buffer per stream for f32 results that are rounded to bf16 afterwards.
#[derive(Debug)]
struct BlasLibrary {
    blas: Blas,
    driver: Driver,
    sums: Mutex<BTreeMap<usize, Buffer>>,
}

/// A product `C[m, n] = start + Σ_k A(m, k) B(k, n)`, where `start` is C, the bias or 0.
struct Product<'a> {
    factors: [Operand<'a>; 2],
    /// Whether A is stored as `[k, m]`, and B as `[n, k]`.
    transposed: [bool; 2],
    target: ProductTarget<'a>,
    bias: Option<&'a Buffer>,
    sizes: [usize; 3],
    join: Join,
}

impl Gemm {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            product: module.kernel("gemm")?,
            mask: module.kernel("mask_product")?,
            round: module.kernel("round_bf16")?,
            blocks: module.kernel("column_sums_blocks")?,
            total: module.kernel("column_sums_total")?,
            library: None,
        })
    }

    /// Uses the products of cuBLASLt if the library is installed, and the project's own kernels
    /// otherwise.
    ///
    /// # Errors
    /// Fails in the same cases as [`Blas::open`].
    pub fn with_library(self, driver: &Driver) -> Result<Self, DriverError> {
        let Some(blas) = Blas::open(driver)? else { return Ok(self) };
        let library = BlasLibrary { blas, driver: driver.clone(), sums: Mutex::default() };
        Ok(Self { library: Some(Arc::new(library)), ..self })
    }

    /// Returns the version of cuBLASLt, if it computes the products.
    #[must_use]
    pub fn library_version(&self) -> Option<LibraryVersion> {
        Some(self.library.as_ref()?.blas.version())
    }

    /// Allocates cuBLASLt's workspace for products in `stream`.
    ///
    /// # Errors
    /// Fails with [`DriverError::OutOfMemory`] if the device has too little free memory.
    pub fn prepare(&self, stream: &Stream) -> Result<(), DriverError> {
        self.library.as_ref().map_or(Ok(()), |library| library.blas.prepare(stream))
    }

    /// Computes `Y = f(X Wᵀ + bias)`, where `x` is `[B, K]`, `weight` `[N, K]`, `bias` `[N]` and
    /// `y` `[B, N]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn forward(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        factors: [Operand<'_>; 2],
        bias: Option<&Buffer>,
        target: ProductTarget<'_>,
    ) -> Result<(), DriverError> {
        let (sizes, transposed, join) = ([b, n, k], [false, true], Join::Write);
        self.run(stream, &Product { factors, transposed, target, bias, sizes, join })
    }

    /// Computes `dX = f(dY W)` or `dX = f(dX + dY W)`, where `d_y` is `[B, N]`, `weight` `[N, K]`
    /// and `d_x` `[B, K]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn backward_input(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        factors: [Operand<'_>; 2],
        target: ProductTarget<'_>,
        join: Join,
    ) -> Result<(), DriverError> {
        let (sizes, transposed, bias) = ([b, k, n], [false, false], None);
        self.run(stream, &Product { factors, transposed, target, bias, sizes, join })
    }

    /// Computes `dW = dYᵀ X`, where `d_y` is `[B, N]`, `x` `[B, K]` and `d_weight` `[N, K]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn backward_weight(
        &self,
        stream: &Stream,
        LinearShape { b, n, k }: LinearShape,
        factors: [Operand<'_>; 2],
        d_weight: &Buffer,
    ) -> Result<(), DriverError> {
        let (sizes, transposed, target) =
            ([n, k, b], [true, false], ProductTarget::plain(d_weight));
        let (bias, join) = (None, Join::Write);
        self.run(stream, &Product { factors, transposed, target, bias, sizes, join })
    }

    /// Copies f32 values from `from` to `to`, each rounded to the nearest bf16.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn round(
        &self,
        stream: &Stream,
        [from, to]: [&Buffer; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new().buffer(from).buffer(to).count(elements);
        stream.launch(
            &self.round,
            Grid::over(elements, ELEMENT_THREADS, ELEMENT_THREADS),
            &arguments,
        )
    }

    /// Sets `to` to 0 where `mask`, the output of a ReLU, is not positive.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn mask(
        &self,
        stream: &Stream,
        [mask, to]: [Operand<'_>; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new()
            .buffer(mask.matrix)
            .buffer(to.matrix)
            .count(elements)
            .u32(mask.format())
            .u32(to.format());
        let grid = Grid::over(elements, ELEMENT_THREADS, ELEMENT_THREADS);
        stream.launch(&self.mask, grid, &arguments)
    }

    /// Computes `sums[n] = Σ_b matrix[b, n]`, 64 rows at a time. `partials` has [`partial_bytes`]
    /// bytes.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn column_sums(
        &self,
        stream: &Stream,
        [rows, columns]: [usize; 2],
        matrix: Operand<'_>,
        [sums, partials]: [&Buffer; 2],
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new()
            .buffer(matrix.matrix)
            .buffer(sums)
            .buffer(partials)
            .u32(rows as u32)
            .u32(columns as u32)
            .u32(matrix.format())
            .u32(0);
        let total = Grid::over(columns, SUM_THREADS, SUM_THREADS);
        let blocks = [total.blocks[0], rows.div_ceil(BLOCK_ROWS)];
        stream.launch(&self.blocks, Grid { blocks, ..total }, &arguments)?;
        stream.launch(&self.total, total, &arguments)
    }

    fn run(&self, stream: &Stream, product: &Product<'_>) -> Result<(), DriverError> {
        // cuBLASLt has no algorithm for empty matrices, so the plain kernel handles them.
        let is_empty = product.sizes.contains(&0);
        match &self.library {
            Some(library) if !is_empty && self.by_library(library, stream, product)? => Ok(()),
            _ => self.plainly(stream, product),
        }
    }

    /// Runs the product with cuBLASLt. Returns `false` if the library has no algorithm.
    fn by_library(
        &self,
        library: &BlasLibrary,
        stream: &Stream,
        product: &Product<'_>,
    ) -> Result<bool, DriverError> {
        let Product { factors, transposed, target, bias, sizes, join } = *product;
        let [m, n, _] = sizes;
        let ProductTarget { to, epilogue } = target;
        // The library accepts an f32 bias only for f32 results, so a bf16 result with a bias is
        // computed in f32 and rounded afterwards.
        let is_rounded_behind = bias.is_some() && to.precision == Precision::Bf16;
        let sums = if is_rounded_behind { Some(library.sums(stream, m * n)?) } else { None };
        let result = sums.as_ref().map_or(to, Operand::f32);
        let form = blas::ProductForm {
            sizes,
            transposed,
            factors: factors[0].precision.into(),
            result: result.precision.into(),
            accumulates: join == Join::Add,
            relu: matches!(epilogue, Epilogue::Relu),
        };
        let factors = factors.map(|factor| factor.matrix);
        let product = blas::Product { factors, to: result.matrix, bias, form };
        if !library.blas.product(stream, &product)? {
            return Ok(false);
        }
        if let Some(sums) = &sums {
            self.round(stream, [sums, to.matrix], m * n)?;
        }
        if let Epilogue::BeforeRelu(mask) = epilogue {
            self.mask(stream, [mask, to], m * n)?;
        }
        Ok(true)
    }

    fn plainly(&self, stream: &Stream, product: &Product<'_>) -> Result<(), DriverError> {
        let Product { factors: [a, b], transposed, target, bias, sizes: [m, n, k], join } =
            *product;
        let (is_relu, mask) = match target.epilogue {
            Epilogue::Plain => (false, None),
            Epilogue::Relu => (true, None),
            Epilogue::BeforeRelu(output) => (false, Some(output)),
        };
        let start = match (bias, join) {
            (Some(_), _) => 1,
            (None, Join::Add) => 2,
            (None, Join::Write) => 0,
        };
        // The closure returns the strides from one row to the next and from one column to the
        // next.
        let steps = |[rows, columns]: [usize; 2], is_transposed| {
            if is_transposed { [1, rows] } else { [columns, 1] }
        };
        let (of_a, of_b) = (steps([m, k], transposed[0]), steps([k, n], transposed[1]));
        let arguments = KernelArguments::new()
            .buffer(a.matrix)
            .buffer(b.matrix)
            .buffer(target.to.matrix)
            .optional(bias)
            .optional(mask.map(|mask| mask.matrix))
            .count(of_a[0])
            .count(of_a[1])
            .count(of_b[0])
            .count(of_b[1])
            .u32(m as u32)
            .u32(n as u32)
            .u32(k as u32)
            .u32(start)
            .u32(u32::from(is_relu))
            .u32(a.format())
            .u32(target.to.format())
            .u32(mask.map_or(0, |mask| mask.format()));
        let blocks = [n.div_ceil(EDGE), m.div_ceil(EDGE)];
        let grid = Grid { blocks, threads: (EDGE * EDGE) as u32, shared_bytes: 0 };
        stream.launch(&self.product, grid, &arguments)
    }
}

impl BlasLibrary {
    /// Returns the buffer for f32 results of products in `stream`, enlarged if it is too small.
    fn sums(&self, stream: &Stream, elements: usize) -> Result<Buffer, DriverError> {
        let bytes = elements * size_of::<f32>();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        match sums.get(&stream.number()) {
            Some(buffer) if buffer.bytes() >= bytes => Ok(buffer.clone()),
            _ => {
                let buffer = self.driver.alloc(bytes)?;
                sums.insert(stream.number(), buffer.clone());
                Ok(buffer)
            }
        }
    }
}

/// Returns the bytes of the partial sums of [`Gemm::column_sums`].
#[must_use]
pub fn partial_bytes([rows, columns]: [usize; 2]) -> usize {
    rows.div_ceil(BLOCK_ROWS) * columns * size_of::<f32>()
}
