//! The floating-point operations that the scalar oracles need, for f32 and f64 alike. One oracle
//! thus serves as the specification in f32 and as the reference in f64.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// A real number type of the oracles: f32 or f64.
pub trait Real:
    Copy
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + Sum
    + Widen<Self>
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    /// Returns the nearest value of this type.
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    /// Returns `ln(1 + x)`, accurate near 0.
    fn ln_1p(self) -> Self;
    fn abs(self) -> Self;
    /// Returns the larger of the two numbers.
    fn max(self, other: Self) -> Self;
}

/// A stored number type whose values a [`Real`] represents exactly.
pub trait Widen<R>: Copy {
    fn widen(self) -> R;
}

macro_rules! widen {
    ($from:ty, $to:ty) => {
        impl Widen<$to> for $from {
            #[inline(always)]
            fn widen(self) -> $to {
                self.into()
            }
        }
    };
}

widen!(f32, f32);
widen!(f64, f64);
widen!(half::f16, f32);
widen!(half::bf16, f32);

macro_rules! real {
    ($float:ty) => {
        impl Real for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn exp(self) -> Self {
                self.exp()
            }
            #[inline(always)]
            fn ln_1p(self) -> Self {
                self.ln_1p()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                self.max(other)
            }
        }
    };
}

real!(f32);
real!(f64);
