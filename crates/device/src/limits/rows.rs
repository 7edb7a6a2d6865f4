//! Measures three memory limits on a large array: reading random rows as in lookups, updating
//! random rows as in row updates, and reading from front to back as in all other operations.
//!
//! ```text
//! each chunk, in its own share of the rows:                     (1)
//!     for each of its random rows:
//!         prefetch the row some ids ahead, or not               (2)
//!         sums += row          (gather)
//!         row += step          (read-modify-write)
//! ```
//! 1. Groups of rows are assigned to chunks in turn, so that the rows of a chunk are spread over
//!    the array and no two threads write the same row. If single rows were assigned in turn, the
//!    rows of a chunk would be a power of two apart and compete for a few cache sets, which costs
//!    up to a tenth of the rate.
//! 2. The best prefetch distance varies between machines. All distances are measured and the
//!    highest rate is returned, because a limit must not be too low.
#![expect(unsafe_code, reason = "accesses scattered rows and calls vector instructions")]

use std::hint::black_box;
use std::time::Instant;

use schema::random::CounterRng;

use crate::buffer::Array;
use crate::cpu::{Cpu, DisjointMut, Isa, Pool};

/// Bytes of rows that one measurement accesses, which is more than caches hold. Each measurement
/// draws other rows.
const TOUCHED_BYTES: usize = 64 << 20;
/// Bytes that one streaming measurement reads.
const STREAMED_BYTES: usize = 512 << 20;
/// Number of random rows per chunk.
const IDS_PER_CHUNK: usize = 4096;
/// Number of floats per chunk of a streaming measurement.
const FLOATS_PER_CHUNK: usize = 1 << 19;
/// Prefetch distances, measured in bytes of rows.
const BYTES_AHEAD: [usize; 3] = [0, 4096, 8192];
/// Bytes of consecutive rows that belong to one chunk. This size is the distance at which two
/// cache lines may fall into the same cache set.
const GROUP_BYTES: usize = 128 << 10;

/// An array of rows on huge pages, and the random rows of the next measurement.
#[derive(Debug)]
pub struct RowSet {
    data: Array<f32>,
    row_floats: usize,
    /// Random row numbers, chunk by chunk.
    ids: Vec<u32>,
    /// Number of measurements so far. The number seeds the next draw, so that each measurement
    /// draws other rows.
    turn: u64,
}

/// The operation that a measurement applies to each row.
#[derive(Clone, Copy)]
enum Touch {
    Gather,
    ReadModifyWrite,
}

impl RowSet {
    /// Allocates an array of about `bytes` bytes. The rows of the array have `row_bytes` bytes,
    /// rounded up to whole floats, and there is at least one row.
    #[must_use]
    pub fn new(pool: &Pool, bytes: usize, row_bytes: usize) -> Self {
        let row_floats = row_bytes.div_ceil(size_of::<f32>()).max(1);
        let rows = (bytes / (row_floats * size_of::<f32>())).clamp(1, u32::MAX as usize);
        let mut data = Array::zeroed(rows * row_floats);
        // The pages are written once, because otherwise the system would map all of them to the
        // same page of zeros.
        pool.run_slices(&mut data, FLOATS_PER_CHUNK, |_, part| part.fill(1e-6));
        let ids = vec![0; (TOUCHED_BYTES / (row_floats * size_of::<f32>())).max(1)];
        Self { data, row_floats, ids, turn: 0 }
    }

    /// Returns the total size of the rows in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    /// Measures the rate of reading from front to back on all threads, in GB/s.
    #[must_use]
    pub fn stream_gb_per_s(&self, cpu: &Cpu) -> f64 {
        let floats = self.data.len().min(STREAMED_BYTES / size_of::<f32>());
        let parts: Vec<&[f32]> = self.data[..floats].chunks(FLOATS_PER_CHUNK).collect();
        let start = Instant::now();
        cpu.pool.run(parts.len(), |chunk| _ = black_box(sum(cpu.isa, parts[chunk])));
        (floats * size_of::<f32>()) as f64 / start.elapsed().as_nanos().max(1) as f64
    }

    /// Measures the rate of reading random rows on all threads, in GB/s, with the best prefetch
    /// distance.
    #[must_use]
    pub fn gather_gb_per_s(&mut self, cpu: &Cpu) -> f64 {
        self.best(cpu, Touch::Gather)
    }

    /// Measures the rate of reading and writing back random rows on all threads, in GB/s, with
    /// the best prefetch distance. The bytes read and the bytes written both count.
    #[must_use]
    pub fn read_modify_write_gb_per_s(&mut self, cpu: &Cpu) -> f64 {
        2.0 * self.best(cpu, Touch::ReadModifyWrite)
    }

