//! Predicts kernels that have no trained model by formulas over the bytes that they move.
//!
//! These kernels are embedding lookups, row updates, concatenations, transposes, triangles of
//! interactions, batch normalization, convolutions of any shape, and copies.

use std::fmt;

use schema::{HardwareSpec, Optimizer};

use crate::Error;
use crate::embedding::{Popularity, ROW_NS, START_NS};
use crate::estimate::Estimate;
use crate::feature::shortest_ns;
use crate::rank_load::{RankLoad, RowRates, TileTerms};
use crate::tile_use::TileUse;

/// Duration of an empty copy.
pub const MOVE_NS: f64 = 1_500.0;
/// Share of the memory's peak bandwidth that copies of many pieces reach (arXiv:2201.07821).
pub const MOVE_SHARE: f64 = 0.79;
/// Lowest and highest factor by which a copy may differ from its estimate. The paper's Table IV
/// reports mean errors of 5 to 11 %.
pub const MOVED: (f64, f64) = (0.8, 1.3);
/// Lowest and highest factor for a formula that was not compared with measurements.
const UNMEASURED: (f64, f64) = (0.5, 2.0);
/// Share of the peak rate that convolutions are assumed to reach. Long products of the measured
/// devices reach 0.2 to 0.8 of theirs.
const PRODUCT_SHARE: f64 = 0.6;
/// Number of kernels that PyTorch runs for batch normalization on an H100: the statistics, their
/// running means, and the normalization.
const BATCH_NORM_KERNELS: f64 = 3.0;
/// Duration of an empty copy between host and device.
const HOST_COPY_NS: f64 = 6_000.0;
/// Bytes per nanosecond over PCIe 3, for pinned memory and for pageable memory that is copied by
/// way of a pinned buffer. arXiv:2201.07821 measured 8.1 on A100 and V100.
const PINNED: f64 = 12.0;
const PAGEABLE: f64 = 8.1;

/// A kind of kernel whose time a formula predicts instead of a trained model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SingleKind {
    EmbeddingForward,
    /// The SGD update of the rows that a batch looks up.
    EmbeddingBackward,
    /// Joins `parts` matrices of `rows × columns` side by side.
    Concat,
    /// Transposes `[rows, parts, columns]` to `[rows, columns, parts]`.
    Transpose,
    /// Gathers the entries below the diagonal of `rows` matrices of `vectors × vectors`.
    TrilForward,
    /// Scatters the gradients of these entries back into such matrices.
    TrilBackward,
    /// Batch normalization in training, which reads its input twice: for the statistics and to
    /// normalize it.
    BatchNorm,
    /// The backward pass of batch normalization, which reads its input and the gradient twice.
    BatchNormBackward,
    /// The forward pass of a convolution whose window, stride or image need not be square. Each of
    /// the two backward passes has the same FLOPs.
    Conv2d,
    /// Copies within the memory of one device.
    Copy,
    /// Copies pinned host memory to a device.
    CopyToDevice,
    /// Copies pageable host memory to a device.
    CopyToDevicePageable,
    /// Copies device memory to pinned host memory.
    CopyToHost,
    /// Copies device memory to pageable host memory.
    CopyToHostPageable,
}

impl SingleKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 14] = [
        Self::EmbeddingForward,
        Self::EmbeddingBackward,
        Self::Concat,
        Self::Transpose,
        Self::TrilForward,
        Self::TrilBackward,
        Self::BatchNorm,
        Self::BatchNormBackward,
        Self::Conv2d,
        Self::Copy,
        Self::CopyToDevice,
        Self::CopyToDevicePageable,
        Self::CopyToHost,
        Self::CopyToHostPageable,
    ];

    /// Returns the name of the kind in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EmbeddingForward => "embedding",
            Self::EmbeddingBackward => "embedding_backward",
            Self::Concat => "concat",
            Self::Transpose => "transpose",
            Self::TrilForward => "tril",
            Self::TrilBackward => "tril_backward",
            Self::BatchNorm => "batch_norm",
            Self::BatchNormBackward => "batch_norm_backward",
            Self::Conv2d => "conv2d",
            Self::Copy => "copy",
            Self::CopyToDevice => "copy_to_device",
            Self::CopyToDevicePageable => "copy_to_device_pageable",
            Self::CopyToHost => "copy_to_host",
            Self::CopyToHostPageable => "copy_to_host_pageable",
        }
    }

    /// Finds the kind with the given name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the names of the sizes that describe a kernel of this kind, in order.
    #[must_use]
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Self::EmbeddingForward | Self::EmbeddingBackward => {
                &["batch", "tables", "rows", "dim", "pooling"]
            }
            Self::Concat | Self::Transpose => &["rows", "parts", "columns"],
            Self::TrilForward | Self::TrilBackward => &["rows", "vectors"],
            Self::BatchNorm | Self::BatchNormBackward => &["batch", "channels", "pixels"],
            Self::Conv2d => &[
                "batch",
                "channels_in",
                "channels_out",
                "height",
                "width",
                "kernel_height",
                "kernel_width",
                "stride",
                "padding_height",
                "padding_width",
            ],
            Self::Copy
            | Self::CopyToDevice
            | Self::CopyToDevicePageable
            | Self::CopyToHost
            | Self::CopyToHostPageable => &["bytes"],
        }
    }

    fn is_lookup(self) -> bool {
        matches!(self, Self::EmbeddingForward | Self::EmbeddingBackward)
    }
}

