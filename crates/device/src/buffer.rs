//! Memory for large arrays: tables and their optimizer state.
//! Knows nothing of what is stored; the GPU's buffers will live here too.
#![expect(unsafe_code, reason = "advises the kernel about pages")]

/// Arrays smaller than this stay on ordinary pages.
const LARGE_BYTES: usize = 8 << 20;

/// `len` zeros, on huge pages where the array is large and the system grants them.
///
/// Random rows of a large table miss the translation cache on every access; on pages of 2 MiB they
/// miss it far less often. The advice has to come before the memory is first touched, hence a
/// function that allocates.
#[must_use]
pub fn zeroed(len: usize) -> Vec<f32> {
    let data = vec![0.0; len];
    #[cfg(target_os = "linux")]
    if size_of_val(data.as_slice()) >= LARGE_BYTES {
        advise_huge_pages(&data);
    }
    data
}

/// Marks the whole pages of `data`; a refusal changes nothing but speed.
#[cfg(target_os = "linux")]
fn advise_huge_pages(data: &[f32]) {
    // A multiple of every page size in use, so that the range starts on a page.
    const ALIGNMENT: usize = 64 << 10;
    let start = (data.as_ptr() as usize).next_multiple_of(ALIGNMENT);
    let end = data.as_ptr() as usize + size_of_val(data);
    // SAFETY: the range lies inside `data`, which is at least `LARGE_BYTES` long, and the advice
    // does not change the contents of memory.
    unsafe {
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