    fn best(&mut self, cpu: &Cpu, touch: Touch) -> f64 {
        let measured = BYTES_AHEAD.map(|bytes| {
            let ahead = bytes.div_ceil(self.row_floats * size_of::<f32>());
            self.touch(cpu, touch, ahead)
        });
        measured.into_iter().fold(0.0, f64::max)
    }

    /// Runs one measurement and returns the bytes of rows accessed per nanosecond.
    fn touch(&mut self, cpu: &Cpu, touch: Touch, ahead: usize) -> f64 {
        let chunks = self.draw(&cpu.pool);
        let (row_floats, ids) = (self.row_floats, &self.ids);
        let rows = DisjointMut::new(&mut self.data);
        let start = Instant::now();
        cpu.pool.run(chunks, |chunk| {
            let first = chunk * IDS_PER_CHUNK;
            let ids = &ids[first..ids.len().min(first + IDS_PER_CHUNK)];
            let share = ChunkRows { rows: &rows, row_floats, ids, ahead };
            // SAFETY: `draw` gave chunk `c` only rows of its own groups inside the array, so no
            // other chunk accesses these rows.
            black_box(unsafe { share.touch(cpu.isa, touch) });
        });
        let bytes = ids.len() * row_floats * size_of::<f32>();
        bytes as f64 / start.elapsed().as_nanos().max(1) as f64
    }

    /// Draws the rows of the next measurement and returns the number of its chunks.
    fn draw(&mut self, pool: &Pool) -> usize {
        let rows = self.data.len() / self.row_floats;
        // There is at most one chunk per row, because a chunk needs at least one row to draw.
        self.ids.truncate(rows.saturating_mul(IDS_PER_CHUNK));
        let chunks = self.ids.len().div_ceil(IDS_PER_CHUNK);
        self.turn += 1;
        let rng = CounterRng::new(self.turn, 0);
        let group = (GROUP_BYTES / (self.row_floats * size_of::<f32>())).clamp(1, rows / chunks);
        pool.run_slices(&mut self.ids, IDS_PER_CHUNK, |chunk, ids| {
            let rng = rng.child(chunk as u64);
            let own = (rows / group - chunk).div_ceil(chunks) * group;
            for (counter, id) in (0..).zip(ids) {
                let drawn = rng.below(counter, own as u64) as usize;
                let (turn, row) = (drawn / group, drawn % group);
                *id = ((turn * chunks + chunk) * group + row) as u32;
            }
        });
        chunks
    }
}

/// The random rows that one chunk accesses.
struct ChunkRows<'a> {
    rows: &'a DisjointMut<'a, f32>,
    row_floats: usize,
    ids: &'a [u32],
    ahead: usize,
}

impl ChunkRows<'_> {
    /// # Safety
    /// The caller guarantees that all rows lie inside the array and that no other thread accesses
    /// them meanwhile.
    unsafe fn touch(&self, isa: Isa, touch: Touch) -> f32 {
        // SAFETY: the caller guarantees that the rows are valid, and the token in `isa` proves
        // that the machine has the instruction set.
        unsafe {
            match isa {
                Isa::Portable => self.touch_portable(touch),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(_) => x86::touch_avx2(self, touch),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(_) => x86::touch_avx512(self, touch),
                #[cfg(not(target_arch = "x86_64"))]
                Isa::Avx2(_) | Isa::Avx512(_) => self.touch_portable(touch),
            }
        }
    }

    /// # Safety
    /// The caller guarantees the same conditions as for [`ChunkRows::touch`].
    unsafe fn touch_portable(&self, touch: Touch) -> f32 {
        let mut total = 0.0;
        for &id in self.ids {
            let start = id as usize * self.row_floats;
            // SAFETY: the caller guarantees that the row lies inside the array, and only one row
            // is borrowed at a time.
            let row = unsafe { self.rows.part(start..start + self.row_floats) };
            match touch {
                Touch::Gather => total += row.iter().sum::<f32>(),
                Touch::ReadModifyWrite => row.iter_mut().for_each(|value| *value += STEP),
            }
        }
        total
    }
}

/// The number that a read-modify-write adds to each value. The number is so small that values
/// stay in the normal range.
const STEP: f32 = 1e-6;

