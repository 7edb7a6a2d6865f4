//! The weights of a table in one of its number formats, owned and borrowed. This module does not
//! depend on the shapes of tables. The only arithmetic of the module is the conversion of single
//! values.

use std::fmt;
use std::ops::Range;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use schema::DataType;

use crate::buffer::Array;
use crate::real::Widen;
use crate::rounding;

/// The weights of one tile, in the number format of its table.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    F32(Array<f32>),
    /// Takes 2 bytes per weight, with 11 significant bits and values up to 65504.
    F16(Array<f16>),
    /// Takes 2 bytes per weight, with 8 significant bits and the range of f32.
    Bf16(Array<bf16>),
}

/// A shared view of [`Weights`], or of part of them.
#[derive(Clone, Copy, Debug)]
pub enum WeightsView<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// An exclusive view of [`Weights`], through which they can be changed.
#[derive(Debug)]
pub enum WeightsMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

/// Calls `$use` with the slice or array inside a value of one of the enums above.
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
    /// Allocates `len` weights of zero, on huge pages if the array is large.
    #[must_use]
    pub fn zeroed(data_type: DataType, len: usize) -> Self {
        match data_type {
            DataType::F32 => Self::F32(Array::zeroed(len)),
            DataType::F16 => Self::F16(Array::zeroed(len)),
            DataType::Bf16 => Self::Bf16(Array::zeroed(len)),
        }
    }

    /// Returns the memory size in bytes of `len` weights in a number format.
    #[must_use]
    pub fn bytes(data_type: DataType, len: usize) -> usize {
        match data_type {
            DataType::F32 => Array::<f32>::bytes(len),
            DataType::F16 => Array::<f16>::bytes(len),
            DataType::Bf16 => Array::<bf16>::bytes(len),
        }
    }

    /// Returns the number format of the weights.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.view().data_type()
    }

    /// Returns the number of weights, over all rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Returns whether there are no weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Borrows all weights for reading.
    #[must_use]
    pub fn view(&self) -> WeightsView<'_> {
        match self {
            Self::F32(values) => WeightsView::F32(values),
            Self::F16(values) => WeightsView::F16(values),
            Self::Bf16(values) => WeightsView::Bf16(values),
        }
    }

    /// Borrows all weights for writing.
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
    /// Returns the number format of the weights.
    #[must_use]
    pub fn data_type(self) -> DataType {
        match self {
            Self::F32(_) => DataType::F32,
            Self::F16(_) => DataType::F16,
            Self::Bf16(_) => DataType::Bf16,
        }
    }

    /// Returns the number of weights, over all rows.
    #[must_use]
    pub fn len(self) -> usize {
        each!(WeightsView, self, values => values.len())
    }

    /// Returns whether there are no weights.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the weights in `range`.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }

    /// Returns whether all weights in `range` are finite.
    #[must_use]
    pub fn are_finite(self, range: Range<usize>) -> bool {
        // The loop does not stop early, because comparing a whole register costs less than a
        // branch per value.
        each!(WeightsView, self, values => {
            values[range].iter().fold(true, |good, value| good & value.is_finite())
        })
    }

    /// Finds the first non-finite weight in `range`. Returns its position among all weights, and
    /// its value.
    #[must_use]
    pub fn first_not_finite(self, range: Range<usize>) -> Option<(usize, f32)> {
        if self.are_finite(range.clone()) {
            return None;
        }
        each!(WeightsView, self, values => {
            let mut numbered = range.clone().zip(&values[range]);
            numbered.find(|(_, value)| !value.is_finite()).map(|(i, value)| (i, value.widen()))
        })
    }

    /// Returns the number of weights in `range` that have the largest magnitude of their 16-bit
    /// format, to which rounding clips larger values. The result is 0 for f32, which does not
    /// clip.
    #[must_use]
    pub fn count_at_limit(self, range: Range<usize>) -> usize {
        let at_limit = |bits: u16, limit: u16| usize::from(bits & 0x7fff == limit);
        match self {
            Self::F32(_) => 0,
            Self::F16(values) => {
                values[range].iter().map(|v| at_limit(v.to_bits(), f16::MAX.to_bits())).sum()
            }
            Self::Bf16(values) => {
                values[range].iter().map(|v| at_limit(v.to_bits(), bf16::MAX.to_bits())).sum()
            }
        }
    }

    /// Finds the first weight in `range` that [`Self::count_at_limit`] counts. Returns its
    /// position among all weights, and its value.
    #[must_use]
    pub fn first_at_limit(self, mut range: Range<usize>) -> Option<(usize, f32)> {
        let i = range.find(|&i| self.count_at_limit(i..i + 1) > 0)?;
        Some((i, each!(WeightsView, self, values => values[i].widen())))
    }

    /// Returns exact copies of the weights in f32.
    #[must_use]
    pub fn to_f32(self) -> Vec<f32> {
        each!(WeightsView, self, values => values.iter().map(|&value| value.widen()).collect())
    }

    /// Copies the weights to `to`, exactly.
    ///
    /// # Panics
    /// Panics if the numbers of values and weights differ.
    pub fn read(self, to: &mut [f32]) {
        assert_eq!(to.len(), self.len(), "one value per weight");
        each!(WeightsView, self, values => {
            to.iter_mut().zip(values).for_each(|(to, &value)| *to = value.widen());
        });
    }

    /// Returns the bytes of the weights in memory order.
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
    /// Returns the bytes of the weights in memory order, for writing.
    #[must_use]
    pub fn into_bytes(self) -> &'a mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F16(values) => bytemuck::cast_slice_mut(values),
            Self::Bf16(values) => bytemuck::cast_slice_mut(values),
        }
    }

    /// Returns the number of weights, over all rows.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(WeightsMut, self, values => values.len())
    }

    /// Returns whether there are no weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the weights in `range`.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&mut values[range]),
            Self::F16(values) => Self::F16(&mut values[range]),
            Self::Bf16(values) => Self::Bf16(&mut values[range]),
        }
    }

    /// Overwrites all weights with `values`, each rounded to the nearest number of the format.
    ///
    /// # Panics
    /// Panics if the numbers of values and weights differ.
    pub fn fill_from(&mut self, values: &[f32]) {
        match self {
            Self::F32(weights) => weights.copy_from_slice(values),
            Self::F16(weights) => weights.convert_from_f32_slice(values),
            Self::Bf16(weights) => weights.convert_from_f32_slice(values),
        }
    }
}

