//! A pool of threads that claim chunks and park when there are none.
//!
//! Knows nothing of what the chunks compute. Results do not depend on the thread count as long as
//! the number and shape of the chunks do not.
#![expect(unsafe_code, reason = "workers run a closure that lives on the caller's stack")]

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::DisjointMut;

/// How long a thread watches for work, or for the last worker, before it parks.
const SPIN: Duration = Duration::from_micros(4);

/// A fixed set of threads; the thread that calls [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the one caller whose job the workers share; others run their chunks themselves.
    turn: Mutex<()>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// Number of jobs published so far; read without the lock while spinning.
    published: AtomicU64,
    /// Workers inside the current job; changed under the lock, read without it while spinning.
    active: AtomicUsize,
}

struct State {
    job: Option<JobPointer>,
    closed: bool,
}

#[derive(Clone, Copy)]
struct JobPointer(*const Job<'static>);

// SAFETY: the pointer is only followed between `enter` and `leave`, during which the caller of
// `Pool::run` waits with the job alive on its stack; `Job` itself is shared through `&` and is
// `Sync`.
unsafe impl Send for JobPointer {}

struct Job<'a> {
    chunk: &'a (dyn Fn(usize) + Sync),
    chunks: usize,
    next: AtomicUsize,
    panicked: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Claims and runs chunks until none is left. Never unwinds.
    fn work(&self) {
        loop {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= self.chunks || self.panicked.load(Ordering::Relaxed) {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.chunk)(chunk))) {
                self.panicked.store(true, Ordering::Relaxed);
                lock(&self.payload).get_or_insert(payload);
            }
        }
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; 0 counts as 1.
    ///
    /// Where the system refuses a thread, the pool works with those it got.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { job: None, closed: false }),
            work: Condvar::new(),
            done: Condvar::new(),
            published: AtomicU64::new(0),
            active: AtomicUsize::new(0),
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            let name = format!("rowmill-{index}");
            std::thread::Builder::new().name(name).spawn(move || shared.serve()).ok()
        };
        let workers = (1..threads).map_while(spawn).collect();
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads that take part in a run, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `chunk(i)` for every `i` in `0..chunks`, in any order, and returns when all are done.
    ///
    /// Threads claim chunks one by one; the caller takes part. With one thread, one chunk, or while
    /// the workers serve another run (of another thread, or around this one), the caller runs all
    /// chunks itself, in order.
    ///
    /// # Panics
    /// With the payload of a chunk that panicked; chunks not yet claimed then do not run. The pool
    /// stays usable.
    pub fn run(&self, chunks: usize, chunk: impl Fn(usize) + Sync) {
        let turn = if self.workers.is_empty() || chunks < 2 { None } else { self.take_turn() };
        match turn {
            None => (0..chunks).for_each(chunk),
            Some(turn) => {
                let payload = self.run_shared(chunks, &chunk);
                drop(turn);
                if let Some(payload) = payload {
                    resume_unwind(payload);
                }
            }
        }
    }

    /// Runs `chunk(i, part)` for every part of `chunk_len` consecutive elements of `data`; the last
    /// part may be shorter. See [`Pool::run`].
    ///
    /// # Panics
    /// If `chunk_len` is 0, or with the payload of a chunk that panicked.
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
            // SAFETY: `start < len` since `index < ⌈len / chunk_len⌉`; parts of different indices
            // do not overlap, and `run` calls each index once.
            chunk(index, unsafe { parts.part(start..len.min(start + chunk_len)) });
        });
    }

    /// Runs `chunk(i, a_i, b_i)` over the parts of two slices cut at the same indices: part `i` of
    /// `a` has `lens.0` elements, that of `b` `lens.1`; the last parts may be shorter. See
    /// [`Pool::run`].
    ///
    /// # Panics
    /// If a length is 0, if the slices do not have the same number of parts, or with the payload of
    /// a chunk that panicked.
    pub fn run_zipped<A: Send, B: Send>(
        &self,
        (a, b): (&mut [A], &mut [B]),
        lens: (usize, usize),
        chunk: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        assert!(lens.0 > 0 && lens.1 > 0, "run_zipped: expected lengths above 0, got {lens:?}");
        let (a_parts, b_parts) = (a.len().div_ceil(lens.0), b.len().div_ceil(lens.1));
        assert!(a_parts == b_parts, "run_zipped: {a_parts} parts against {b_parts}");
        let b_len = b.len();
        let b = DisjointMut::new(b);
        self.run_slices(a, lens.0, |index, a_part| {
            let start = index * lens.1;
            // SAFETY: as in `run_slices`: `index < b_parts`, and each index is called once.
            chunk(index, a_part, unsafe { b.part(start..b_len.min(start + lens.1)) });
        });
    }

    /// The workers, unless another run holds them.
    fn take_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Shares the chunks with the workers; returns what a chunk panicked with, if one did.
    fn run_shared(
        &self,
        chunks: usize,
        chunk: &(dyn Fn(usize) + Sync),
    ) -> Option<Box<dyn Any + Send>> {
        let job = Job {
            chunk,
            chunks,
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            payload: Mutex::new(None),
        };
        self.shared.publish(&job, self.workers.len().min(chunks - 1));
        job.work();
        self.shared.retract();
        job.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Offers `job` to the workers. `retract` must follow before `job` goes out of scope; nothing
    /// between the two calls unwinds.
    fn publish(&self, job: &Job<'_>, wanted: usize) {
        let pointer = JobPointer(std::ptr::from_ref(job).cast());
        let mut state = lock(&self.state);
        state.job = Some(pointer);
        // Under the lock: a worker that has checked the number sleeps before it can miss the call.
        self.published.fetch_add(1, Ordering::Release);
        drop(state);
        for _ in 0..wanted {
            self.work.notify_one();
        }
    }

    /// Takes the job back: no worker enters it any more, and those inside have left on return.
    fn retract(&self) {
        lock(&self.state).job = None;
        spin_until(|| self.active.load(Ordering::Acquire) == 0);
        let mut state = lock(&self.state);
        while self.active.load(Ordering::Acquire) > 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A worker's life: enter each job once, work, leave; end when the pool closes.
    fn serve(&self) {
        let mut seen = 0;
        while let Some(pointer) = self.enter(&mut seen) {
            // SAFETY: `enter` raised `active` under the lock while the job was published, and
            // `retract` does not return, so the job does not die, before `leave` lowers it again.
            unsafe { (*pointer.0).work() };
            self.leave();
        }
    }

    /// Waits for a job this worker has not seen and enters it; `None` when the pool is closed.
    fn enter(&self, seen: &mut u64) -> Option<JobPointer> {
        spin_until(|| self.published.load(Ordering::Acquire) != *seen);
        let mut state = lock(&self.state);
        loop {
            let published = self.published.load(Ordering::Acquire);
            match state.job {
                _ if state.closed => return None,
                Some(pointer) if published != *seen => {
                    *seen = published;
                    self.active.fetch_add(1, Ordering::AcqRel);
                    return Some(pointer);
                }
                _ => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn leave(&self) {
        let _state = lock(&self.state);
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker never unwinds: chunks run under `catch_unwind`.
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

/// Watches for `ready` for at most [`SPIN`].
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
