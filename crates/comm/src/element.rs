//! The element types of collectives, and the owned buffers of them that a transport moves.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};

/// A type that collectives move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, IEEE 754.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// A byte.
    U8,
}

impl ElementType {
    const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U8];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The name as Rust spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Plain old data that collectives move and add.
pub trait CommElement: bytemuck::Pod + Send + Sync + private::Stored {
    /// Which type it is.
    const TYPE: ElementType;

    /// `self + other`. Integers wrap; `f16` and `bf16` are rounded.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

mod private {
    use super::{Payload, Pool, Shelf};

    /// Where buffers of the type are kept. Closes the list of element types.
    pub trait Stored: Sized {
        fn into_payload(values: Vec<Self>) -> Payload;
        fn from_payload(payload: Payload) -> Result<Vec<Self>, Payload>;
        fn shelf(pool: &Pool) -> &Shelf<Self>;
    }
}

/// The values of a message, in a buffer that is handed on.
#[derive(Debug)]
pub enum Payload {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    /// Bytes.
    U8(Vec<u8>),
}

impl Payload {
    /// Type of its elements.
    #[must_use]
    pub fn element(&self) -> ElementType {
        match self {
            Self::F32(_) => ElementType::F32,
            Self::F16(_) => ElementType::F16,
            Self::Bf16(_) => ElementType::Bf16,
            Self::I32(_) => ElementType::I32,
            Self::I64(_) => ElementType::I64,
            Self::U8(_) => ElementType::U8,
        }
    }

    /// Its memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
            Self::I32(values) => bytemuck::cast_slice(values),
            Self::I64(values) => bytemuck::cast_slice(values),
            Self::U8(values) => values,
        }
    }

    /// Its memory, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F16(values) => bytemuck::cast_slice_mut(values),
            Self::Bf16(values) => bytemuck::cast_slice_mut(values),
            Self::I32(values) => bytemuck::cast_slice_mut(values),
            Self::I64(values) => bytemuck::cast_slice_mut(values),
            Self::U8(values) => values,
        }
    }

    /// The values, where they are of this type.
    pub(crate) fn values<T: CommElement>(&self) -> Option<&[T]> {
        (self.element() == T::TYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// The values.
    ///
    /// # Errors
    /// The payload itself where it is of another type.
    pub fn into_values<T: CommElement>(self) -> Result<Vec<T>, Self> {
        T::from_payload(self)
    }
}

/// What a message brings: values of its own, or a sender's that several ranks read.
#[derive(Debug)]
pub enum Load {
    /// The receiver's from now on.
    Owned(Payload),
    /// The sender takes them back once nobody reads them.
    Shared(Arc<Payload>),
}

impl<T: CommElement> From<Vec<T>> for Load {
    fn from(values: Vec<T>) -> Self {
        Self::Owned(Payload::from(values))
    }
}

impl Load {
    /// The values.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        match self {
            Self::Owned(payload) => payload,
            Self::Shared(payload) => payload,
        }
    }

    /// Its memory, to be filled; none of a sender's.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Owned(payload) => payload.bytes_mut(),
            Self::Shared(_) => &mut [],
        }
    }

    /// The values as the receiver's own, copied into a buffer of `pool` if they are not.
    pub(crate) fn into_payload(self, pool: &Pool) -> Payload {
        match self {
            Self::Owned(payload) => payload,
            Self::Shared(shared) => {
                let element = shared.element();
                let mut copy = pool.take_payload(element, shared.bytes().len() / element.bytes());
                copy.bytes_mut().copy_from_slice(shared.bytes());
                copy
            }
        }
    }
}

impl<T: CommElement> From<Vec<T>> for Payload {
    fn from(values: Vec<T>) -> Self {
        T::into_payload(values)
    }
}

/// Buffers of one type between two uses.
pub type Shelf<T> = Mutex<Vec<Vec<T>>>;

/// Buffers between two uses: received ones are sent again, so that a step allocates none once their
/// capacity suffices.
#[derive(Debug, Default)]
pub struct Pool {
    f32: Shelf<f32>,
    f16: Shelf<f16>,
    bf16: Shelf<bf16>,
    i32: Shelf<i32>,
    i64: Shelf<i64>,
    u8: Shelf<u8>,
    /// Buffers that peers read, or have read since.
    lent: Mutex<Vec<Arc<Payload>>>,
}

