//! Memory for large arrays such as tables, their optimizer state and the columns of traces. This
//! module does not depend on what the arrays contain.
#![expect(unsafe_code, reason = "implements an allocator, and advises the kernel about pages")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

/// Arrays smaller than this number of bytes stay on ordinary pages.
const LARGE_BYTES: usize = 2 << 20;

/// The system's allocator with large blocks on huge pages, for a program's `#[global_allocator]`.
///
/// The first access to a page costs a page fault. With pages of 4 KiB, page faults take a tenth of
/// the time of reading a trace. A block that has grown large is advised on each growth, before its
/// new part is touched.
#[derive(Clone, Copy, Debug)]
pub struct HugePages;

// SAFETY: `HugePages` passes every call on to `System` unchanged, and `System` is a valid
// allocator. The advice about huge pages does not change the contents of memory.
unsafe impl GlobalAlloc for HugePages {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`, which is passed on to `System`
        // unchanged.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, passed on to `System`
        // unchanged.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `realloc`, which is passed on to `System`
        // unchanged.
        advised(unsafe { System.realloc(block, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is passed on to `System`
        // unchanged.
        unsafe { System.dealloc(block, layout) }
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// [`HugePages`] with a count of allocations, for the `#[global_allocator]` of tests.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

impl Counting {
    /// Returns the number of blocks that this thread has allocated or enlarged.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.get()
    }

    fn count() {
        // `try_with` fails while a thread ends, because its counter is already gone. Allocations
        // at that moment are not counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: `Counting` passes every call on to `HugePages` unchanged, and `HugePages` is a valid
// allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller upholds the contract of `alloc`, passed on to `HugePages` unchanged.
        unsafe { HugePages.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, passed on to `HugePages`
        // unchanged.
        unsafe { HugePages.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller upholds the contract of `realloc`, passed on to `HugePages`
        // unchanged.
        unsafe { HugePages.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, passed on to `HugePages`
        // unchanged.
        unsafe { HugePages.dealloc(block, layout) }
    }
}

#[inline]
fn advised(block: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE_BYTES && !block.is_null() {
        advise_huge_pages(block, size);
    }
    block
}

/// Number of 8-byte words in a cache line.
const LINE_WORDS: usize = 8;

/// A fixed number of values that begin on a cache line. Large arrays lie on huge pages if the
/// operating system grants them.
///
/// A row of 128 bytes that begins in the middle of a cache line occupies three lines instead of
/// two, which is half as much again to fetch. Random rows of a large table miss the TLB on every
/// access; with pages of 2 MiB they miss it far less often. The kernel must be advised to use huge
/// pages before the memory is first touched, so this type allocates its memory itself.
pub struct Array<E> {
    /// The allocated words, whose start is not aligned to a cache line.
    words: Vec<u64>,
    /// Index of the first word that lies at the start of a cache line.
    start: usize,
    len: usize,
    element: PhantomData<E>,
}

impl<E: Pod> Array<E> {
    /// Returns the bytes that an array of `len` values allocates, 64 bytes for its alignment
    /// included.
    #[must_use]
    pub fn bytes(len: usize) -> usize {
        Self::words(len).saturating_mul(8)
    }

    fn words(len: usize) -> usize {
        len.div_ceil(8 / size_of::<E>()).saturating_add(LINE_WORDS)
    }

    /// Allocates an array of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let words = vec![0u64; Self::words(len)];
        let bytes = size_of_val(words.as_slice());
        // No page of `words` has been accessed yet, so the advice still has an effect.
        if bytes >= LARGE_BYTES {
            advise_huge_pages(words.as_ptr().cast(), bytes);
        }
        // The allocator aligns the memory for 8-byte words, so a cache line begins within the
        // first eight words.
        let start = words.as_ptr().align_offset(LINE_WORDS * 8).min(LINE_WORDS);
        Self { words, start, len, element: PhantomData }
    }
}

impl<E: Pod> Deref for Array<E> {
    type Target = [E];

    #[inline]
    fn deref(&self) -> &[E] {
        &bytemuck::cast_slice(&self.words[self.start..])[..self.len]
    }
}

impl<E: Pod> DerefMut for Array<E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [E] {
        &mut bytemuck::cast_slice_mut(&mut self.words[self.start..])[..self.len]
    }
}

impl<E: Pod> From<&[E]> for Array<E> {
    fn from(values: &[E]) -> Self {
        let mut array = Self::zeroed(values.len());
        array.copy_from_slice(values);
        array
    }
}

impl<E: Pod> Clone for Array<E> {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl<E: Pod> Default for Array<E> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<E: Pod + PartialEq> PartialEq for Array<E> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<E: Pod + fmt::Debug> fmt::Debug for Array<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Returns freed memory to the operating system, so that the memory of one part of a program is
/// available to the next part.
///
/// glibc's allocator keeps the memory that a thread freed for that thread, even after the thread
/// has ended.
///
/// # Cost
/// Walks all free blocks, which takes some milliseconds per GiB. Call the function between the
/// parts of a program, not within a loop.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes no pointer and may be called from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Limits the arenas of the allocator (`M_ARENA_MAX`) for the threads that start from now on.
///
/// By default glibc gives almost every thread an arena of its own, up to eight arenas per core, and
/// never returns the end of an arena. Memory that one thread has freed cannot be used by another
/// thread with its own arena. One arena per concurrently running thread is enough. With 2 arenas
/// instead of 16, short training runs on two cores take 20 to 90 MiB less, in the same CPU time.
pub fn limit_arenas(most: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes no pointer and locks the state that it changes.
    unsafe {
        let most = i32::try_from(most.max(1)).unwrap_or(i32::MAX);
        libc::mallopt(libc::M_ARENA_MAX, most);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = most;
}

/// Advises the kernel to use huge pages for a block. If the kernel refuses, only speed suffers.
///
/// The advice starts at the first page of the block, which may hold other data too. Advising only a
/// part of the allocator's mapping would split it, and a split mapping cannot grow without a copy.
#[cold]
fn advise_huge_pages(block: *const u8, size: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: `madvise` gets whole pages that hold `block` and possibly other data of the
    // allocator. All these pages are mapped, and the advice does not change their contents.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE).max(1) as usize;
        let start = block as usize / page * page;
        let end = block as usize + size;
        libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::{Array, LARGE_BYTES};

    #[test]
    fn large_and_small_arrays_are_zero_writable_and_begin_on_a_line() {
        for len in [0, 1, 1000, LARGE_BYTES / 4 - 1, LARGE_BYTES / 4, LARGE_BYTES / 2 + 77] {
            let mut data = Array::<f32>::zeroed(len);
            assert!(data.len() == len && data.iter().all(|&value| value == 0.0));
            data.fill(1.5);
            let copy = data.clone();
            assert!(copy == data && data.iter().all(|&value| value == 1.5));
            let halves = Array::<half::f16>::zeroed(len);
            assert_eq!(halves.len(), len);
            for address in [data.as_ptr().addr(), copy.as_ptr().addr(), halves.as_ptr().addr()] {
                assert_eq!(address % 64, 0);
            }
        }
    }
}
