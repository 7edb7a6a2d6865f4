//! Answers polls from a table in one thread, so that no poll waits for a file or for `/proc`.
//!
//! A poll costs one lookup, independent of the number of processes. Slower work (reading `/proc`
//! and files, and copying) is done by other threads, which change the table through a [`Server`]. A
//! late answer is not sent, because Kineto would mistake it for the answer to its next poll.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::ipc::request::{CaptureRequest, Reason, RequestState, Sight};
use crate::ipc::socket::{Datagram, Peer, Socket, SocketError};
use crate::quota::{Quotas, Rate};

/// Maximum age of a poll that is answered. Kineto waits 90 ms for an answer.
pub const LATE: Duration = Duration::from_millis(50);
/// Interval at which the thread checks whether to end.
const TICK: Duration = Duration::from_millis(250);
/// Maximum rates of messages per user and per process. A process polls at most once a second.
const USER: Rate = Rate { burst: 4096.0, per_s: 2048.0 };
const PROCESS: Rate = Rate { burst: 256.0, per_s: 64.0 };
/// Maximum numbers of users and processes that have rate limits of their own.
const USERS_MAX: usize = 256;
const PROCESSES_MAX: usize = 8192;
/// Upper bounds of the latency histogram in microseconds. Slower answers are only part of the
/// total.
const LATENCY_BOUNDS_US: [u64; 7] = [50, 100, 500, 1_000, 5_000, 20_000, 50_000];

/// A callback for every datagram. The arguments of the callback are the direction (`<` from a
/// process, `>` to a process), the time, the process id and the bytes.
pub type Tap = Box<dyn Fn(char, Duration, u32, &[u8]) + Send>;

/// A handle to the answering thread and to its table of processes.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A copy of the table's entry for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    pub pid: u32,
    pub uid: u32,
    /// Process id in the process's own namespace.
    pub own_pid: i32,
    /// Slurm job id; 0 if unknown.
    pub job: i64,
    /// Time of the process's last poll on the clock of the server.
    pub polled: Duration,
    /// Whether the process's profiler was free at the last poll.
    pub is_free: bool,
    /// Whether the process has an open request.
    pub is_asked: bool,
}

/// Counters of the answering thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTally {
    pub answered: u64,
    /// Polls that were too old to be answered.
    pub late: u64,
    /// Number of messages that were rejected because they are invalid.
    pub refused: u64,
    /// Messages above the rate limits, and answers that could not be sent because the process does
    /// not read them.
    pub dropped: u64,
    /// Number of answers by latency, up to 50, 100, 500 µs, 1, 5, 20, 50 ms.
    pub within_us: [u64; 7],
    /// Sum of the latencies of all sent answers, in microseconds.
    pub sum_us: u64,
}

/// The state that the answering thread shares with its handle.
#[derive(Debug)]
struct ServerShared {
    table: Mutex<ServerTable>,
    heard: Condvar,
    began: Instant,
    stop: AtomicBool,
    answered: AtomicU64,
    late: AtomicU64,
    dropped: AtomicU64,
    within_us: [AtomicU64; 7],
    sum_us: AtomicU64,
}

/// The table of polling processes, protected by a lock.
#[derive(Debug)]
struct ServerTable {
    capture: Capture,
    /// Number of messages so far, which lets waiting threads notice new ones.
    messages: u64,
    failure: Option<SocketError>,
}

