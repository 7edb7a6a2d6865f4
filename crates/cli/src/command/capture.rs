//! `rowmill capture`: from a request to running PyTorch processes to a report of their traces.
//!
//! gather who asks → choose → ask → watch → collect → report. What is said to processes and what
//! became of it is `fleet`'s affair.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fleet::capture::{Skip, choose, round_start};
use fleet::ipc::config::Trigger;
use fleet::ipc::request::RequestState;
use fleet::ipc::socket::{Socket, SocketError, SocketPlace};
use fleet::process::Process;
use fleet::roster::Roster;
use fleet::server::{Server, Tap};
use fleet::tracing::{self, TracePlace, Tracing, TracingOrder, unix_ms};
use fleet::untrusted::OwnFolder;
use fleet::wire::RecordWhen;
use schema::Bytes;

use crate::agent_client::Client;
use crate::args::{self};
use crate::capture_outcome::{self as outcome, CaptureOutcome, ProcessRow};
use crate::capture_request::{check_empty_folder, socket_place, trace_detail};
use crate::command::fleet::trace::{self as fleet_trace, WantedTraces};
use setup::Session;
use setup::error::{EXIT_INTERRUPTED, Error, RunError, UsageError};
use setup::error_text::plain;
use setup::interrupt;
use setup::output;
use setup::render::{self, Console};

/// Once the first has asked, every process that runs has asked within this.
const SETTLE: Duration = Duration::from_millis(6500);
/// How long the agent of this host may take for an answer.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// How often processes and files are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A capture at work: who answers, who asked, what was said of them.
struct CaptureDesk {
    server: Server,
    roster: Roster,
    introduced: BTreeMap<u32, &'static str>,
    console: Console,
    uid: u32,
}

