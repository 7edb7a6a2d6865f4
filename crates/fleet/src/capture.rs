//! The processes that polled, those to trace, and the outcome of each request. No socket, no clock,
//! no file.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ipc::message::{self, ProcessMessage};
use crate::ipc::request::{CaptureRequest, POLL, Reason, Sight};
use crate::ipc::socket::Peer;
use crate::process::Process;

/// Processes of one user, and of all, that are kept: a host has fewer that ask.
const USER_MAX: usize = 1024;
const ALL_MAX: usize = 4096;

/// A process that asked.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who it is, by the kernel.
    pub peer: Peer,
    /// Its number as it sees it: names its file.
    pub own_pid: i32,
    /// Its Slurm job, 0 for none.
    pub job: i64,
    /// When it asked last.
    pub polled: Duration,
    /// Whether its profiler was free then.
    pub is_free: bool,
    /// The request sent to it.
    pub request: Option<CaptureRequest>,
}

/// The processes of this host that asked.
#[derive(Debug, Default)]
pub struct Capture {
    members: BTreeMap<u32, Member>,
    uid: u32,
    refused: u64,
}

/// Why a process that asked gets no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// It only starts others.
    Launcher,
    /// It loads data for another one.
    Helper,
    /// It is another user's.
    OtherUser,
    /// It was not requested.
    NotWanted,
}

impl Skip {
    /// Why, in a line about the process.
    pub fn words(self) -> &'static str {
        match self {
            Self::Launcher => "skipped: a launcher",
            Self::Helper => "skipped: loads data for another",
            Self::OtherUser => "skipped: another user's",
            Self::NotWanted => "skipped: not asked for",
        }
    }
}

impl Capture {
    /// A capture by the user `uid`, who may trace their own processes; user 0 everyone's.
    pub fn new(uid: u32) -> Self {
        Self { uid, ..Self::default() }
    }

    /// Takes a message in; what is answered, if anything.
    pub fn answer(&mut self, now: Duration, peer: Peer, bytes: &[u8]) -> Option<Vec<u8>> {
        match ProcessMessage::parse(bytes) {
            Ok(ProcessMessage::Register { .. }) => {
                Some(message::register_answer(i32::try_from(self.members.len()).unwrap_or(0)))
            }
            Ok(ProcessMessage::Poll { free, job, pids }) => {
                let config = self.poll(now, peer, (free, job, pids.first().copied()?));
                Some(message::poll_answer(config.unwrap_or_default()))
            }
            Err(_) => {
                self.refused += 1;
                None
            }
        }
    }

    /// Those who asked, by process number.
    pub fn members(&self) -> &BTreeMap<u32, Member> {
        &self.members
    }

    /// Messages that were none, so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Asks something of a process that has asked.
    pub fn request(&mut self, pid: u32, request: CaptureRequest) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.request = Some(request);
        }
    }

    /// What a process and its file look like.
    pub fn look(&mut self, now: Duration, pid: u32, sight: &Sight) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.look(now, sight);
        }
    }

    /// Says that the trace of a process has been copied.
    pub fn collected(&mut self, pid: u32) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.collected();
        }
    }

    /// Forgets a process that ended.
    pub fn forget(&mut self, pid: u32) {
        self.members.remove(&pid);
    }

    /// Gives up what is not done.
    pub fn lose(&mut self, pid: u32, reason: Reason) {
        if let Some(request) = self.members.get_mut(&pid).and_then(|m| m.request.as_mut()) {
            request.lose(reason);
        }
    }

    /// Whether every request is done or lost.
    pub fn is_over(&self) -> bool {
        self.members.values().filter_map(|m| m.request.as_ref()).all(CaptureRequest::is_over)
    }

    fn poll(&mut self, now: Duration, peer: Peer, poll: (i32, i64, i32)) -> Option<&str> {
        let (free, job, own_pid) = poll;
        if peer.pid == 0 {
            return None;
        }
        let is_free = message::is_free(free);
        let may_trace = self.uid == 0 || self.uid == peer.uid;
        if !self.members.contains_key(&peer.pid) {
            let of_user = self.members.values().filter(|member| member.peer.uid == peer.uid);
            // A user can start any number of processes that poll once. Refuse those beyond the
            // limits, so that they do not displace the processes of others.
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

/// Whom to trace of those who asked; `wanted` empty for all, else processes or their ancestors.
///
/// Launchers ask too, and so do processes that load data: neither has anything to show.
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

/// A process of the same rank as one above it, or below one that was named itself.
fn is_helper(process: &Process, upper: &Process, wanted: &[u32]) -> bool {
    wanted.contains(&upper.pid) || (process.rank().is_some() && process.rank() == upper.rank())
}

/// The processes above one, as far as they are there; `parents` keeps what was looked up.
fn ancestors(process: &Process, parents: &mut BTreeMap<u32, u32>) -> Vec<u32> {
    let (mut above, mut at) = (Vec::new(), process.parent);
    // No chain is longer, and one whose members end and begin meanwhile must not go on for ever.
    while at > 0 && above.len() < 64 {
        above.push(at);
        let look = || Process::read(at).map_or(0, |process| process.parent);
        at = *parents.entry(at).or_insert_with(look);
    }
    above
}

/// When to begin answering with requests, so that all processes get theirs as close together as
/// their polls allow: behind the longest pause between polls.
pub fn round_start(now: Duration, polled: &[Duration]) -> Duration {
    let period = POLL.as_millis();
    let mut phases: Vec<u128> = polled.iter().map(|at| at.as_millis() % period).collect();
    phases.sort_unstable();
    phases.dedup();
    let (Some(&first), Some(&last)) = (phases.first(), phases.last()) else { return now };
    // The pause before the first phase wraps around.
    let mut best = (first + period - last, first);
    for pair in phases.windows(2) {
        best = best.max((pair[1] - pair[0], pair[1]));
    }
    let (pause, phase) = best;
    let margin = (pause / 2).min(500);
    let (wanted, at) = ((phase + period - margin) % period, now.as_millis() % period);
    let wait = (wanted + period - at) % period;
    now + Duration::from_millis(u64::try_from(wait).unwrap_or(0))
}

#[cfg(test)]
mod tests;
