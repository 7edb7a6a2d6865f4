//! Detects pool workers that have lost their CPU to another process, and migrates them to a free
//! CPU. The thread that waits for the workers does both.
//!
//! Another process may preempt a worker in the middle of a chunk for milliseconds, while the
//! caller has finished its own chunks and its CPU idles. The scheduler does not migrate a thread
//! that has run very recently. The caller therefore pins the worker to the caller's own CPU, so
//! it waits for the rest of a chunk instead of the other process's time slice.
//!
//! The scheduler may also leave a worker on the caller's CPU although another CPU is idle,
//! because the caller and the worker wait for each other in turn. In this case the caller pins
//! the worker to the other CPUs. This module does not depend on what a job computes.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::system::{self, ThreadId};

/// Time that the caller spins for the last worker before it checks which workers are stalled.
const SPIN: Duration = Duration::from_micros(10);

/// Time that the caller parks between two checks of the workers.
const PARK: Duration = Duration::from_micros(50);

/// Number of workers that one check examines, so that its cost does not grow with the threads.
const CHECKED: usize = 8;

/// Time after the last migration until all workers may again run on any of their CPUs.
const CALM: Duration = Duration::from_millis(100);

/// The operating-system thread of each worker, and whether it is working on a job.
pub(super) struct WorkerStates {
    workers: Vec<WorkerState>,
    /// The CPU on which the caller published the last job.
    caller: AtomicUsize,
    /// Whether any worker began a job on the caller's CPU since the last job was published.
    crowded: AtomicBool,
}

/// The state of one worker, on cache lines of its own because the worker writes it twice per job.
#[derive(Default)]
#[repr(align(128))]
struct WorkerState {
    thread: AtomicI32,
    is_busy: AtomicBool,
    /// Whether the worker began a job on the caller's CPU.
    crowded: AtomicBool,
}

/// Workers that the caller migrated, with the CPUs that each was allowed to use before.
#[derive(Default)]
pub(super) struct Migrated {
    workers: Vec<(ThreadId, Vec<usize>)>,
    /// Time at which the last worker was migrated.
    last: Option<Instant>,
}

impl WorkerStates {
    /// Creates the states of `workers` workers. There are no states, and so no migration, if the
    /// pool has more threads than there are `cpus`, because its threads then preempt each other.
    pub(super) fn new(workers: usize, cpus: usize) -> Self {
        let watched = if workers < cpus { workers } else { 0 };
        Self {
            workers: (0..watched).map(|_| WorkerState::default()).collect(),
            caller: AtomicUsize::new(usize::MAX),
            crowded: AtomicBool::new(false),
        }
    }

    /// Registers the calling thread as worker `index`.
    pub(super) fn begin(&self, index: usize) {
        if let Some(worker) = self.workers.get(index) {
            worker.thread.store(system::thread_id(), Ordering::Relaxed);
        }
    }

    /// Records that worker `index` is about to begin a job.
    pub(super) fn take(&self, index: usize) {
        if let Some(worker) = self.workers.get(index) {
            worker.is_busy.store(true, Ordering::Relaxed);
            if system::current() == self.caller.load(Ordering::Relaxed) {
                worker.crowded.store(true, Ordering::Relaxed);
                self.crowded.store(true, Ordering::Release);
            }
        }
    }

    /// Records that worker `index` has finished its job.
    pub(super) fn leave(&self, index: usize) {
        if let Some(worker) = self.workers.get(index) {
            worker.is_busy.store(false, Ordering::Relaxed);
        }
    }

    /// Migrates workers that began the last job on this CPU, and lifts all restrictions if no
    /// worker was migrated for [`CALM`]. The caller calls this before it publishes a job.
    pub(super) fn publish(&self, migrated: &mut Migrated) {
        if self.workers.is_empty() {
            return;
        }
        let here = system::current();
        self.caller.store(here, Ordering::Relaxed);
        if self.crowded.swap(false, Ordering::Acquire) {
            let crowded =
                self.workers.iter().filter(|worker| worker.crowded.swap(false, Ordering::Relaxed));
            for worker in crowded {
                migrated.migrate(worker.thread.load(Ordering::Relaxed), here);
            }
        }
        if migrated.last.is_some_and(|last| last.elapsed() > CALM) {
            migrated.release();
        }
    }

    /// Waits until `done` holds. The last worker signals this with an unpark. Meanwhile, workers
    /// that have a job but do not run are migrated to this CPU.
    pub(super) fn wait(&self, migrated: &mut Migrated, done: impl Fn() -> bool) {
        let mut look = self.run_times();
        while !done() && look.at.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let here = system::current();
        let mut brought = Vec::new();
        while !done() {
            for thread in look.stalled() {
                migrated.bind(thread, &[here]);
                if !brought.contains(&thread) {
                    brought.push(thread);
                }
            }
            look = self.run_times();
            // If no worker has a job, there is nothing to migrate, and the last worker's unpark
            // ends the wait.
            if look.workers.is_empty() {
                thread::park();
            } else {
                thread::park_timeout(PARK);
            }
        }
        // The caller continues on this CPU, so the workers that were brought here move to other
        // CPUs.
        let here = system::current();
        brought.into_iter().for_each(|thread| migrated.migrate(thread, here));
    }

    /// Returns the workers that have a job, with their CPU times so far.
    fn run_times(&self) -> RunTimes {
        let busy = self
            .workers
            .iter()
            .filter(|worker| worker.is_busy.load(Ordering::Relaxed))
            .take(CHECKED);
        let threads = busy.map(|worker| worker.thread.load(Ordering::Relaxed));
        let at = Instant::now();
        RunTimes {
            at,
            workers: threads.filter_map(|id| Some((id, system::run_time(id)?))).collect(),
        }
    }
}

