//! Workers that the system has put where they cannot run: found, and moved by the caller.
//!
//! Another program on a worker's processor may hold the worker up in the middle of a chunk, for
//! milliseconds, while the caller, which is done, leaves its own processor idle. The system moves
//! no thread that ran a moment ago, so the caller brings the worker here: it waits for what is left
//! of a chunk and not for the other program's turn. And the system may leave a worker on the
//! caller's processor, beside an idle one, since the two wait for each other in turn: the caller
//! sends it away. Knows nothing of jobs.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::system::{self, ThreadId};

/// How long the caller watches for the last worker before it asks who does not run.
const WATCH: Duration = Duration::from_micros(10);

/// How long the caller parks before it asks again.
const PARK: Duration = Duration::from_micros(50);

/// How many workers the caller asks for at a time: what that costs does not grow with the threads.
const ASKED: usize = 8;

/// How long after the last move the workers that were moved may run anywhere again.
const CALM: Duration = Duration::from_millis(100);

/// Which thread each worker is, and whether it holds a job.
pub(super) struct Seats {
    seats: Vec<Seat>,
    /// The processor on which the caller offered the last job.
    caller: AtomicUsize,
    /// Whether any worker met a job there.
    crowded: AtomicBool,
}

/// On cache lines of its own, since its worker writes it twice a job.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    thread: AtomicI32,
    taken: AtomicBool,
    /// Whether it met a job on the caller's processor.
    crowded: AtomicBool,
}

/// Workers that the caller moved, with the processors that they may use otherwise.
#[derive(Default)]
pub(super) struct Moved {
    workers: Vec<(ThreadId, Vec<usize>)>,
    /// When the last one was.
    last: Option<Instant>,
}

impl Seats {
    /// Seats of `workers` workers. They are not watched where the pool has more threads than
    /// `processors`: then each waits for another of ours at times.
    pub(super) fn new(workers: usize, processors: usize) -> Self {
        let watched = if workers < processors { workers } else { 0 };
        Self {
            seats: (0..watched).map(|_| Seat::default()).collect(),
            caller: AtomicUsize::new(usize::MAX),
            crowded: AtomicBool::new(false),
        }
    }

    /// The calling thread is worker `index` from now on.
    pub(super) fn begin(&self, index: usize) {
        if let Some(seat) = self.seats.get(index) {
            seat.thread.store(system::thread_id(), Ordering::Relaxed);
        }
    }

    /// Worker `index` is about to hold a job.
    pub(super) fn take(&self, index: usize) {
        if let Some(seat) = self.seats.get(index) {
            seat.taken.store(true, Ordering::Relaxed);
            if system::current() == self.caller.load(Ordering::Relaxed) {
                seat.crowded.store(true, Ordering::Relaxed);
                self.crowded.store(true, Ordering::Release);
            }
        }
    }

    /// Worker `index` holds no job any more.
    pub(super) fn leave(&self, index: usize) {
        if let Some(seat) = self.seats.get(index) {
            seat.taken.store(false, Ordering::Relaxed);
        }
    }

    /// The caller is about to offer a job: sends away who met the last one on this processor, and
    /// lets everyone run where they might before if all is calm.
    pub(super) fn offer(&self, moved: &mut Moved) {
        if self.seats.is_empty() {
            return;
        }
        let here = system::current();
        self.caller.store(here, Ordering::Relaxed);
        if self.crowded.swap(false, Ordering::Acquire) {
            let crowded =
                self.seats.iter().filter(|seat| seat.crowded.swap(false, Ordering::Relaxed));
            for seat in crowded {
                moved.send_away(seat.thread.load(Ordering::Relaxed), here);
            }
        }
        if moved.last.is_some_and(|last| last.elapsed() > CALM) {
            moved.release();
        }
    }