/// Runs `rowmill capture` and prints its result.
pub fn run(args: &args::Capture, session: &Session) -> Result<ExitCode, Error> {
    check(args)?;
    // Made now, before anyone waits, and gone again if nothing comes.
    let made = output::folder(&args.output)?;
    let stop = interrupt::stop_flag("ending the capture");
    let place = socket_place(args.socket_dir.as_deref());
    let socket = match Socket::bind(&place) {
        Err(taken @ SocketError::Taken { .. }) => {
            let agent = Client::local(place, AGENT_PATIENCE);
            if !agent.is_there() {
                return Err(taken.into());
            }
            let told = ask_agent(args, agent, session);
            drop(made);
            return told;
        }
        bound => bound?,
    };
    let mut desk = CaptureDesk::open(socket, session)?;
    session.console.say(format_args!(
        "waiting at {} for processes started with KINETO_USE_DAEMON=1; they ask every 5 s",
        place.words()
    ));
    let chosen = gather(&mut desk, args, &place, &stop)?;
    if stop.load(Ordering::SeqCst) {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let mut tracing = ask(&desk, args, chosen, &stop)?;
    watch(&desk, &mut tracing, &stop)?;
    let outcome = conclude(&desk, &tracing, args);
    // Processes that ask from now on find nobody, which costs them nothing but their exit.
    drop((tracing, desk));
    let told = outcome::tell(outcome, session, stop.load(Ordering::SeqCst));
    drop(made);
    told
}

/// Refuses what could not succeed, before anyone waits for it.
fn check(args: &args::Capture) -> Result<(), Error> {
    check_empty_folder(&args.output)?;
    match args.pid.iter().find(|&&pid| Process::read(pid).is_none()) {
        Some(&pid) => Err(UsageError::NoSuchProcess { pid }.into()),
        None => Ok(()),
    }
}

/// Asks the agent that has the socket, which knows the processes already.
fn ask_agent(args: &args::Capture, agent: Client, session: &Session) -> Result<ExitCode, Error> {
    session.console.say("an agent answers here: asking it");
    let when = match trigger(args) {
        Trigger::Iterations { count, align } => RecordWhen::Iterations { count, align },
        Trigger::Duration { length, warmup_s, start_unix_ms } => {
            let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            RecordWhen::Duration { length_ms, warmup_s, start_unix_ms }
        }
    };
    let wanted = WantedTraces {
        pids: [(agent.name().to_owned(), args.pid.clone())].into(),
        when,
        with: &args.with,
        size_max: args.size_max,
        timeout: args.timeout,
        output: &args.output,
    };
    fleet_trace::trace_local_host(agent, &wanted, session)
}

/// Waits until those who are wanted have asked.
fn gather(
    desk: &mut CaptureDesk,
    args: &args::Capture,
    place: &SocketPlace,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Process>, Error> {
    let mut first = None;
    loop {
        desk.server.wait(LOOK)?;
        desk.roster.refresh(&desk.server);
        let now = desk.server.now();
        let chosen = desk.choose_now(&args.pid);
        let wanted = args.processes.unwrap_or(1);
        if !chosen.is_empty() {
            first.get_or_insert(now);
        }
        let is_settled = first.is_some_and(|first| now > first + SETTLE);
        let is_enough = chosen.len() >= wanted && (args.processes.is_some() || is_settled);
        if is_enough || stop.load(Ordering::SeqCst) {
            return Ok(chosen);
        }
        if now > args.timeout {
            return Err(RunError::NobodyAsked {
                place: place.words(),
                seconds: args.timeout.as_secs(),
                wanted,
                got: chosen.len(),
            }
            .into());
        }
    }
}

impl CaptureDesk {
    fn open(socket: Socket, session: &Session) -> Result<Self, Error> {
        let (console, uid) = (session.console, fleet::process::own_uid());
        // With -vv, every datagram in hexadecimal.
        let tap = move |direction: char, at: Duration, pid: u32, bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            console.say(format_args!("{direction} {:.3} {pid} {hex}", at.as_secs_f64()));
        };
        let tap = (console.verbose > 1).then(|| Box::new(tap) as Tap);
        let server = Server::start(socket, uid, tap)
            .map_err(|source| RunError::Thread { what: "polls", source })?;
        Ok(Self { server, roster: Roster::default(), introduced: BTreeMap::new(), console, uid })
    }

    /// Selects the wanted ones of the processes that have asked, and prints why others are skipped.
    fn choose_now(&mut self, wanted: &[u32]) -> Vec<Process> {
        let asked = self.roster.processes();
        let choices = choose(&asked, wanted, self.uid);
        for (process, (_, skip)) in asked.iter().zip(&choices) {
            let what = skip.map_or("", Skip::words);
            if self.introduced.insert(process.pid, what) != Some(what) {
                let gap = if what.is_empty() { "" } else { " " };
                self.say(format_args!("{}{gap}{what}", outcome::introduction(process)));
            }
        }
        let kept = |(process, (_, skip)): (Process, (u32, Option<Skip>))| {
            skip.is_none().then_some(process)
        };
        asked.into_iter().zip(choices).filter_map(kept).collect()
    }

    /// A line with the time.
    fn say(&self, text: impl Display) {
        let now = self.server.now().as_secs_f64();
        self.console.say(format_args!("{now:6.1} s  {text}"));
    }
}

/// Sends every chosen process its request.
fn ask(
    desk: &CaptureDesk,
    args: &args::Capture,
    chosen: Vec<Process>,
    stop: &Arc<AtomicBool>,
) -> Result<Tracing, Error> {
    let token = format!("rowmill-{}", tracing::unique_token());
    if args.duration.is_none() && chosen.len() > 1 {
        let polled = desk.server.polled(chosen.iter().map(|process| process.pid));
        let start = round_start(desk.server.now(), &polled);
        while desk.server.now() < start && !stop.load(Ordering::SeqCst) {
            desk.server.wait(start.saturating_sub(desk.server.now()).min(LOOK))?;
        }
    }
    let order = TracingOrder {
        token,
        trigger: trigger(args),
        detail: trace_detail(&args.with),
        size_max: Bytes(args.size_max),
        patience: args.timeout,
    };
    let count = render::counted(chosen.len() as u64, "process");
    let folder = OwnFolder::hold(&args.output).map_err(io::Error::from);
    let place = TracePlace::unlimited(folder.map_err(Error::io(&args.output, "open"))?);
    let tracing = Tracing::begin(&desk.server, chosen, place, &order);
    desk.say(format_args!("asked {count} for {}", words(args)));
    Ok(tracing)
}

/// Decides from the options when processes record: after iterations, or for a duration.
pub fn trigger(args: &args::Capture) -> Trigger {
    let Some(length) = args.duration else {
        let count = args.iterations.unwrap_or(5);
        return Trigger::Iterations { count, align: args.align };
    };
    let warmup = Duration::from_secs(u64::from(args.warmup));
    let ahead = args.start_in.unwrap_or_else(|| tracing::start_ahead(warmup));
    let start_unix_ms = unix_ms() + u64::try_from(ahead.as_millis()).unwrap_or(0);
    Trigger::Duration { length, warmup_s: args.warmup, start_unix_ms }
}

fn words(args: &args::Capture) -> String {
    match args.duration {
        Some(length) => format!("{} ms", length.as_millis()),
        None => format!(
            "{} iterations from the next multiple of {}",
            args.iterations.unwrap_or(5),
            args.align
        ),
    }
}

/// Looks at processes and files until every request is done or lost.
fn watch(desk: &CaptureDesk, tracing: &mut Tracing, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    loop {
        if stop.load(Ordering::SeqCst) {
            tracing.interrupt(&desk.server);
        }
        for change in tracing.step(&desk.server) {
            let reason = match &change.state {
                RequestState::Lost(reason) => format!(": {}", plain(&reason.to_string())),
                _ => String::new(),
            };
            let (title, word) = (outcome::title(&change.process), change.state.word());
            desk.say(format_args!("{title}: {word}{reason}"));
        }
        if tracing.is_over() {
            return Ok(());
        }
        let wait = if tracing.is_copying() { Duration::ZERO } else { LOOK };
        desk.server.wait(wait)?;
    }
}

fn conclude(desk: &CaptureDesk, tracing: &Tracing, args: &args::Capture) -> CaptureOutcome {
    let row = |target: tracing::TracingOutcome| {
        if let Some(left) = &target.left {
            desk.console.warn(format_args!(
                "{}: not removed, because it is not the folder that was made there or holds what is \
                 not the process's file",
                left.display()
            ));
        }
        ProcessRow {
            host: None,
            pid: target.process.pid,
            rank: target.process.rank(),
            state: target.state.word(),
            reason: match &target.state {
                RequestState::Lost(reason) => Some(plain(&reason.to_string())),
                _ => None,
            },
            path: (target.state == RequestState::Written).then_some(target.file),
            bytes: target.bytes,
            command: target.process.command.join(" "),
        }
    };
    CaptureOutcome {
        folder: args.output.clone(),
        report: None,
        merged: None,
        is_aligned: None,
        processes: tracing.outcomes().into_iter().map(row).collect(),
    }
}
