//! Memory for large arrays: tables, their optimizer state, the columns of traces.
//! Knows nothing of what is stored; the GPU's buffers will live here too.
#![expect(unsafe_code, reason = "allocates, and advises the kernel about pages")]

use std::alloc::{GlobalAlloc, Layout, System};

/// Arrays smaller than this stay on ordinary pages.
const LARGE_BYTES: usize = 2 << 20;

/// The system's allocator with large blocks on huge pages, for a program's `#[global_allocator]`.
///
/// First touching memory costs a fault per page: on pages of 4 KiB that is a tenth of the time of
/// reading a trace. A block that has grown large is advised each time it grows, before what is new
/// of it is touched.
#[derive(Clone, Copy, Debug)]
pub struct HugePages;

// SAFETY: every call is passed on to `System` as it came; advice changes no contents.
unsafe impl GlobalAlloc for HugePages {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`.
        advised(unsafe { System.realloc(block, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[inline]
fn advised(block: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE_BYTES && !block.is_null() {
        advise_huge_pages(block, size);
    }
    block
}

/// `len` zeros, on huge pages where the array is large and the system grants them.
///
/// Random rows of a large table miss the translation cache on every access; on pages of 2 MiB they
/// miss it far less often. The advice has to come before the memory is first touched, hence a
/// function that allocates.
#[must_use]
pub fn zeroed(len: usize) -> Vec<f32> {
    let data = vec![0.0; len];
    if size_of_val(data.as_slice()) >= LARGE_BYTES {
        advise_huge_pages(data.as_ptr().cast(), size_of_val(data.as_slice()));
    }
    data
}

/// Marks the pages of a block; a refusal changes nothing but speed.
///
/// The first page is marked with all that is on it: marking only a part of what the allocator
/// mapped would split the mapping, which could then no longer be grown without copying it.
#[cold]
fn advise_huge_pages(block: *const u8, size: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the pages hold the block and whatever the allocator put beside it, all mapped, and
    // the advice changes the contents of no memory.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE).max(1) as usize;
        let start = block as usize / page * page;
        let end = block as usize + size;
        libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGE_BYTES, zeroed};

    #[test]
    fn large_and_small_arrays_are_zero_and_writable() {
        for len in [0, 1, 1000, LARGE_BYTES / 4 - 1, LARGE_BYTES / 4, LARGE_BYTES / 2 + 77] {
            let mut data = zeroed(len);
            assert!(data.len() == len && data.iter().all(|&value| value == 0.0));
            data.fill(1.5);
            assert!(data.iter().all(|&value| value == 1.5));
        }
    }
}
