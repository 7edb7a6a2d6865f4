//! One mutable slice shared by chunks that write different parts of it. Knows nothing of threads;
//! the caller proves that writes are disjoint.
#![expect(
    unsafe_code,
    reason = "hands out parts of one slice that the borrow checker cannot separate"
)]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose parts several threads may hold at once, as long as the parts do not
/// overlap.
///
/// [`crate::cpu::Pool::run_slices`] is the safe form for equal consecutive parts; this type serves
/// kernels whose parts are scattered (rows of a table, columns of an output).
#[derive(Debug)]
pub struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the type only hands out `&mut [T]` of parts whose disjointness the caller of `part`
// vouches for; sending such a part to another thread is sound because `T: Send`.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above; `part` takes `&self` and its contract forbids two live overlapping parts.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Takes over `data` for `'a`.
    #[must_use]
    pub fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), lifetime: PhantomData }
    }

    /// Elements in the whole slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements `range`.
    ///
    /// # Safety
    /// `range` lies inside the slice, and no other part that overlaps it is alive at the same time.
    #[must_use]
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the caller vouches that the range is inside the slice and exclusively theirs.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The address of the first element, for prefetching.
    #[must_use]
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.start
    }
}
