//! The element types of collectives, and the pooled buffers in which a transport moves elements.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};

/// The type of the elements that a collective moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F16,
    /// The `bfloat16` format, the upper half of an `f32`.
    Bf16,
    I32,
    I64,
    U8,
}

impl ElementType {
    /// All types, indexed by their code in an encoded header.
    pub(crate) const ALL: [Self; 6] =
        [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U8];

    /// Returns the size of one element in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Returns the name of the type in Rust.
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

/// A plain value that collectives can move and add.
pub trait CommElement: bytemuck::Pod + Send + Sync + private::Stored {
    const TYPE: ElementType;

    /// Returns `self + other`. Integers wrap, and `f16` and `bf16` are rounded.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

mod private {
    use super::{FreeList, Payload, Pool};

    /// Converts buffers to payloads, and selects the free list of the type. The trait is private,
    /// so that no other crate can add element types.
    pub trait Stored: Sized {
        fn into_payload(values: Vec<Self>) -> Payload;
        fn from_payload(payload: Payload) -> Result<Vec<Self>, Payload>;
        fn free_list(pool: &Pool) -> &FreeList<Self>;
    }
}

/// The values of a message, in an owned buffer.
#[derive(Debug)]
pub enum Payload {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

impl Payload {
    /// Returns the type of the elements.
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

    /// Returns the values as bytes.
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

    /// Returns the values as mutable bytes, so that a transport can receive into them.
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

    /// Returns the values if their type is `T`.
    pub(crate) fn values<T: CommElement>(&self) -> Option<&[T]> {
        (self.element() == T::TYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// Converts the payload to its values of type `T`.
    ///
    /// # Errors
    /// Returns the payload unchanged if its elements have another type.
    pub fn into_values<T: CommElement>(self) -> Result<Vec<T>, Self> {
        T::from_payload(self)
    }
}

/// The content of a message: an owned payload, or one that the sender shares with several ranks.
#[derive(Debug)]
pub enum Load {
    /// A payload owned by the receiver.
    Owned(Payload),
    /// A shared payload, which returns to the sender's pool once no rank reads it.
    Shared(Arc<Payload>),
}

impl<T: CommElement> From<Vec<T>> for Load {
    fn from(values: Vec<T>) -> Self {
        Self::Owned(Payload::from(values))
    }
}

impl Load {
    /// Returns the payload, whether it is owned or shared.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        match self {
            Self::Owned(payload) => payload,
            Self::Shared(payload) => payload,
        }
    }

    /// Returns the values as mutable bytes. A shared payload yields an empty slice.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Owned(payload) => payload.bytes_mut(),
            Self::Shared(_) => &mut [],
        }
    }

    /// Converts to an owned payload. A shared payload is copied into a buffer of `pool`.
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

/// Free buffers of one element type.
pub type FreeList<T> = Mutex<Vec<Vec<T>>>;

/// A pool of free buffers. Received buffers are reused for sending, so steps allocate nothing once
/// the buffers' capacities suffice.
#[derive(Debug, Default)]
pub struct Pool {
    f32: FreeList<f32>,
    f16: FreeList<f16>,
    bf16: FreeList<bf16>,
    i32: FreeList<i32>,
    i64: FreeList<i64>,
    u8: FreeList<u8>,
    /// Buffers that are shared with peers, or that peers have released since the last check.
    lent: Mutex<Vec<Arc<Payload>>>,
}

/// Largest number of free buffers per element type. When it is exceeded, the smallest buffers are
/// freed.
const KEPT: usize = 64;

impl Pool {
    /// Takes a buffer of `len` values with arbitrary content.
    pub fn take<T: CommElement>(&self, len: usize) -> Vec<T> {
        self.take_back();
        let mut free_list = T::free_list(self).lock().unwrap_or_else(PoisonError::into_inner);
        // Choose the buffer that fits best. If none is large enough, choose the largest, which then
        // grows once. Among equal buffers choose the most recently used one, because it is still in
        // the caches.
        let fitting = (0..free_list.len()).rev().min_by_key(|&i| {
            (free_list[i].capacity() < len, free_list[i].capacity().abs_diff(len))
        });
        let mut values = fitting.map(|i| free_list.swap_remove(i)).unwrap_or_default();
        drop(free_list);
        if values.capacity() < len {
            // Clear the buffer, so that growing it does not copy useless values.
            values.clear();
        }
        values.resize(len, T::zeroed());
        values
    }

    /// Returns a buffer to the pool.
    pub fn give<T: CommElement>(&self, values: Vec<T>) {
        if values.capacity() == 0 {
            return;
        }
        let mut free_list = T::free_list(self).lock().unwrap_or_else(PoisonError::into_inner);
        if free_list.len() < KEPT {
            return free_list.push(values);
        }
        if let Some(smallest) = free_list.iter_mut().min_by_key(|kept| kept.capacity())
            && smallest.capacity() < values.capacity()
        {
            *smallest = values;
        }
    }

    /// Lends a buffer of values to peers, which read it without a copy. The buffer returns to the
    /// pool when all peers have dropped their reference.
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

    /// Collects shared buffers that no peer reads any more.
    fn take_back(&self) {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for payload in lent.iter_mut().filter_map(Arc::get_mut) {
            self.give_payload(mem::replace(payload, Payload::U8(Vec::new())));
        }
    }

    /// Returns the buffer of an owned payload to the pool.
    pub(crate) fn give_load(&self, load: Load) {
        if let Load::Owned(payload) = load {
            self.give_payload(payload);
        }
    }

    /// Takes a buffer like [`Self::take`], for an element type known at run time.
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

    /// Returns a buffer like [`Self::give`], for an element type known at run time.
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
    ($type:ident, $variant:ident, $free_list:ident, $add:expr) => {
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

            fn free_list(pool: &Pool) -> &FreeList<Self> {
                &pool.$free_list
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
