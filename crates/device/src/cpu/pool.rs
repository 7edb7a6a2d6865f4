//! A pool of threads that claim chunks of work, and park when all chunks are claimed.
//!
//! The pool does not depend on what the chunks compute. Results do not depend on the thread count
//! as long as the number and shape of the chunks do not.
#![expect(unsafe_code, reason = "workers run a closure that lives on the caller's stack")]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::migration::{Migrated, WorkerStates};
use super::{DisjointMut, Topology};

/// Time that a thread spins for work, or for the last worker, before it parks.
const SPIN: Duration = Duration::from_micros(4);

/// Number of workers that the caller wakes. Each woken worker wakes the same number of others.
/// The caller's cost of waking therefore does not grow with the number of threads, and one slow
/// worker delays few others.
const WAKES: usize = 8;

/// Largest number of NUMA nodes with chunks of their own. Further nodes share these chunks.
const NODES: usize = 16;

/// A fixed set of threads; the thread that calls [`Pool::run`] is one of them.
///
/// On a machine with several NUMA nodes, the workers are spread over the nodes. Each worker is
/// bound to a node, not to a CPU, so that the scheduler can still migrate it off a busy CPU. A
/// node's threads claim their own chunks first, so that parts of a large array stay on the node
/// that first accessed them.
pub struct Pool {
    shared: Arc<PoolShared>,
    workers: Vec<JoinHandle<()>>,
    /// Lock of the caller whose job the workers run. Other callers run their own chunks
    /// meanwhile.
    turn: Mutex<Migrated>,
}

/// State that the caller's thread shares with the workers. Jobs are published without a lock.
struct PoolShared {
    /// The published job, or null between jobs.
    job: AtomicPtr<PoolJob<'static>>,
    /// Number of jobs published so far.
    published: AtomicU64,
    /// Number of workers that the published job admits.
    wanted: AtomicUsize,
    /// Number of workers that may hold a reference to the published job.
    inside: AtomicUsize,
    /// Whether the caller is about to park until `inside` is 0.
    waiting: AtomicBool,
    closed: AtomicBool,
    /// The thread that published the job and waits for its end.
    caller: Mutex<Option<Thread>>,
    /// Handles of the workers, ordered by their index.
    workers: OnceLock<Vec<Thread>>,
    states: WorkerStates,
    topology: Topology,
}

/// A function to run on all chunks, and the division of the chunks among nodes and threads.
struct PoolJob<'a> {
    chunk: &'a (dyn Fn(usize, Range<usize>) + Sync),
    chunks: usize,
    /// Number of pieces into which a chunk is divided.
    pieces: usize,
    /// Number of chunks at the end of each node's share that are claimed piece by piece.
    tail: usize,
    /// Next chunk or piece to claim in each node's share.
    next: [Cursor; NODES],
    nodes: usize,
    panicked: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A counter that has cache lines of its own, so that threads do not contend for its neighbors.
#[repr(align(128))]
struct Cursor(AtomicUsize);

impl<'a> PoolJob<'a> {
    fn new(
        chunks: usize,
        pieces: usize,
        chunk: &'a (dyn Fn(usize, Range<usize>) + Sync),
        threads: usize,
        nodes: usize,
    ) -> Self {
        let nodes = nodes.clamp(1, NODES);
        Self {
            chunk,
            chunks,
            pieces,
            tail: if pieces > 1 { threads.div_ceil(nodes) } else { 0 },
            next: std::array::from_fn(|_| Cursor(AtomicUsize::new(0))),
            nodes,
            panicked: AtomicBool::new(false),
            payload: Mutex::new(None),
        }
    }

    /// Claims and runs chunks until all are claimed, first the chunks of the thread's own node.
    /// Never unwinds, even if a chunk panics.
    fn work(&self, node: usize) {
        for step in 0..self.nodes {
            let node = (node + step) % self.nodes;
            while let Some((chunk, pieces)) = self.claim(node) {
                if self.panicked.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.chunk)(chunk, pieces)))
                {
                    self.panicked.store(true, Ordering::Relaxed);
                    lock(&self.payload).get_or_insert(payload);
                }
            }
        }
    }

    /// Claims the next chunk of a node's share, or a piece of a chunk near the end of the share.
    fn claim(&self, node: usize) -> Option<(usize, Range<usize>)> {
        let [first, end] = [node, node + 1].map(|node| self.chunks * node / self.nodes);
        let whole = (end - first).saturating_sub(self.tail);
        let claim = self.next[node].0.fetch_add(1, Ordering::Relaxed);
        let Some(piece) = claim.checked_sub(whole) else {
            return Some((first + claim, 0..self.pieces));
        };
        let chunk = first + whole + piece / self.pieces;
        let piece = piece % self.pieces;
        (chunk < end).then_some((chunk, piece..piece + 1))
    }
}