/// Largest number of sizes of a kind.
const SIZES: usize = 10;

/// A kernel of one of the [`SingleKind`]s with its sizes. All tensors are `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SingleWork {
    kind: SingleKind,
    sizes: [u64; SIZES],
}

impl SingleWork {
    /// Creates a kernel after checking its sizes.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of sizes is wrong, a size is 0, or there are more than 2⁵³
    /// values.
    pub fn new(kind: SingleKind, given: &[u64]) -> Result<Self, Error> {
        const TABLES_MOST: u64 = 100_000;
        const MOST: u128 = 1 << 53;
        let names = kind.sizes();
        let wrong =
            |expected| Err(Error::Shape { kind: kind.name(), sizes: given.to_vec(), expected });
        if given.len() != names.len() {
            return wrong(format!("{} sizes: {}", names.len(), names.join(", ")));
        }
        if let Some(at) =
            (0..given.len()).find(|at| given[*at] == 0 && !names[*at].starts_with("padding"))
        {
            return wrong(format!("{} above 0", names[at]));
        }
        let mut sizes = [1; SIZES];
        sizes[..given.len()].copy_from_slice(given);
        if kind == SingleKind::Conv2d {
            return Self::conv2d(sizes).map_or_else(wrong, Ok);
        }
        if kind.is_lookup() && sizes[1] > TABLES_MOST {
            return wrong(format!("at most {TABLES_MOST} tables"));
        }
        let all = sizes.iter().try_fold(1u128, |all, size| all.checked_mul(u128::from(*size)));
        let squared = matches!(kind, SingleKind::TrilForward | SingleKind::TrilBackward);
        let all = if squared { all.and_then(|all| all.checked_mul(sizes[1].into())) } else { all };
        // The product of batch, tables and rows exceeds 2^53 even for ordinary lookups.
        let most = if kind.is_lookup() { MOST << 40 } else { MOST };
        match all {
            Some(all)
                if all < most && (!kind.is_lookup() || sizes.iter().all(|s| *s <= 1 << 32)) =>
            {
                Ok(Self { kind, sizes })
            }
            _ => wrong("fewer than 2^53 values".to_owned()),
        }
    }

    /// Creates a convolution, or returns what its sizes should be.
    fn conv2d(sizes: [u64; SIZES]) -> Result<Self, String> {
        if sizes.iter().any(|size| *size >= 1 << 31) {
            return Err("sizes below 2^31".to_owned());
        }
        let work = Self { kind: SingleKind::Conv2d, sizes };
        let [_, _, _, height, width, kernel_height, kernel_width, _, above, beside] = sizes;
        if kernel_height > height + 2 * above || kernel_width > width + 2 * beside {
            return Err("a kernel no larger than the padded input".to_owned());
        }
        // 2⁶³ FLOPs take days on the fastest device, so such a size is mistyped.
        if work.flops() < 2f64.powi(63) { Ok(work) } else { Err("fewer than 2^63 FLOPs".into()) }
    }

    /// Returns the number of pixels of a convolution's output.
    fn output_pixels(&self) -> f64 {
        let [_, _, _, height, width, kernel_height, kernel_width, stride, above, beside] =
            self.sizes;
        let out = |size: u64, kernel: u64, padding: u64| {
            ((size + 2 * padding - kernel) / stride + 1) as f64
        };
        out(height, kernel_height, above) * out(width, kernel_width, beside)
    }

    /// Returns the FLOPs of a convolution, and 0 for kernels that only wait for memory.
    #[must_use]
    pub fn flops(&self) -> f64 {
        if self.kind != SingleKind::Conv2d {
            return 0.0;
        }
        let [batch, channels_in, channels_out, _, _, kernel_height, kernel_width, ..] =
            self.sizes.map(|size| size as f64);
        let window = channels_in * kernel_height * kernel_width;
        2.0 * batch * channels_out * self.output_pixels() * window
    }

    /// Returns the kind of the kernel.
    #[must_use]
    pub fn kind(&self) -> SingleKind {
        self.kind
    }

    /// Returns the sizes, in the order of [`SingleKind::sizes`].
    #[must_use]
    pub fn sizes(&self) -> &[u64] {
        &self.sizes[..self.kind.sizes().len()]
    }

