//! Tracks the processes that polled, chooses the processes to trace, and records the outcome of
//! each request. This module uses neither sockets nor clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ipc::message::{self, ProcessMessage};
use crate::ipc::request::{CaptureRequest, POLL, Reason, Sight};
use crate::ipc::socket::Peer;
use crate::process::Process;

/// Maximum numbers of tracked processes, per user and in total. A host has fewer polling processes.
const USER_MAX: usize = 1024;
const ALL_MAX: usize = 4096;

/// A process that has polled for requests, with its last poll and its request.
#[derive(Clone, Debug)]
pub struct Member {
    /// The process and its user, as the kernel reports them.
    pub peer: Peer,
    /// The process id in the process's own namespace, which is part of the name of its trace file.
    pub own_pid: i32,
    /// Slurm job id; 0 if unknown.
    pub job: i64,
    /// Time of the process's last poll.
    pub polled: Duration,
    /// Whether the process's profiler was free at the last poll.
    pub is_free: bool,
    pub request: Option<CaptureRequest>,
}

/// All processes of this host that polled, and their requests.
#[derive(Debug, Default)]
pub struct Capture {
    members: BTreeMap<u32, Member>,
    uid: u32,
    refused: u64,
}

/// The reason why a polling process gets no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The process only starts other processes.
    Launcher,
    /// The process loads data for another process.
    Helper,
    /// The process belongs to another user.
    OtherUser,
    /// The process is not among the requested processes.
    NotWanted,
}

impl Skip {
    /// Returns the reason as text for the line about the process.
    pub fn words(self) -> &'static str {
        match self {
            Self::Launcher => "skipped: a launcher",
            Self::Helper => "skipped: loads data for another process",
            Self::OtherUser => "skipped: belongs to another user",
            Self::NotWanted => "skipped: not requested",
        }
    }
}

impl Capture {
    /// Creates a capture on behalf of user `uid`, who may trace only their own processes. User 0
    /// may trace all.
    pub fn new(uid: u32) -> Self {
        Self { uid, ..Self::default() }
    }

    /// Processes a message and returns the answer, if there is one.
    pub fn answer(&mut self, now: Duration, peer: Peer, bytes: &[u8]) -> Option<Vec<u8>> {
        match ProcessMessage::parse(bytes) {
            Ok(ProcessMessage::Register { .. }) => {
                Some(message::register_answer(i32::try_from(self.members.len()).unwrap_or(0)))
            }
            Ok(ProcessMessage::Poll { free, job, pids }) => {
                let config = self.poll(now, peer, free, job, pids.first().copied()?);
                Some(message::poll_answer(config.unwrap_or_default()))
            }
            Err(_) => {
                self.refused += 1;
                None
            }
        }
    }

    /// Returns the processes that polled, by process id.
    pub fn members(&self) -> &BTreeMap<u32, Member> {
        &self.members
    }

    /// Returns the number of invalid messages so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Queues a request for a process that has polled.
    pub fn request(&mut self, pid: u32, request: CaptureRequest) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.request = Some(request);
        }
    }

    /// Updates a request with the observed state of the process and its file.
    pub fn look(&mut self, now: Duration, pid: u32, sight: &Sight) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.look(now, sight);
        }
    }

    /// Notes that the trace of a process has been copied.
    pub fn collected(&mut self, pid: u32) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.collected();
        }
    }

    /// Removes a process that has ended, together with its request.
    pub fn forget(&mut self, pid: u32) {
        self.members.remove(&pid);
    }

    /// Ends the request of a process as lost, unless it is already over.
    pub fn lose(&mut self, pid: u32, reason: Reason) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.lose(reason);
        }
    }

    /// Whether all requests have ended, with a trace or a reason.
    pub fn is_over(&self) -> bool {
        self.members.values().filter_map(|m| m.request.as_ref()).all(CaptureRequest::is_over)
    }

    fn poll(
        &mut self,
        now: Duration,
        peer: Peer,
        free: i32,
        job: i64,
        own_pid: i32,
    ) -> Option<&str> {
        if peer.pid == 0 {
            return None;
        }
        let is_free = message::is_free(free);
        let may_trace = self.uid == 0 || self.uid == peer.uid;
        if !self.members.contains_key(&peer.pid) {
            let of_user = self.members.values().filter(|member| member.peer.uid == peer.uid);
            // A user can start any number of processes that poll once. Processes beyond the limits
            // are refused, so that they do not displace the processes of other users.
            if self.members.len() >= ALL_MAX || of_user.count() >= USER_MAX {
                self.refused += 1;
                return None;
            }
        }
        let fresh = Member { peer, own_pid, job, polled: now, is_free, request: None };
        let member = self.members.entry(peer.pid).or_insert(fresh);
        (member.polled, member.is_free, member.own_pid) = (now, is_free, own_pid);
        member.request.as_mut().filter(|_| may_trace)?.poll(now, is_free)
    }
}

