//! Workers that the system has put aside in the middle of a chunk: found, and brought to the
//! processor of the thread that waits for them.
//!
//! Another program on a worker's processor may hold the worker up for milliseconds while the
//! caller, which is done, leaves its own processor idle. The system moves no thread that ran a
//! moment ago, so the caller does: it waits for what is left of a chunk and not for the other
//! program's turn. Knows nothing of jobs.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::system::{self, ThreadId};

/// How long the caller watches for the last worker before it asks who does not run.
const WATCH: Duration = Duration::from_micros(10);

/// How long the caller parks before it asks again.
const PARK: Duration = Duration::from_micros(50);

/// How many workers the caller asks for at a time: what that costs does not grow with the threads.
const ASKED: usize = 8;

/// Jobs without a worker put aside after which those that were brought may run anywhere again.
const CALM: usize = 4096;

/// Which thread each worker is, and whether it holds a job.
pub(super) struct Seats {
    seats: Vec<Seat>,
}

/// On cache lines of its own, since its worker writes it twice a job.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    thread: AtomicI32,
    taken: AtomicBool,
}

/// Workers that the caller moved, with the processors that they may use otherwise.
#[derive(Default)]
pub(super) struct Moved {
    workers: Vec<(ThreadId, Vec<usize>)>,
    /// Jobs after which they are free again: [`CALM`] while one is brought for the present job.
    calm: usize,
}

impl Seats {
    /// Seats of `workers` workers. They are not watched where the pool has more threads than
    /// `processors`: then each waits for another of ours at times.
    pub(super) fn new(workers: usize, processors: usize) -> Self {
        let watched = if workers < processors { workers } else { 0 };
        Self { seats: (0..watched).map(|_| Seat::default()).collect() }
    }

    /// The calling thread is worker `index` from now on.
    pub(super) fn begin(&self, index: usize) {
        if let Some(seat) = self.seats.get(index) {
            seat.thread.store(system::thread_id(), Ordering::Relaxed);
        }
    }

    /// Worker `index` holds a job, or does no more.
    pub(super) fn take(&self, index: usize, taken: bool) {
        if let Some(seat) = self.seats.get(index) {
            seat.taken.store(taken, Ordering::Relaxed);
        }
    }

    /// Waits until `done`, which the last worker says with an unpark, and brings here meanwhile who
    /// holds a job and does not run.
    pub(super) fn wait(&self, moved: &mut Moved, done: impl Fn() -> bool) {
        let mut look = self.look();
        while !done() && look.at.elapsed() < WATCH {
            std::hint::spin_loop();
        }
        while !done() {
            look.still().for_each(|thread| moved.bring(thread));
            look = self.look();
            if look.workers.is_empty() {
                thread::park();
            } else {
                thread::park_timeout(PARK);
            }
        }
        moved.send_away();
    }

    /// Who holds a job, and how long they have run.
    fn look(&self) -> Look {
        let taken = self.seats.iter().filter(|seat| seat.taken.load(Ordering::Relaxed)).take(ASKED);
        let threads = taken.map(|seat| seat.thread.load(Ordering::Relaxed));
        let at = Instant::now();
        Look { at, workers: threads.filter_map(|id| Some((id, system::run_time(id)?))).collect() }
    }
}

/// How long some workers had run at a moment.
struct Look {
    at: Instant,
    workers: Vec<(ThreadId, Duration)>,
}

impl Look {
    /// Those that since ran for less than half the time.
    fn still(&self) -> impl Iterator<Item = ThreadId> {
        let half = self.at.elapsed() / 2;
        let ran = move |&(thread, before): &(ThreadId, Duration)| {
            system::run_time(thread).map_or(half, |now| now.saturating_sub(before))
        };
        self.workers.iter().filter(move |worker| ran(worker) < half).map(|worker| worker.0)
    }
}

impl Moved {
    /// A job begins: after enough of them in peace everyone may run where they might before.
    pub(super) fn begin(&mut self) {
        self.calm = self.calm.saturating_sub(1);
        if self.calm == 0 {
            self.workers.drain(..).for_each(|(thread, cpus)| system::bind(thread, &cpus));
        }
    }

    /// Brings a worker to the caller's processor.
    fn bring(&mut self, thread: ThreadId) {
        if self.workers.iter().all(|(moved, _)| *moved != thread) {
            self.workers.push((thread, system::allowed(thread)));
        }
        self.calm = CALM;
        system::bind(thread, &[system::current()]);
    }

    /// Sends those that were brought for this job to any processor but the caller's, where they
    /// would stand in its way.
    fn send_away(&self) {
        if self.calm == CALM {
            let here = system::current();
            for (thread, cpus) in &self.workers {
                let others: Vec<usize> = cpus.iter().copied().filter(|cpu| *cpu != here).collect();
                system::bind(*thread, if others.is_empty() { cpus } else { &others });
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CALM, Moved, Seats, system};

    #[test]
    fn a_worker_beside_another_program_is_brought_here_sent_away_and_freed() {
        let cpus = system::allowed(system::SELF);
        let [here, there, ..] = cpus[..] else {
            eprintln!("SKIPPED: needs two processors, this process may use {cpus:?}");
            return;
        };
        let (seats, mut moved) = (Seats::new(1, cpus.len()), Moved::default());
        let [begun, done, looked] = [const { AtomicBool::new(false) }; 3];
        let is_set = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        let bound = |to: usize| system::bind(system::SELF, &[to]);
        let caller = thread::current();
        thread::scope(|scope| {
            // The other program: it never rests.
            scope.spawn(|| {
                bound(there);
                while !is_set(&done) {
                    std::hint::spin_loop();
                }
            });
            let worker = scope.spawn(|| {
                bound(there);
                seats.begin(0);
                seats.take(0, true);
                begun.store(true, Ordering::SeqCst);
                // A chunk that lasts until the caller takes the worker to its own processor.
                let start = Instant::now();
                while system::current() != here && start.elapsed() < Duration::from_secs(60) {}
                let ran_here = system::current() == here;
                seats.take(0, false);
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
            moved.begin();
            seats.wait(&mut moved, || is_set(&done));
            let moved_to: Vec<_> =
                moved.workers.iter().map(|(id, _)| system::allowed(*id)).collect();
            looked.store(true, Ordering::SeqCst);
            assert!(worker.join().unwrap(), "it ran where the caller waited");
            assert_eq!(moved_to, [[there]], "away from the caller");
            assert_eq!(moved.workers[0].1, [there], "the processors it had");
        });
        system::bind(system::SELF, &cpus);
        (1..CALM).for_each(|_| moved.begin());
        assert_eq!(moved.workers.len(), 1);
        moved.begin();
        assert!(moved.workers.is_empty());
    }

    #[test]
    fn a_pool_of_more_threads_than_processors_is_not_watched() {
        assert!(Seats::new(2, 2).look().workers.is_empty());
        let seats = Seats::new(1, 2);
        seats.begin(0);
        assert!(seats.look().workers.is_empty());
        seats.take(0, true);
        assert_eq!(seats.look().workers[0].0, system::thread_id());
    }
}