impl Server {
    /// Starts a thread that answers polls on `socket` on behalf of user `uid`.
    ///
    /// # Errors
    /// Fails if the operating system cannot create a thread.
    pub fn start(socket: Socket, uid: u32, tap: Option<Tap>) -> io::Result<Self> {
        let table = ServerTable { capture: Capture::new(uid), messages: 0, failure: None };
        let shared = Arc::new(ServerShared {
            table: Mutex::new(table),
            heard: Condvar::new(),
            began: Instant::now(),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            late: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            within_us: Default::default(),
            sum_us: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        // A small stack is enough for this thread and saves memory of the agent.
        let builder = thread::Builder::new().name("polls".to_owned()).stack_size(256 << 10);
        let thread = builder.spawn(move || own.run(&socket, tap.as_ref()))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the answering thread. The socket's name is free when this function returns.
    pub fn end(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread checks `stop` every `TICK`, so it ends within that time.
            let _ = thread.join();
        }
    }

    /// Returns the time since the server's start. All times of requests use this clock.
    pub fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Waits until a process polls, at most for `wait`. Returns whether a process polled.
    ///
    /// # Errors
    /// Fails if the socket can no longer be read.
    pub fn wait(&self, wait: Duration) -> Result<bool, SocketError> {
        let table = self.shared.lock();
        let before = table.messages;
        let is_quiet =
            |table: &mut ServerTable| table.messages == before && table.failure.is_none();
        // The count of messages also detects a poll that arrived before this thread began to wait.
        let waited = self.shared.heard.wait_timeout_while(table, wait, is_quiet);
        let (mut table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match table.failure.take() {
            Some(error) => Err(error),
            None => Ok(table.messages != before),
        }
    }

    /// Returns all processes that polled, by process id.
    pub fn seen(&self) -> Vec<SeenProcess> {
        let table = self.shared.lock();
        let members = table.capture.members().iter();
        members
            .map(|(&pid, member)| SeenProcess {
                pid,
                uid: member.peer.uid,
                own_pid: member.own_pid,
                job: member.job,
                polled: member.polled,
                is_free: member.is_free,
                is_asked: member.request.as_ref().is_some_and(|request| !request.is_over()),
            })
            .collect()
    }

    /// Returns the time of the last poll of each given process that has polled.
    pub fn polled(&self, pids: impl Iterator<Item = u32>) -> Vec<Duration> {
        let table = self.shared.lock();
        let members = table.capture.members();
        pids.filter_map(|pid| members.get(&pid)).map(|member| member.polled).collect()
    }

    /// Queues a request for a process, which is sent at its next poll. Returns the process's id in
    /// its own namespace, or `None` if the process has never polled or an earlier request to it is
    /// open.
    pub fn request(&self, pid: u32, request: CaptureRequest) -> Option<i32> {
        let mut table = self.shared.lock();
        let member = table.capture.members().get(&pid)?;
        if member.request.as_ref().is_some_and(|request| !request.is_over()) {
            return None;
        }
        // The table stays locked from the check to the request, so no poll can come between them.
        let own_pid = member.own_pid;
        table.capture.request(pid, request);
        Some(own_pid)
    }

    /// Updates a request with the observed state of process and file. Returns the new state of the
    /// request.
    pub fn look(&self, pid: u32, sight: &Sight) -> Option<RequestState> {
        let now = self.now();
        let mut table = self.shared.lock();
        table.capture.look(now, pid, sight);
        table.state(pid)
    }

    /// Notes that the trace of a process has been copied.
    pub fn collected(&self, pid: u32) {
        self.shared.lock().capture.collected(pid);
    }

    /// Ends a request as lost, unless it is already over.
    pub fn lose(&self, pid: u32, reason: Reason) {
        self.shared.lock().capture.lose(pid, reason);
    }

    /// Returns the state of a request.
    pub fn state(&self, pid: u32) -> Option<RequestState> {
        self.shared.lock().state(pid)
    }

    /// Removes a process that has ended, with its request, from the table.
    pub fn forget(&self, pid: u32) {
        self.shared.lock().capture.forget(pid);
    }

    /// Returns the counters since the start of the thread.
    pub fn tally(&self) -> ServerTally {
        let refused = self.shared.lock().capture.refused();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ServerTally {
            answered: read(&self.shared.answered),
            late: read(&self.shared.late),
            refused,
            dropped: read(&self.shared.dropped),
            within_us: std::array::from_fn(|at| read(&self.shared.within_us[at])),
            sum_us: read(&self.shared.sum_us),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl ServerTally {
    /// Upper bounds of `within_us` in microseconds.
    pub const BOUNDS_US: [u64; 7] = LATENCY_BOUNDS_US;
}

impl ServerTable {
    fn state(&self, pid: u32) -> Option<RequestState> {
        let request = self.capture.members().get(&pid)?.request.as_ref()?;
        Some(request.state().clone())
    }
}

impl ServerShared {
    /// Locks the table, even if a thread panicked while it held the lock. The table is consistent
    /// then, because every change is a single assignment.
    fn lock(&self) -> MutexGuard<'_, ServerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, socket: &Socket, tap: Option<&Tap>) {
        // Time at which the queue of messages was last empty, which bounds the age of a message.
        let mut emptied = Instant::now();
        let mut senders = Senders::new();
        while !self.stop.load(Ordering::SeqCst) {
            let asked = Instant::now();
            let message = match socket.receive(TICK) {
                Ok(message) => message,
                Err(error) => {
                    // Nobody joins this thread while it runs, so the error is left for the next
                    // call of `wait`.
                    self.lock().failure = Some(error);
                    self.heard.notify_all();
                    return;
                }
            };
            // A message that arrived while this thread waited is new. A message that was already
            // queued may be as old as the last time the queue was empty.
            if message.is_none() || asked.elapsed() > Duration::from_millis(1) {
                emptied = Instant::now();
            }
            let Some(message) = message else { continue };
            // All senders share one queue, so messages above a sender's limit are read and dropped.
            // Excess messages cost the other senders only the time to read them.
            if senders.may_send(self.began.elapsed(), message.peer) {
                self.serve(socket, &message, emptied, tap);
            } else {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn serve(&self, socket: &Socket, message: &Datagram, emptied: Instant, tap: Option<&Tap>) {
        let (arrived, age) = match message.age {
            Some(age) => (Instant::now().checked_sub(age).unwrap_or(emptied), age),
            None => (emptied, emptied.elapsed()),
        };
        let now = self.began.elapsed();
        let pid = message.peer.pid;
        if let Some(tap) = tap {
            tap('<', now, pid, &message.bytes);
        }
        let answer = {
            let mut table = self.lock();
            table.messages += 1;
            // The age is checked after locking, because this thread may have waited for the lock. A
            // withheld answer must not advance the request.
            let is_late = age > LATE || arrived.elapsed() > LATE;
            if !message.can_be_answered() {
                // The sender has no address, so it cannot receive an answer.
                None
            } else if is_late {
                self.late.fetch_add(1, Ordering::Relaxed);
                None
            } else {
                table.capture.answer(now, message.peer, &message.bytes)
            }
        };
        // The table is unlocked here, so other threads need not wait while the answer is sent.
        let answer = answer.filter(|answer| {
            let is_sent = socket.answer(message, answer);
            self.dropped.fetch_add(u64::from(!is_sent), Ordering::Relaxed);
            is_sent
        });
        if let Some(answer) = answer {
            let took = u64::try_from(arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.answered.fetch_add(1, Ordering::Relaxed);
            self.sum_us.fetch_add(took, Ordering::Relaxed);
            for (bound, count) in LATENCY_BOUNDS_US.iter().zip(&self.within_us) {
                // The counts are cumulative, as in a Prometheus histogram: an answer counts for
                // every bound that it meets.
                if took <= *bound {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            if let Some(tap) = tap {
                tap('>', now, pid, &answer);
            }
        }
        self.heard.notify_all();
    }
}

/// Rate limits of the senders of messages.
struct Senders {
    users: Quotas<u32>,
    processes: Quotas<u32>,
}

impl Senders {
    fn new() -> Self {
        let users = Quotas::new(USER, USERS_MAX);
        Self { users, processes: Quotas::new(PROCESS, PROCESSES_MAX) }
    }

    fn may_send(&mut self, now: Duration, peer: Peer) -> bool {
        // The limit of the process is checked first, so that a flooding process does not use up the
        // limit of its user's other processes.
        self.processes.take(now, &peer.pid) && self.users.take(now, &peer.uid)
    }
}

#[cfg(test)]
mod tests;