/// Decides for each polling process whether to trace it. `wanted` lists ids of processes or of
/// their ancestors; an empty list selects all processes.
///
/// Launchers and data loaders also poll, but they are skipped because they have nothing to record.
pub fn choose(asked: &[Process], wanted: &[u32], uid: u32) -> Vec<(u32, Option<Skip>)> {
    let places: BTreeMap<u32, usize> =
        asked.iter().enumerate().map(|(at, process)| (process.pid, at)).collect();
    let mut parents: BTreeMap<u32, u32> = asked.iter().map(|p| (p.pid, p.parent)).collect();
    let skip = |process: &Process| {
        let above = ancestors(process, &mut parents);
        let named = wanted.contains(&process.pid);
        let of_wanted = above.iter().any(|pid| wanted.contains(pid));
        let asked_above = above.iter().filter_map(|pid| places.get(pid));
        let upper = asked_above.filter(|&&at| !asked[at].is_launcher()).min();
        if !wanted.is_empty() && !named && !of_wanted {
            Some(Skip::NotWanted)
        } else if uid != 0 && uid != process.uid {
            Some(Skip::OtherUser)
        } else if process.is_launcher() {
            Some(Skip::Launcher)
        } else if !named && upper.is_some_and(|&at| is_helper(process, &asked[at], wanted)) {
            Some(Skip::Helper)
        } else {
            None
        }
    };
    let skips: Vec<Option<Skip>> = asked.iter().map(skip).collect();
    asked.iter().map(|process| process.pid).zip(skips).collect()
}

/// Whether a process is a helper, such as a data loader: it has the same rank as its ancestor
/// `upper`, or `upper` was requested by its own id.
fn is_helper(process: &Process, upper: &Process, wanted: &[u32]) -> bool {
    wanted.contains(&upper.pid) || (process.rank().is_some() && process.rank() == upper.rank())
}

/// Returns the ancestors of a process that still exist. `parents` caches the parent of each
/// process, so that `/proc` is read once per process.
fn ancestors(process: &Process, parents: &mut BTreeMap<u32, u32>) -> Vec<u32> {
    let (mut above, mut at) = (Vec::new(), process.parent);
    // If process ids are reused during the walk, the parents may form a cycle. The limit of 64 ends
    // it; real chains are shorter.
    while at > 0 && above.len() < 64 {
        above.push(at);
        let look = || Process::read(at).map_or(0, |process| process.parent);
        at = *parents.entry(at).or_insert_with(look);
    }
    above
}

/// Returns the time from which polls should be answered with requests, so that all processes get
/// their requests within the shortest time. The returned time is shortly before the poll that ends
/// the longest pause between polls.
pub fn round_start(now: Duration, polled: &[Duration]) -> Duration {
    let period = POLL.as_millis();
    let mut phases: Vec<u128> = polled.iter().map(|at| at.as_millis() % period).collect();
    phases.sort_unstable();
    phases.dedup();
    let (Some(&first), Some(&last)) = (phases.first(), phases.last()) else { return now };
    // The pause from the last phase to the first one of the next period wraps around.
    let mut best = (first + period - last, first);
    for pair in phases.windows(2) {
        best = best.max((pair[1] - pair[0], pair[1]));
    }
    let (pause, phase) = best;
    // The round starts up to half a second before the poll that ends the pause, so that a slightly
    // early poll is not missed.
    let margin = (pause / 2).min(500);
    let (wanted, at) = ((phase + period - margin) % period, now.as_millis() % period);
    let wait = (wanted + period - at) % period;
    now + Duration::from_millis(u64::try_from(wait).unwrap_or(0))
}

#[cfg(test)]
mod tests;