/// Buffers of a type that are kept; of more the smallest are freed.
const KEPT: usize = 64;

impl Pool {
    /// A buffer of `len` values left over from earlier uses, or zeros.
    pub fn take<T: CommElement>(&self, len: usize) -> Vec<T> {
        self.take_back();
        let mut shelf = T::shelf(self).lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough, else the largest: it grows once. Of several that used
        // last, which the caches still hold.
        let fitting = (0..shelf.len())
            .rev()
            .min_by_key(|&i| (shelf[i].capacity() < len, shelf[i].capacity().abs_diff(len)));
        let mut values = fitting.map(|i| shelf.swap_remove(i)).unwrap_or_default();
        drop(shelf);
        if values.capacity() < len {
            // Its values are of no use: nothing to be copied into the larger buffer.
            values.clear();
        }
        values.resize(len, T::zeroed());
        values
    }

    /// Keeps a buffer for [`Self::take`].
    pub fn give<T: CommElement>(&self, values: Vec<T>) {
        if values.capacity() == 0 {
            return;
        }
        let mut shelf = T::shelf(self).lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.len() < KEPT {
            return shelf.push(values);
        }
        if let Some(smallest) = shelf.iter_mut().min_by_key(|kept| kept.capacity())
            && smallest.capacity() < values.capacity()
        {
            *smallest = values;
        }
    }

    /// Lends `values` to peers, until all of them have dropped what they were given.
    pub(crate) fn lend<T: CommElement>(&self, values: Vec<T>) -> Arc<Payload> {
        let payload = Payload::from(values);
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for free in lent.iter_mut() {
            if let Some(room) = Arc::get_mut(free) {
                self.give_payload(mem::replace(room, payload));
                return Arc::clone(free);
            }
        }
        let shared = Arc::new(payload);
        lent.push(Arc::clone(&shared));
        shared
    }

    /// Takes back what was lent and nobody reads any more.
    fn take_back(&self) {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for payload in lent.iter_mut().filter_map(Arc::get_mut) {
            self.give_payload(mem::replace(payload, Payload::U8(Vec::new())));
        }
    }

    /// Keeps a load's buffer, unless it is another's.
    pub(crate) fn give_load(&self, load: Load) {
        if let Load::Owned(payload) = load {
            self.give_payload(payload);
        }
    }

    /// As [`Self::take`], of a type known at run time.
    pub fn take_payload(&self, element: ElementType, len: usize) -> Payload {
        match element {
            ElementType::F32 => Payload::F32(self.take(len)),
            ElementType::F16 => Payload::F16(self.take(len)),
            ElementType::Bf16 => Payload::Bf16(self.take(len)),
            ElementType::I32 => Payload::I32(self.take(len)),
            ElementType::I64 => Payload::I64(self.take(len)),
            ElementType::U8 => Payload::U8(self.take(len)),
        }
    }

    /// As [`Self::give`], of a type known at run time.
    pub fn give_payload(&self, payload: Payload) {
        match payload {
            Payload::F32(values) => self.give(values),
            Payload::F16(values) => self.give(values),
            Payload::Bf16(values) => self.give(values),
            Payload::I32(values) => self.give(values),
            Payload::I64(values) => self.give(values),
            Payload::U8(values) => self.give(values),
        }
    }
}

macro_rules! element {
    ($type:ident, $variant:ident, $shelf:ident, $add:expr) => {
        impl CommElement for $type {
            const TYPE: ElementType = ElementType::$variant;

            #[inline]
            fn plus(self, other: Self) -> Self {
                let add: fn(Self, Self) -> Self = $add;
                add(self, other)
            }
        }

        impl private::Stored for $type {
            fn into_payload(values: Vec<Self>) -> Payload {
                Payload::$variant(values)
            }

            fn from_payload(payload: Payload) -> Result<Vec<Self>, Payload> {
                match payload {
                    Payload::$variant(values) => Ok(values),
                    other => Err(other),
                }
            }

            fn shelf(pool: &Pool) -> &Shelf<Self> {
                &pool.$shelf
            }
        }
    };
}

element!(f32, F32, f32, |a, b| a + b);
element!(f16, F16, f16, |a, b| a + b);
element!(bf16, Bf16, bf16, |a, b| a + b);
element!(i32, I32, i32, i32::wrapping_add);
element!(i64, I64, i64, i64::wrapping_add);
element!(u8, U8, u8, u8::wrapping_add);