    /// Waits until `done`, which the last worker says with an unpark, and brings here meanwhile who
    /// holds a job and does not run.
    pub(super) fn wait(&self, moved: &mut Moved, done: impl Fn() -> bool) {
        let mut look = self.look();
        while !done() && look.at.elapsed() < WATCH {
            std::hint::spin_loop();
        }
        let here = system::current();
        let mut brought = Vec::new();
        while !done() {
            for thread in look.still() {
                moved.bind(thread, &[here]);
                if !brought.contains(&thread) {
                    brought.push(thread);
                }
            }
            look = self.look();
            if look.workers.is_empty() {
                thread::park();
            } else {
                thread::park_timeout(PARK);
            }
        }
        let here = system::current();
        brought.into_iter().for_each(|thread| moved.send_away(thread, here));
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
    /// Keeps a worker on these processors for a time.
    fn bind(&mut self, thread: ThreadId, cpus: &[usize]) {
        if self.workers.iter().all(|(moved, _)| *moved != thread) {
            self.workers.push((thread, system::allowed(thread)));
        }
        self.last = Some(Instant::now());
        system::bind(thread, cpus);
    }

    /// Sends a worker to any of its processors but `here`.
    fn send_away(&mut self, thread: ThreadId, here: usize) {
        let own = self.workers.iter().find(|(moved, _)| *moved == thread);
        let mut cpus = own.map_or_else(|| system::allowed(thread), |(_, cpus)| cpus.clone());
        if cpus.len() > 1 {
            cpus.retain(|cpu| *cpu != here);
        }
        self.bind(thread, &cpus);
    }

    /// Everyone may run where they might before.
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

    use super::{Moved, Seats, system};

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
                seats.take(0);
                begun.store(true, Ordering::SeqCst);
                // A chunk that lasts until the caller takes the worker to its own processor.
                let start = Instant::now();
                while system::current() != here && start.elapsed() < Duration::from_secs(60) {}
                let ran_here = system::current() == here;
                seats.leave(0);
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
            seats.wait(&mut moved, || is_set(&done));
            let moved_to: Vec<_> =
                moved.workers.iter().map(|(id, _)| system::allowed(*id)).collect();
            looked.store(true, Ordering::SeqCst);
            assert!(worker.join().unwrap(), "it ran where the caller waited");
            assert_eq!(moved_to, [[there]], "away from the caller");
            assert_eq!(moved.workers[0].1, [there], "the processors it had");
        });
        system::bind(system::SELF, &cpus);
        moved.release();
        assert!(moved.workers.is_empty() && moved.last.is_none());
    }

    #[test]
    fn a_worker_on_the_callers_processor_is_sent_away_and_freed() {
        let cpus = system::allowed(system::SELF);
        if cpus.len() < 2 {
            eprintln!("SKIPPED: needs two processors, this process may use {cpus:?}");
            return;
        }
        let (seats, mut moved) = (Seats::new(1, cpus.len()), Moved::default());
        let here = cpus[0];
        let [met, looked] = [const { AtomicBool::new(false) }; 2];
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            system::bind(system::SELF, &[here]);
            seats.offer(&mut moved);
            let worker = scope.spawn(|| {
                system::bind(system::SELF, &[here]);
                seats.begin(0);
                seats.take(0);
                seats.leave(0);
                system::bind(system::SELF, &cpus);
                met.store(true, Ordering::SeqCst);
                wait_for(&looked);
                system::thread_id()
            });
            wait_for(&met);
            assert!(moved.workers.is_empty());
            seats.offer(&mut moved);
            let (thread, had) = moved.workers[0].clone();
            let sent = system::allowed(thread);
            moved.release();
            let freed = system::allowed(thread);
            looked.store(true, Ordering::SeqCst);
            assert_eq!(thread, worker.join().unwrap());
            assert_eq!((sent, &had, &freed), (cpus[1..].to_vec(), &cpus, &cpus));
        });
        system::bind(system::SELF, &cpus);
    }

    #[test]
    fn a_pool_of_more_threads_than_processors_is_not_watched() {
        assert!(Seats::new(2, 2).look().workers.is_empty());
        let seats = Seats::new(1, 2);
        seats.begin(0);
        assert!(seats.look().workers.is_empty());
        seats.take(0);
        assert_eq!(seats.look().workers[0].0, system::thread_id());
    }
}
