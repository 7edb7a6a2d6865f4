//! Tests of the thread pool: every chunk runs once, panics reach the caller, runs may be nested,
//! several callers share a pool, and dropping a pool ends its threads.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::Pool;

/// Runs `chunks` chunks on the pool, and counts how often each of them ran.
fn count(pool: &Pool, chunks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(chunks, |chunk| _ = counts[chunk].fetch_add(1, Ordering::Relaxed));
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_chunk_runs_once() {
    for threads in [0, 1, 2, 7] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for chunks in [0, 1, 2, 3, 100, 1000] {
            for _ in 0..50 {
                assert_eq!(count(&pool, chunks), vec![1; chunks], "{threads} threads");
            }
        }
    }
}

#[test]
fn chunks_spread_over_threads() {
    let pool = Pool::new(3);
    let barrier = std::sync::Barrier::new(3);
    // The three chunks wait for each other at the barrier, so they end only on three threads.
    pool.run(3, |_| _ = barrier.wait());
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
    for threads in [1, 2, 7] {
        let pool = Pool::new(threads);
        for bad in [0, 5, 63] {
            let run = || pool.run(64, |chunk| assert!(chunk != bad, "chunk {bad} fails"));
            let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            let text = payload.downcast_ref::<String>().unwrap();
            assert_eq!(text, &format!("chunk {bad} fails"));
            assert_eq!(count(&pool, 64), vec![1; 64]);
        }
    }
}

#[test]
fn nested_runs_terminate() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    pool.run(10, |_| {
        pool.run(10, |_| {
            pool.run(3, |_| _ = total.fetch_add(1, Ordering::Relaxed));
        });
    });
    assert_eq!(total.into_inner(), 300);
}

#[test]
fn several_callers_share_a_pool() {
    let pool = Pool::new(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(count(&pool, 20), vec![1; 20]);
                }
            });
        }
    });
}

#[test]
fn parked_workers_wake() {
    let pool = Pool::new(4);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let barrier = std::sync::Barrier::new(4);
    pool.run(4, |_| _ = barrier.wait());
}

thread_local! {
    /// A reference that is dropped when its thread ends.
    static HELD: RefCell<Option<Arc<()>>> = const { RefCell::new(None) };
}

#[test]
fn a_dropped_pool_has_ended_its_threads() {
    let alive = Arc::new(());
    let (pool, barrier) = (Pool::new(4), std::sync::Barrier::new(4));
    pool.run(4, |_| {
        HELD.with(|held| *held.borrow_mut() = Some(Arc::clone(&alive)));
        barrier.wait();
    });
    // The references belong to this variable, to the caller's thread-local, and to each of three
    // workers.
    assert_eq!(Arc::strong_count(&alive), 5);
    drop(pool);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(Pool::new(4));
}

#[test]
fn slices_are_split_at_multiples_of_the_length() {
    for threads in [1, 2, 7] {
        let pool = Pool::new(threads);
        let mut data = vec![0; 1003];
        pool.run_slices(&mut data, 10, |chunk, part| part.fill(chunk + 1));
        assert!(data.iter().enumerate().all(|(i, &value)| value == i / 10 + 1));
        let (mut a, mut b) = (vec![0; 25], vec![0; 9]);
        pool.run_zipped(&mut a, &mut b, 10, 4, |chunk, a, b| {
            a.fill(b.len());
            b.fill(chunk);
        });
        assert_eq!(
            (&a[..], &b[..]),
            (&[[4; 20].as_slice(), &[1; 5]].concat()[..], &[0, 0, 0, 0, 1, 1, 1, 1, 2][..])
        );
        pool.run_slices(&mut [0u8; 0], 5, |_, _| unreachable!("no part of nothing"));
    }
}