    /// Returns the minimum number of bytes read and written. A lookup reads each distinct row once.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let [a, b, c, ..] = self.sizes.map(|size| size as f64);
        match self.kind {
            SingleKind::Concat | SingleKind::Transpose => 8.0 * a * b * c,
            SingleKind::TrilForward => 8.0 * a * pairs(b),
            SingleKind::TrilBackward => 4.0 * a * (b * b + pairs(b)),
            SingleKind::BatchNorm => 12.0 * a * b * c,
            SingleKind::BatchNormBackward => 20.0 * a * b * c,
            SingleKind::Conv2d => {
                let [_, _, _, height, width, kernel_height, kernel_width, ..] =
                    self.sizes.map(|size| size as f64);
                let weights = b * c * kernel_height * kernel_width;
                4.0 * (a * b * height * width + weights + a * c * self.output_pixels())
            }
            SingleKind::Copy => 2.0 * a,
            SingleKind::CopyToDevice
            | SingleKind::CopyToDevicePageable
            | SingleKind::CopyToHost
            | SingleKind::CopyToHostPageable => a,
            SingleKind::EmbeddingForward | SingleKind::EmbeddingBackward => {
                let [batch, tables, _, dim, pooling, ..] = self.sizes.map(|size| size as f64);
                let rows = self.tile().rows_used();
                4.0 * tables * (batch * (pooling + dim) + rows * dim)
            }
        }
    }

    /// Predicts the time on a device from data-sheet rates and constants measured on V100. It is at
    /// least that of the device's shortest kernel.
    #[must_use]
    pub fn price(&self, device: &HardwareSpec) -> Estimate {
        let time = match self.kind {
            SingleKind::EmbeddingForward => self.load(device).forward,
            SingleKind::EmbeddingBackward => self.load(device).backward,
            SingleKind::CopyToDevice | SingleKind::CopyToHost => {
                Estimate::within(HOST_COPY_NS + self.bytes() / PINNED, UNMEASURED)
            }
            SingleKind::CopyToDevicePageable | SingleKind::CopyToHostPageable => {
                Estimate::within(HOST_COPY_NS + self.bytes() / PAGEABLE, UNMEASURED)
            }
            SingleKind::Conv2d => {
                let computed = self.flops() / (PRODUCT_SHARE * device.peak.f32);
                let moved = self.bytes() / (MOVE_SHARE * device.dram);
                Estimate::within(MOVE_NS + 1e9 * computed.max(moved), UNMEASURED)
            }
            SingleKind::BatchNorm | SingleKind::BatchNormBackward => {
                let moved = self.bytes() / (MOVE_SHARE * device.dram);
                let start_ns = MOVE_NS.max(shortest_ns(device));
                Estimate::within(BATCH_NORM_KERNELS * start_ns + 1e9 * moved, UNMEASURED)
            }
            _ => moved(self.bytes(), device),
        };
        at_least_shortest(time, device)
    }

    /// Returns whether the formula was validated by measurements. Only V100 lookups whose longest
    /// bag decides their time were compared with measurements.
    #[must_use]
    pub fn is_measured(&self, device: &HardwareSpec) -> bool {
        let line = START_NS + self.sizes[4] as f64 * ROW_NS;
        self.kind == SingleKind::EmbeddingForward
            && device.key.starts_with("v100")
            && self.price(device).mean_ns <= line
    }

    /// Describes how a lookup uses one of its tables. All bags have the same number of ids.
    #[must_use]
    pub fn tile(&self) -> TileUse {
        let [batch, _, rows, dim, pooling, ..] = self.sizes;
        TileUse {
            table: 0,
            rank: 0,
            dim: dim as usize,
            rows,
            weight_bytes: 4,
            bags: batch as usize,
            vectors: 1,
            uses: batch as f64 * pooling as f64,
            longest_bag: pooling,
            row_share: 1.0,
            uses_of_all: None,
            popularity: Popularity::uniform(rows),
        }
    }

    fn load(&self, device: &HardwareSpec) -> RankLoad {
        let terms = TileTerms::new(&self.tile(), Optimizer::Sgd, None);
        let tiles = std::iter::repeat_n(&terms, self.sizes[1] as usize);
        RankLoad::from_tiles(tiles, RowRates::Gpu(device))
    }
}

/// Predicts a kernel that copies or converts values, by the bytes that it reads and writes.
#[must_use]
pub fn moved(bytes: f64, device: &HardwareSpec) -> Estimate {
    let time = Estimate::within(MOVE_NS + 1e9 * bytes / (MOVE_SHARE * device.dram), MOVED);
    at_least_shortest(time, device)
}

fn at_least_shortest(time: Estimate, device: &HardwareSpec) -> Estimate {
    time.max(Estimate::within(shortest_ns(device), (1.0, MOVED.1)))
}

fn pairs(vectors: f64) -> f64 {
    vectors * (vectors - 1.0) / 2.0
}

/// Formats a kernel as its name and sizes, such as `concat 512 27 64`.
impl fmt::Display for SingleWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        self.sizes().iter().try_for_each(|size| write!(f, " {size}"))
    }
}
