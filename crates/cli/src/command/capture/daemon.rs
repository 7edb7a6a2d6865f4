//! The socket, the clock and the list of processes behind a capture: answers whoever asks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use fleet::capture::Capture;
use fleet::ipc::request::{Reason, Request, Sight, State};
use fleet::ipc::socket::Socket;
use fleet::process::{self, Process};

use super::outcome;
use crate::error::Error;
use crate::render::Console;

/// Kineto waits 90 ms for an answer and would take a later one for the answer to its next poll.
const LATE: Duration = Duration::from_millis(50);

/// Answers polls.
pub struct Daemon {
    socket: Socket,
    capture: Capture,
    began: Instant,
    /// When the queue of messages was last seen empty.
    emptied: Instant,
    known: BTreeMap<u32, Process>,
    introduced: BTreeMap<u32, &'static str>,
    console: Console,
    uid: u32,
}

impl Daemon {
    /// Begins to listen.
    pub fn new(socket: Socket, console: Console) -> Self {
        Self {
            socket,
            capture: Capture::new(process::own_uid()),
            began: Instant::now(),
            emptied: Instant::now(),
            known: BTreeMap::new(),
            introduced: BTreeMap::new(),
            console,
            uid: process::own_uid(),
        }
    }

    /// Time since it began.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whose processes may be captured.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Answers one message, if one comes within `wait`; whether one came.
    pub fn serve(&mut self, wait: Duration) -> Result<bool, Error> {
        let asked = Instant::now();
        let message = self.socket.receive(wait)?;
        // What came while we waited is fresh; what lay there may be as old as the last look.
        if message.is_none() || asked.elapsed() > Duration::from_millis(1) {
            self.emptied = Instant::now();
        }
        let Some(message) = message else { return Ok(false) };
        if self.emptied.elapsed() > LATE {
            self.console.detail(format_args!("{}: asked too long ago", message.peer.pid));
            return Ok(true);
        }
        let now = self.now();
        let answer = self.capture.answer(now, message.peer, &message.bytes);
        self.trace('<', message.peer.pid, &message.bytes);
        if let Some(answer) = answer {
            self.socket.answer(&message, &answer);
            self.trace('>', message.peer.pid, &answer);
        }
        Ok(true)
    }

    /// Those who asked and are still there.
    pub fn asked(&mut self) -> Vec<Process> {
        let pids: Vec<u32> = self.capture.members().keys().copied().collect();
        for pid in pids {
            let known = self.known.get(&pid).filter(|process| process.is_alive());
            match known.cloned().or_else(|| Process::of(pid)) {
                Some(process) => {
                    self.known.insert(pid, process);
                }
                None => {
                    self.capture.forget(pid);
                    self.known.remove(&pid);
                }
            }
        }
        self.known.values().cloned().collect()
    }

    /// Says once who asked, and why nothing is asked of it.
    pub fn introduce(&mut self, process: &Process, what: &'static str) {
        if self.introduced.insert(process.pid, what) != Some(what) {
            let gap = if what.is_empty() { "" } else { " " };
            self.say(format_args!("{}{gap}{what}", outcome::introduction(process)));
        }
    }

    /// When each process asked last.
    pub fn polled(&self, processes: &[Process]) -> Vec<Duration> {
        let members = self.capture.members();
        processes.iter().filter_map(|process| members.get(&process.pid)).map(|m| m.polled).collect()
    }

    /// Asks something of a process; its own idea of its number.
    pub fn request(&mut self, pid: u32, request: Request) -> i32 {
        self.capture.request(pid, request);
        self.capture.members().get(&pid).map_or(0, |member| member.own_pid)
    }

    /// What a process and its file look like.
    pub fn look(&mut self, pid: u32, sight: &Sight) {
        let now = self.now();
        self.capture.look(now, pid, sight);
    }

    /// Says that the trace of a process is here.
    pub fn collected(&mut self, pid: u32) {
        self.capture.collected(pid);
    }

    /// Gives a request up.
    pub fn lose(&mut self, pid: u32, reason: Reason) {
        self.capture.lose(pid, reason);
    }

    /// Where a request stands.
    pub fn state(&self, pid: u32) -> Option<&State> {
        self.capture.members().get(&pid)?.request.as_ref().map(Request::state)
    }

    /// Whether every request is done or lost.
    pub fn is_over(&self) -> bool {
        self.capture.is_over()
    }

    /// A line with the time.
    pub fn say(&self, text: impl Display) {
        self.console.say(format_args!("{:6.1} s  {text}", self.now().as_secs_f64()));
    }

    /// A warning.
    pub fn warn(&self, text: impl Display) {
        self.console.warn(text);
    }

    /// With -vv, every datagram in hexadecimal.
    fn trace(&self, direction: char, pid: u32, bytes: &[u8]) {
        if self.console.verbose > 1 {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let now = self.now().as_secs_f64();
            self.console.say(format_args!("{direction} {now:.3} {pid} {hex}"));
        }
    }
}