/// The CPU times of some workers at one moment.
struct RunTimes {
    at: Instant,
    workers: Vec<(ThreadId, Duration)>,
}

impl RunTimes {
    /// Returns the workers that have run for less than half of the time since this measurement.
    fn stalled(&self) -> impl Iterator<Item = ThreadId> {
        let half = self.at.elapsed() / 2;
        let ran = move |&(thread, before): &(ThreadId, Duration)| {
            system::run_time(thread).map_or(half, |now| now.saturating_sub(before))
        };
        self.workers.iter().filter(move |worker| ran(worker) < half).map(|worker| worker.0)
    }
}

impl Migrated {
    /// Pins a worker to these CPUs until [`Self::release`].
    fn bind(&mut self, thread: ThreadId, cpus: &[usize]) {
        if self.workers.iter().all(|(known, _)| *known != thread) {
            self.workers.push((thread, system::allowed(thread)));
        }
        self.last = Some(Instant::now());
        system::bind(thread, cpus);
    }

    /// Migrates a worker away from the CPU `here` to any other of its CPUs.
    fn migrate(&mut self, thread: ThreadId, here: usize) {
        let own = self.workers.iter().find(|(known, _)| *known == thread);
        let mut cpus = own.map_or_else(|| system::allowed(thread), |(_, cpus)| cpus.clone());
        if cpus.len() > 1 {
            cpus.retain(|cpu| *cpu != here);
        }
        self.bind(thread, &cpus);
    }

    /// Allows all migrated workers to use their former CPUs again.
    fn release(&mut self) {
        self.last = None;
        self.workers.drain(..).for_each(|(thread, cpus)| system::bind(thread, &cpus));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Migrated, WorkerStates, system};

    #[test]
    fn a_worker_beside_another_program_is_brought_here_sent_away_and_freed() {
        let cpus = system::allowed(system::SELF);
        let [here, there, ..] = cpus[..] else {
            testkit::skip("migration of a worker", "two processors");
            return;
        };
        let (states, mut migrated) = (WorkerStates::new(1, cpus.len()), Migrated::default());
        let [begun, done, looked] = [const { AtomicBool::new(false) }; 3];
        let is_set = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        let bound = |to: usize| system::bind(system::SELF, &[to]);
        let caller = thread::current();
        thread::scope(|scope| {
            // This thread stands for another program that never sleeps.
            scope.spawn(|| {
                bound(there);
                while !is_set(&done) {
                    std::hint::spin_loop();
                }
            });
            let worker = scope.spawn(|| {
                bound(there);
                states.begin(0);
                states.take(0);
                begun.store(true, Ordering::SeqCst);
                // The chunk lasts until the caller migrates its worker to the caller's CPU.
                let start = Instant::now();
                while system::current() != here && start.elapsed() < Duration::from_secs(60) {}
                let ran_here = system::current() == here;
                states.leave(0);
                done.store(true, Ordering::SeqCst);
                caller.unpark();
                while !is_set(&looked) {
                    thread::yield_now();
                }
                ran_here
            });
            bound(here);
            while !is_set(&begun) {
                thread::yield_now();
            }
            states.wait(&mut migrated, || is_set(&done));
            let moved_to: Vec<_> =
                migrated.workers.iter().map(|(id, _)| system::allowed(*id)).collect();
            looked.store(true, Ordering::SeqCst);
            assert!(worker.join().unwrap(), "the worker ran on the CPU of the caller");
            assert_eq!(moved_to, [[there]], "the worker is pinned away from the caller");
            assert_eq!(migrated.workers[0].1, [there], "the former CPUs of the worker");
        });
        system::bind(system::SELF, &cpus);
        migrated.release();
        assert!(migrated.workers.is_empty() && migrated.last.is_none());
    }

    #[test]
    fn a_worker_on_the_callers_processor_is_sent_away_and_freed() {
        let cpus = system::allowed(system::SELF);
        if cpus.len() < 2 {
            testkit::skip("migration of a worker", "two processors");
            return;
        }
        let (states, mut migrated) = (WorkerStates::new(1, cpus.len()), Migrated::default());
        let here = cpus[0];
        let [met, looked] = [const { AtomicBool::new(false) }; 2];
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            system::bind(system::SELF, &[here]);
            states.publish(&mut migrated);
            let worker = scope.spawn(|| {
                system::bind(system::SELF, &[here]);
                states.begin(0);
                states.take(0);
                states.leave(0);
                system::bind(system::SELF, &cpus);
                met.store(true, Ordering::SeqCst);
                wait_for(&looked);
                system::thread_id()
            });
            wait_for(&met);
            assert!(migrated.workers.is_empty());
            states.publish(&mut migrated);
            let (thread, had) = migrated.workers[0].clone();
            let sent = system::allowed(thread);
            migrated.release();
            let freed = system::allowed(thread);
            looked.store(true, Ordering::SeqCst);
            assert_eq!(thread, worker.join().unwrap());
            assert_eq!((sent, &had, &freed), (cpus[1..].to_vec(), &cpus, &cpus));
        });
        system::bind(system::SELF, &cpus);
    }

    #[test]
    fn a_pool_of_more_threads_than_processors_is_not_watched() {
        assert!(WorkerStates::new(2, 2).run_times().workers.is_empty());
        let states = WorkerStates::new(1, 2);
        states.begin(0);
        assert!(states.run_times().workers.is_empty());
        states.take(0);
        assert_eq!(states.run_times().workers[0].0, system::thread_id());
    }
}
