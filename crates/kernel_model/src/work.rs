//! The vocabulary of kernel models (decision 0005).
//!
//! A kernel is described by its kind and sizes. The minimum FLOPs and bytes follow from them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Error;

/// Bytes of an `f32`.
const F32: u128 = 4;

/// An element-wise operation for which kernel models have measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    Add,
    Mul,
    /// Gaussian error linear unit.
    Gelu,
    Relu,
    Tanh,
}

impl Element {
    /// All operations, in declaration order.
    pub const ALL: [Self; 5] = [Self::Add, Self::Mul, Self::Gelu, Self::Relu, Self::Tanh];

    /// Returns the name of the operation in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Gelu => "gelu",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
        }
    }

    /// Returns the number of tensors read and written, and the FLOPs per element.
    fn tensors_and_flops(self) -> (u128, u128) {
        match self {
            Self::Add | Self::Mul => (3, 1),
            Self::Relu => (2, 1),
            Self::Gelu => (2, 20),
            Self::Tanh => (2, 10),
        }
    }
}

/// A kind of kernel that has its own trained model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The forward pass of a linear layer.
    Linear,
    /// A batch of matrix products.
    Bmm,
    /// The forward pass of a 2D convolution.
    Conv,
    /// Layer normalization over rows.
    LayerNorm,
    Softmax,
    /// One operation that is applied to every element of a tensor.
    ElementWise,
}

impl Kind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 6] =
        [Self::Linear, Self::Bmm, Self::Conv, Self::LayerNorm, Self::Softmax, Self::ElementWise];

    /// Returns the name of the kind in files and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Bmm => "bmm",
            Self::Conv => "conv",
            Self::LayerNorm => "layer_norm",
            Self::Softmax => "softmax",
            Self::ElementWise => "element_wise",
        }
    }

    /// Returns the names of the sizes that describe a kernel of this kind, in order.
    #[must_use]
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Self::Linear => &["m", "n", "k"],
            Self::Bmm => &["batch", "m", "n", "k"],
            Self::Conv => {
                &["batch", "channels_in", "channels_out", "kernel", "size", "stride", "padding"]
            }
            Self::LayerNorm | Self::Softmax => &["rows", "columns"],
            Self::ElementWise => &["elements"],
        }
    }
}

/// A kernel description: an operation with its sizes, in `f32`. Kernel models predict the time of
/// such a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Work {
    kind: Kind,
    element: Option<Element>,
    sizes: [u64; 7],
}

impl Work {
    /// Creates a kernel description of any kind except element-wise.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of sizes is wrong, a size other than padding is 0, a
    /// convolution has no output, or FLOPs or bytes exceed 2⁶³.
    pub fn new(kind: Kind, sizes: &[u64]) -> Result<Self, Error> {
        Self::checked(kind, None, sizes)
    }

    /// Creates the description of an element-wise kernel.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements is 0 or too large.
    pub fn element_wise(element: Element, elements: u64) -> Result<Self, Error> {
        Self::checked(Kind::ElementWise, Some(element), &[elements])
    }

    pub(super) fn checked(
        kind: Kind,
        element: Option<Element>,
        given: &[u64],
    ) -> Result<Self, Error> {
        let names = kind.sizes();
        let wrong = |expected: String| Error::Shape {
            kind: element.map_or(kind.name(), Element::name),
            sizes: given.to_vec(),
            expected,
        };
        if given.len() != names.len() {
            return Err(wrong(format!("{} sizes: {}", names.len(), names.join(", "))));
        }
        if let Some(at) = (0..given.len()).find(|&at| given[at] == 0 && names[at] != "padding") {
            return Err(wrong(format!("{} above 0", names[at])));
        }
        if kind == Kind::ElementWise && element.is_none() {
            return Err(wrong("the name of an operation".to_owned()));
        }
        let mut sizes = [1; 7];
        sizes[..given.len()].copy_from_slice(given);
        let work = Self { kind, element, sizes };
        if kind == Kind::Conv {
            if let Some(at) = (0..given.len()).find(|&at| given[at] >= 1 << 31) {
                return Err(wrong(format!("{} below 2^31", names[at])));
            }
            let [_, _, _, kernel, size, _, padding] = sizes;
            if kernel > size + 2 * padding {
                return Err(wrong("a kernel no larger than the padded input".to_owned()));
            }
        }
        // 2⁶³ FLOPs take days on the fastest device, so such a size is mistyped.
        const MOST: u128 = 1 << 63;
        match work.counted() {
            Some((flops, bytes)) if flops < MOST && bytes < MOST => Ok(work),
            _ => Err(wrong("fewer than 2^63 FLOPs and bytes".to_owned())),
        }
    }

