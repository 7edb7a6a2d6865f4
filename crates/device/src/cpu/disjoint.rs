//! One mutable slice that is shared by chunks which write different parts of it. The type does
//! not depend on threads, and the caller proves that the writes are disjoint.
#![expect(
    unsafe_code,
    reason = "hands out parts of one slice that the borrow checker cannot separate"
)]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose parts several threads may hold at once, as long as the parts do not
/// overlap.
///
/// [`crate::cpu::Pool::run_slices`] is the safe form for equal consecutive parts. This type
/// serves kernels whose parts are scattered, such as rows of a table or columns of an output.
#[derive(Debug)]
pub struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: `DisjointMut` only hands out `&mut [T]` of parts, and the caller of `part` guarantees
// that the parts are disjoint. Another thread may own such a part because `T: Send`.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: `part` takes `&self`, but its contract forbids two overlapping parts that are alive at
// the same time, so two threads never access the same element.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Borrows `data` exclusively for `'a`.
    #[must_use]
    pub fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), lifetime: PhantomData }
    }

    /// Returns the number of elements of the whole slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements in `range` for writing.
    ///
    /// # Safety
    /// The caller guarantees that `range` lies inside the slice and that no other part that
    /// overlaps it is alive at the same time.
    #[must_use]
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the contract of `part` requires that the range lies inside the slice and that no
        // other live part overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Returns a pointer to the first element of `range`, for kernels that write through a
    /// pointer. Writes must keep the contract of [`Self::part`]: they stay inside `range`, and no
    /// other live part overlaps `range`.
    ///
    /// # Panics
    /// Panics if the range is not inside the slice.
    #[must_use]
    #[inline(always)]
    pub fn write_ptr(&self, range: Range<usize>) -> *mut T {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "expected a range within {} elements, got {range:?}",
            self.len
        );
        self.start.wrapping_add(range.start)
    }

    /// Returns the address of the first element, for prefetching.
    #[must_use]
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.start
    }
}
