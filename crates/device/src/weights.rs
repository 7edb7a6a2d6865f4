//! The weights of a table in one of the formats a table can have, owned and borrowed.
//! Knows nothing of tables' shapes, and no arithmetic but that of single values.

use std::fmt;
use std::ops::Range;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use schema::DataType;

use crate::buffer::Array;
use crate::real::Widen;
use crate::rounding;

/// The weights of one tile.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// 4 bytes each.
    F32(Array<f32>),
    /// 2 bytes each: 11 significant bits, up to 65504.
    F16(Array<f16>),
    /// 2 bytes each: 8 significant bits, the range of f32.
    Bf16(Array<bf16>),
}

/// Borrowed [`Weights`].
#[derive(Clone, Copy, Debug)]
pub enum WeightsView<'a> {
    /// 4 bytes each.
    F32(&'a [f32]),
    /// 2 bytes each.
    F16(&'a [f16]),
    /// 2 bytes each.
    Bf16(&'a [bf16]),
}

/// Mutably borrowed [`Weights`].
#[derive(Debug)]
pub enum WeightsMut<'a> {
    /// 4 bytes each.
    F32(&'a mut [f32]),
    /// 2 bytes each.
    F16(&'a mut [f16]),
    /// 2 bytes each.
    Bf16(&'a mut [bf16]),
}

/// Calls `$use` with the slice or vector of a value of one of the enums above.
macro_rules! each {
    ($enum:ident, $value:expr, $name:ident => $use:expr) => {
        match $value {
            $enum::F32($name) => $use,
            $enum::F16($name) => $use,
            $enum::Bf16($name) => $use,
        }
    };
}

impl Weights {
    /// `len` zeros, on huge pages where the array is large.
    #[must_use]
    pub fn zeroed(data_type: DataType, len: usize) -> Self {
        match data_type {
            DataType::F32 => Self::F32(Array::zeroed(len)),
            DataType::F16 => Self::F16(Array::zeroed(len)),
            DataType::Bf16 => Self::Bf16(Array::zeroed(len)),
        }
    }

    /// The format.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.view().data_type()
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, to read.
    #[must_use]
    pub fn view(&self) -> WeightsView<'_> {
        match self {
            Self::F32(values) => WeightsView::F32(values),
            Self::F16(values) => WeightsView::F16(values),
            Self::Bf16(values) => WeightsView::Bf16(values),
        }
    }

    /// All of them, to change.
    #[must_use]
    pub fn view_mut(&mut self) -> WeightsMut<'_> {
        match self {
            Self::F32(values) => WeightsMut::F32(values),
            Self::F16(values) => WeightsMut::F16(values),
            Self::Bf16(values) => WeightsMut::Bf16(values),
        }
    }
}

impl<'a> WeightsView<'a> {
    /// The format.
    #[must_use]
    pub fn data_type(self) -> DataType {
        match self {
            Self::F32(_) => DataType::F32,
            Self::F16(_) => DataType::F16,
            Self::Bf16(_) => DataType::Bf16,
        }
    }

    /// Number of weights.
    #[must_use]
    pub fn len(self) -> usize {
        each!(WeightsView, self, values => values.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether those of `range` are finite numbers.
    #[must_use]
    pub fn are_finite(self, range: Range<usize>) -> bool {
        // No early end: the comparisons of a whole register cost less than a branch.
        each!(WeightsView, self, values => {
            values[range].iter().fold(true, |good, value| good & value.is_finite())
        })
    }

    /// Exact copies in f32.
    #[must_use]
    pub fn to_f32(self) -> Vec<f32> {
        each!(WeightsView, self, values => values.iter().map(|&value| value.widen()).collect())
    }

    /// The bytes as they lie in memory.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }
}

impl<'a> WeightsMut<'a> {
    /// The bytes as they lie in memory.
    #[must_use]
    pub fn into_bytes(self) -> &'a mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F16(values) => bytemuck::cast_slice_mut(values),
            Self::Bf16(values) => bytemuck::cast_slice_mut(values),
        }
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(WeightsMut, self, values => values.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites all weights with the nearest of `values`, which are as many.
    ///
    /// # Panics
    /// If they are not.
    pub fn fill_from(&mut self, values: &[f32]) {
        match self {
            Self::F32(weights) => weights.copy_from_slice(values),
            Self::F16(weights) => weights.convert_from_f32_slice(values),
            Self::Bf16(weights) => weights.convert_from_f32_slice(values),
        }
    }
}

/// One stored weight.
pub trait Element: Widen<f32> + Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The nearest to `value`.
    fn nearest(value: f32) -> Self;
    /// `value`, rounded up or down by `noise` where the format is narrower.
    fn round(value: f32, noise: u32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn nearest(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn round(value: f32, _noise: u32) -> Self {
        value
    }
}

macro_rules! half {
    ($half:ty, $round:path) => {
        impl Element for $half {
            #[inline(always)]
            fn nearest(value: f32) -> Self {
                Self::from_f32(value)
            }
            #[inline(always)]
            fn round(value: f32, noise: u32) -> Self {
                $round(value, noise)
            }
        }
    };
}

half!(f16, rounding::to_f16);
half!(bf16, rounding::to_bf16);