    /// Returns the kind, which selects the model.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the operation of an element-wise kernel.
    #[must_use]
    pub fn element(&self) -> Option<Element> {
        self.element
    }

    /// Returns the sizes, in the order of [`Kind::sizes`].
    #[must_use]
    pub fn sizes(&self) -> &[u64] {
        &self.sizes[..self.kind.sizes().len()]
    }

    /// Returns the name of the operation on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.element.map_or(self.kind.name(), Element::name)
    }

    /// Returns the FLOPs and the minimum bytes moved, with each tensor counted once.
    #[must_use]
    pub fn flops_and_bytes(&self) -> (f64, f64) {
        // The constructor checked that the counts fit, so the fallback is never used.
        self.counted().map_or((0.0, 0.0), |(flops, bytes)| (flops as f64, bytes as f64))
    }

    /// Returns the minimum FLOPs of any algorithm. Winograd's algorithm needs a quarter of the
    /// direct FLOPs for 3 × 3 windows.
    #[must_use]
    pub fn least_flops(&self) -> f64 {
        let (flops, _) = self.flops_and_bytes();
        let is_reducible = self.kind == Kind::Conv && self.sizes[3] >= 3 && self.sizes[5] == 1;
        if is_reducible { flops / 4.0 } else { flops }
    }

    /// Returns the height of a convolution's output, which equals its width.
    #[must_use]
    pub fn conv_output(&self) -> Option<u64> {
        let [_, _, _, kernel, size, stride, padding] = self.sizes;
        (self.kind == Kind::Conv).then(|| (size + 2 * padding - kernel) / stride + 1)
    }

    /// Returns the number of elements of the result.
    #[must_use]
    pub fn outputs(&self) -> f64 {
        let [a, b, c, ..] = self.sizes.map(|size| size as f64);
        match self.kind {
            Kind::Linear | Kind::LayerNorm | Kind::Softmax => a * b,
            Kind::Bmm => a * b * c,
            Kind::Conv => a * c * self.conv_output().map_or(0.0, |out| (out as f64).powi(2)),
            Kind::ElementWise => a,
        }
    }

    fn counted(&self) -> Option<(u128, u128)> {
        let [a, b, c, d, ..] = self.sizes.map(u128::from);
        Some(match self.kind {
            Kind::Linear => (product(&[2, a, b, c])?, bytes(&[(a, c), (a, b), (c, b)])?),
            Kind::Bmm => {
                let once = bytes(&[(b, d), (b, c), (d, c)])?;
                (product(&[2, a, b, c, d])?, once.checked_mul(a)?)
            }
            Kind::Conv => {
                let out = u128::from(self.conv_output()?);
                let (size, window) = (u128::from(self.sizes[4]), d.checked_mul(d)?);
                let image = size.checked_mul(size)?;
                let (input, output) = (product(&[a, b, image])?, product(&[a, c, out, out])?);
                let weights = product(&[b, c, window])?;
                let flops = product(&[2, output, b, window])?;
                (flops, bytes(&[(input, 1), (output, 1), (weights, 1)])?)
            }
            Kind::LayerNorm | Kind::Softmax => {
                let elements = a.checked_mul(b)?;
                // Layer normalization and softmax are counted with five operations per element.
                (product(&[5, elements])?, product(&[2, F32, elements])?)
            }
            Kind::ElementWise => {
                let (tensors, flops) = self.element?.tensors_and_flops();
                (product(&[flops, a])?, product(&[tensors, F32, a])?)
            }
        })
    }
}

/// Formats a kernel description as its name and sizes, such as `linear 512 1024 1024`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.sizes().iter().try_for_each(|size| write!(f, " {size}"))
    }
}

fn product(factors: &[u128]) -> Option<u128> {
    factors.iter().try_fold(1u128, |product, factor| product.checked_mul(*factor))
}

/// Returns the bytes of `f32` tensors with two sizes each.
fn bytes(tensors: &[(u128, u128)]) -> Option<u128> {
    let elements = tensors
        .iter()
        .try_fold(0u128, |sum, (rows, columns)| sum.checked_add(rows.checked_mul(*columns)?))?;
    elements.checked_mul(F32)
}