impl Pool {
    /// Creates a pool of `threads` threads, the caller's included; 0 counts as 1.
    ///
    /// If the operating system refuses to create a thread, the pool is smaller.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::on(Topology::detect(), threads)
    }

    /// Creates a pool for a machine with this topology.
    #[must_use]
    fn on(topology: Topology, threads: usize) -> Self {
        let shared = Arc::new(PoolShared {
            job: AtomicPtr::new(ptr::null_mut()),
            published: AtomicU64::new(0),
            wanted: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            caller: Mutex::new(None),
            workers: OnceLock::new(),
            states: WorkerStates::new(threads.saturating_sub(1), topology.processors()),
            topology,
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            let node = index * shared.topology.nodes() / threads;
            let name = format!("rowmill-{index}");
            thread::Builder::new().name(name).spawn(move || shared.serve(index - 1, node)).ok()
        };
        // The pool stops growing at the first thread that the operating system refuses.
        let workers: Vec<JoinHandle<()>> = (1..threads).map_while(spawn).collect();
        let handles = workers.iter().map(|worker| worker.thread().clone()).collect();
        shared.workers.get_or_init(|| handles);
        Self { shared, workers, turn: Mutex::default() }
    }

    /// Returns the number of threads that take part in a run, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `chunk(i)` for every `i` in `0..chunks`, in any order, and returns when all calls
    /// have ended.
    ///
    /// Threads claim chunks one by one, and the calling thread takes part. The calling thread
    /// runs all chunks itself, in order, if there is one thread or one chunk. The calling thread
    /// also runs all chunks itself while the workers serve another run, either of another thread
    /// or one that encloses this run.
    ///
    /// # Cost
    /// The caller wakes at most eight workers, and no lock is taken. The cost that more threads
    /// do not reduce is one atomic addition per chunk and two per worker. If another program
    /// preempts a worker, the caller waits for the rest of the worker's chunk, not for the other
    /// program.
    ///
    /// # Panics
    /// Panics with the payload of a chunk that panicked. Chunks not yet claimed at that time do
    /// not run. The pool stays usable after the panic.
    pub fn run(&self, chunks: usize, chunk: impl Fn(usize) + Sync) {
        self.run_tapered(chunks, 1, |index, _| chunk(index));
    }

    /// Runs `chunk(i, range)` so that every `i` in `0..chunks` receives each of `0..pieces` once.
    /// Most chunks are run whole. The last chunks, one per thread, are run piece by piece, so
    /// that all threads end at nearly the same time. This suits long chunks that cost more when
    /// they are divided. See [`Pool::run`].
    ///
    /// # Panics
    /// Panics if there are no pieces, or with the payload of a chunk that panicked.
    pub fn run_tapered(
        &self,
        chunks: usize,
        pieces: usize,
        chunk: impl Fn(usize, Range<usize>) + Sync,
    ) {
        assert!(pieces > 0, "run_tapered: expected pieces, got 0");
        let alone = self.workers.is_empty() || chunks * pieces < 2;
        match if alone { None } else { self.take_turn() } {
            None => (0..chunks).for_each(|index| chunk(index, 0..pieces)),
            Some(mut turn) => {
                let payload = self.run_shared(chunks, pieces, &chunk, &mut turn);
                // The lock is released before the panic unwinds, so that the panic does not
                // poison it.
                drop(turn);
                if let Some(payload) = payload {
                    resume_unwind(payload);
                }
            }
        }
    }

    /// Runs `chunk(i, part)` for every part of `chunk_len` consecutive elements of `data`. The
    /// last part may be shorter. See [`Pool::run`].
    ///
    /// # Panics
    /// Panics if `chunk_len` is 0, or with the payload of a chunk that panicked.
    pub fn run_slices<T: Send>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        chunk: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(chunk_len > 0, "run_slices: expected a chunk length above 0, got 0");
        let len = data.len();
        let parts = DisjointMut::new(data);
        self.run(len.div_ceil(chunk_len), |index| {
            let start = index * chunk_len;
            // SAFETY: `index < ⌈len / chunk_len⌉`, so `start < len` and the part lies inside
            // `data`. Parts of different indices do not overlap, and `run` calls each index once.
            chunk(index, unsafe { parts.part(start..len.min(start + chunk_len)) });
        });
    }

    /// Copies bytes with all threads, because one thread copies only 10 GB/s, which is too slow
    /// for a batch.
    ///
    /// # Panics
    /// Panics if the slices differ in length.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        /// Smallest number of bytes for which it pays to wake a thread.
        const CHUNK_BYTES: usize = 128 << 10;
        assert_eq!(from.len(), to.len(), "copy: expected slices of equal length");
        self.run_slices(to, CHUNK_BYTES, |index, part| {
            part.copy_from_slice(&from[index * CHUNK_BYTES..][..part.len()]);
        });
    }

    /// Runs `chunk(i, a_i, b_i)` over the parts of two slices. Part `i` of `a` has `a_len`
    /// elements and part `i` of `b` has `b_len`; the last parts may be shorter. See
    /// [`Pool::run`].
    ///
    /// # Panics
    /// Panics if a length is 0, if the slices do not have the same number of parts, or with the
    /// payload of a chunk that panicked.
    pub fn run_zipped<A: Send, B: Send>(
        &self,
        a: &mut [A],
        b: &mut [B],
        a_len: usize,
        b_len: usize,
        chunk: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        assert!(
            a_len > 0 && b_len > 0,
            "run_zipped: expected lengths above 0, got {a_len} and {b_len}"
        );
        let (a_parts, b_parts) = (a.len().div_ceil(a_len), b.len().div_ceil(b_len));
        assert!(a_parts == b_parts, "run_zipped: got {a_parts} and {b_parts} parts");
        let b_total = b.len();
        let b = DisjointMut::new(b);
        self.run_slices(a, a_len, |index, a_part| {
            let start = index * b_len;
            // SAFETY: `index < b_parts`, so the part begins inside `b`. Parts of different indices
            // do not overlap, and `run_slices` calls each index once.
            chunk(index, a_part, unsafe { b.part(start..b_total.min(start + b_len)) });
        });
    }

    /// Locks the workers for this run. Returns `None` if another run holds them.
    fn take_turn(&self) -> Option<MutexGuard<'_, Migrated>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Runs the chunks on the caller and the workers. Returns the panic payload of a chunk, if one
    /// panicked.
    fn run_shared(
        &self,
        chunks: usize,
        pieces: usize,
        chunk: &(dyn Fn(usize, Range<usize>) + Sync),
        migrated: &mut Migrated,
    ) -> Option<Box<dyn Any + Send>> {
        let topology = &self.shared.topology;
        self.shared.states.publish(migrated);
        let job = PoolJob::new(chunks, pieces, chunk, self.threads(), topology.nodes());
        self.shared.publish(&job, self.workers.len().min(chunks * pieces - 1));
        job.work(topology.here());
        self.shared.retract(migrated);
        job.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolShared {
    /// Publishes `job` to the workers. The caller must call `retract` before `job` goes out of
    /// scope, and must not unwind in between.
    fn publish(&self, job: &PoolJob<'_>, wanted: usize) {
        self.wanted.store(wanted, Ordering::Relaxed);
        self.job.store(ptr::from_ref(job).cast_mut().cast(), Ordering::SeqCst);
        self.published.fetch_add(1, Ordering::SeqCst);
        self.wake(0, wanted);
    }

    /// Wakes the workers `first..first + WAKES`, as far as the job admits them.
    fn wake(&self, first: usize, wanted: usize) {
        let workers = self.workers.get().map(Vec::as_slice).unwrap_or_default();
        let end = wanted.min(first + WAKES).min(workers.len());
        workers.get(first..end).into_iter().flatten().for_each(Thread::unpark);
    }

    /// Withdraws the published job. No further worker enters the job, and all workers inside have
    /// left it when this function returns.
    ///
    /// A worker increments `inside` before it reads the job. The caller sets the job to null
    /// before it reads `inside`. These accesses have sequentially consistent order, so the caller
    /// waits for every worker that still saw the job.
    fn retract(&self, migrated: &mut Migrated) {
        self.job.store(ptr::null_mut(), Ordering::SeqCst);
        let is_empty = || self.inside.load(Ordering::SeqCst) == 0;
        spin_until(is_empty);
        if is_empty() {
            return;
        }
        *lock(&self.caller) = Some(thread::current());
        self.waiting.store(true, Ordering::SeqCst);
        self.states.wait(migrated, is_empty);
        self.waiting.store(false, Ordering::Relaxed);
    }

    /// Runs the main loop of a worker: it enters each job once, works, and leaves, until the pool
    /// closes.
    fn serve(&self, index: usize, node: usize) {
        self.topology.bind(node);
        self.states.begin(index);
        let mut seen = 0;
        while self.await_job(&mut seen) {
            let wanted = self.wanted.load(Ordering::Relaxed);
            if index >= wanted {
                continue;
            }
            self.wake((index + 1) * WAKES, wanted);
            self.states.take(index);
            self.inside.fetch_add(1, Ordering::SeqCst);
            let job = self.job.load(Ordering::SeqCst);
            if !job.is_null() {
                // SAFETY: this worker incremented `inside` before it read the job, and `retract`
                // keeps the job alive until `inside` is 0 again. `PoolJob` is `Sync`.
                unsafe { (*job).work(node) };
            }
            self.states.leave(index);
            self.leave();
        }
    }

    /// Waits for a job that this worker has not seen. Returns `false` when the pool is closed.
    fn await_job(&self, seen: &mut u64) -> bool {
        let is_new = || self.published.load(Ordering::SeqCst) != *seen;
        spin_until(is_new);
        while !is_new() && !self.closed.load(Ordering::SeqCst) {
            thread::park();
        }
        *seen = self.published.load(Ordering::SeqCst);
        !self.closed.load(Ordering::SeqCst)
    }

    fn leave(&self) {
        let was_last = self.inside.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.waiting.load(Ordering::SeqCst) {
            lock(&self.caller).iter().for_each(Thread::unpark);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // The result is ignored because workers never unwind: chunks run under
            // `catch_unwind`.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls `ready` for at most [`SPIN`], so that a short wait needs no system call.
fn spin_until(ready: impl Fn() -> bool) {
    if ready() {
        return;
    }
    let start = Instant::now();
    while !ready() && start.elapsed() < SPIN {
        for _ in 0..16 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Mutex, Pool, PoolJob, Topology, WAKES, lock};

    #[test]
    fn a_thread_begins_with_the_share_of_its_node() {
        let ran = Mutex::new(Vec::new());
        for (nodes, node, expected) in
            [(1, 0, [0, 1, 2, 3, 4]), (2, 1, [2, 3, 4, 0, 1]), (3, 1, [1, 2, 3, 4, 0])]
        {
            let chunk = |chunk, _| lock(&ran).push(chunk);
            PoolJob::new(5, 1, &chunk, 2, nodes).work(node);
            assert_eq!(std::mem::take(&mut *lock(&ran)), expected, "{nodes} nodes");
        }
    }

    #[test]
    fn the_last_chunks_of_a_share_are_claimed_in_pieces() {
        let ran = Mutex::new(Vec::new());
        let chunk = |chunk, pieces| lock(&ran).push((chunk, pieces));
        PoolJob::new(5, 3, &chunk, 2, 2).work(1);
        let second = [(2, 0..3), (3, 0..3), (4, 0..1), (4, 1..2), (4, 2..3)];
        let first = [(0, 0..3), (1, 0..1), (1, 1..2), (1, 2..3)];
        assert_eq!(*lock(&ran), [&second[..], &first[..]].concat());
    }

    #[test]
    fn every_piece_of_every_chunk_runs_once() {
        for threads in [1, 2, 7] {
            let pool = Pool::new(threads);
            for (chunks, pieces) in [(0, 4), (1, 1), (1, 4), (2, 3), (40, 4)] {
                let counts: Vec<AtomicUsize> =
                    (0..chunks * pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run_tapered(chunks, pieces, |chunk, range| {
                    for piece in range {
                        counts[chunk * pieces + piece].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn threads_of_several_nodes_run_every_chunk_once() {
        // The second node has CPU 1, which may not exist on this machine. The affinity call is
        // then refused, and its threads run on any CPU.
        let pool = Pool::on(Topology::from_nodes(&[&[0], &[1]]), 5);
        for chunks in [2, 3, 64, 1000] {
            let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(chunks, |chunk| _ = counts[chunk].fetch_add(1, Ordering::Relaxed));
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn workers_wake_each_other() {
        let threads = 3 * WAKES;
        let pool = Pool::new(threads);
        std::thread::sleep(std::time::Duration::from_millis(5));
        // The chunks wait for each other at a barrier, so they end only if every worker wakes.
        let barrier = std::sync::Barrier::new(threads);
        pool.run(threads, |_| _ = barrier.wait());
    }
}
