//! Runs independent jobs on several threads and returns results in the order of the jobs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `run` for each of `0..jobs` on up to `threads` threads and returns the results in order.
pub fn in_parallel<R: Send>(
    threads: usize,
    jobs: usize,
    run: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return;
            }
            let result = run(job);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((job, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Threads finish jobs out of order, and callers rely on an order that does not depend on
    // threads.
    done.sort_by_key(|(job, _)| *job);
    done.into_iter().map(|(_, result)| result).collect()
}