fn sum(isa: Isa, data: &[f32]) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::sum_avx2(token, data),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::sum_avx512(token, data),
        _ => data.iter().sum(),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{ChunkRows, STEP, Touch};
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::vector::{Vector, prefetch_row_second};
    use crate::cpu::{Avx2, Avx512};

    pub(super) fn sum_avx2(_: Avx2, data: &[f32]) -> f32 {
        // SAFETY: the token argument proves that the machine has AVX2 and FMA.
        unsafe { enter_sum_avx2(data) }
    }

    pub(super) fn sum_avx512(_: Avx512, data: &[f32]) -> f32 {
        // SAFETY: the token argument proves that the machine has the AVX-512 group.
        unsafe { enter_sum_avx512(data) }
    }

    #[target_feature(enable = "avx2,fma")]
    fn enter_sum_avx2(data: &[f32]) -> f32 {
        // SAFETY: this function is compiled with the instruction set of `Float8`, and the token
        // of its caller proved that the machine has it.
        unsafe { slice_sum::<Float8>(data) }
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    fn enter_sum_avx512(data: &[f32]) -> f32 {
        // SAFETY: this function is compiled with the instruction set of `Float16`, and the token
        // of its caller proved that the machine has it.
        unsafe { slice_sum::<Float16>(data) }
    }

    /// # Safety
    /// The caller guarantees the same conditions as for [`ChunkRows::touch`], on a machine with
    /// AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn touch_avx2(share: &ChunkRows<'_>, touch: Touch) -> f32 {
        // SAFETY: this function is compiled with the instruction set of `Float8`, and the caller
        // guarantees that the rows are valid.
        unsafe { touch_rows::<Float8>(share, touch) }
    }

    /// # Safety
    /// The caller guarantees the same conditions as for [`ChunkRows::touch`], on a machine with
    /// the AVX-512 group.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    pub(super) unsafe fn touch_avx512(share: &ChunkRows<'_>, touch: Touch) -> f32 {
        // SAFETY: this function is compiled with the instruction set of `Float16`, and the caller
        // guarantees that the rows are valid.
        unsafe { touch_rows::<Float16>(share, touch) }
    }

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, and that the rows
    /// are as [`ChunkRows::touch`] requires.
    #[inline(always)]
    unsafe fn touch_rows<V: Vector>(share: &ChunkRows<'_>, touch: Touch) -> f32 {
        let ChunkRows { rows, row_floats, ids, ahead } = *share;
        let base = rows.as_ptr();
        // SAFETY: the caller guarantees the instruction set of `V` and valid rows, and only one
        // row is borrowed at a time.
        unsafe {
            let mut sums = [V::splat(0.0); 4];
            for (at, &id) in ids.iter().enumerate() {
                if ahead > 0
                    && let Some(&next) = ids.get(at + ahead)
                {
                    prefetch_row_second(base.wrapping_add(next as usize * row_floats), row_floats);
                }
                let start = id as usize * row_floats;
                let row = rows.part(start..start + row_floats);
                match touch {
                    Touch::Gather => add_into(&mut sums, row.as_ptr(), row_floats),
                    Touch::ReadModifyWrite => row_add::<V>(row.as_mut_ptr(), row_floats),
                }
            }
            total(sums)
        }
    }

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    unsafe fn slice_sum<V: Vector>(data: &[f32]) -> f32 {
        // SAFETY: the caller guarantees the instruction set of `V`. All loads stay inside the
        // slice.
        unsafe {
            let mut sums = [V::splat(0.0); 4];
            add_into(&mut sums, data.as_ptr(), data.len());
            total(sums)
        }
    }

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    unsafe fn total<V: Vector>([a, b, c, d]: [V; 4]) -> f32 {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe { V::sum_of_16(a.add(b).add(c.add(d)), V::splat(0.0)) }
    }

    /// Adds `len` floats of a row to four registers in turn, so that four additions can be in
    /// flight.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V` and that `row` has
    /// `len` floats.
    #[inline(always)]
    unsafe fn add_into<V: Vector>(sums: &mut [V; 4], row: *const f32, len: usize) {
        // SAFETY: the caller guarantees `len` floats at `row` and the instruction set of `V`.
        unsafe {
            let mut at = 0;
            while at + 4 * V::LANES <= len {
                for (register, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(row.add(at + register * V::LANES)));
                }
                at += 4 * V::LANES;
            }
            while at < len {
                sums[0] = sums[0].add(V::load_up_to(row.add(at), len - at));
                at += V::LANES;
            }
        }
    }

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V` and that no other
    /// thread accesses the `len` floats at `row`.
    #[inline(always)]
    unsafe fn row_add<V: Vector>(row: *mut f32, len: usize) {
        // SAFETY: the caller guarantees exclusive access to `len` floats at `row` and the
        // instruction set of `V`.
        unsafe {
            let step = V::splat(STEP);
            let mut at = 0;
            while at < len {
                let place = row.add(at);
                V::load_up_to(place, len - at).add(step).store_up_to(place, len - at);
                at += V::LANES;
            }
        }
    }
}