/// A number format in which tables store weights.
pub trait StoredWeight: Widen<f32> + Pod + PartialEq + fmt::Debug + Send + Sync {
    /// Returns the number of the format that is nearest to `value`.
    fn nearest(value: f32) -> Self;
    /// Rounds `value` up or down depending on `noise`, if the format is narrower than f32.
    fn round(value: f32, noise: u32) -> Self;
}

impl StoredWeight for f32 {
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
        impl StoredWeight for $half {
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

#[cfg(test)]
mod tests {
    use schema::DataType;

    use super::Weights;

    #[test]
    fn values_at_and_beyond_the_end_of_a_format_are_found() {
        for (data_type, most) in [(DataType::F16, 65504.0), (DataType::Bf16, 3.389_531_4e38)] {
            let mut weights = Weights::zeroed(data_type, 4);
            weights.view_mut().fill_from(&[1.0, -most, most, f32::INFINITY]);
            let view = weights.view();
            assert_eq!((view.count_at_limit(0..4), view.count_at_limit(0..2)), (2, 1));
            assert_eq!(view.first_at_limit(0..4), Some((1, -most)));
            assert_eq!(view.first_not_finite(0..4), Some((3, f32::INFINITY)));
            assert_eq!(view.first_not_finite(0..3), None);
        }
        let mut wide = Weights::zeroed(DataType::F32, 2);
        wide.view_mut().fill_from(&[f32::MAX, f32::NAN]);
        assert_eq!(wide.view().count_at_limit(0..2), 0);
        assert!(
            wide.view().first_not_finite(0..2).is_some_and(|(i, value)| i == 1 && value.is_nan())
        );
    }
}
