//! The command `rowmill capture`, which requests traces from running PyTorch processes and writes a
//! report on them.
//!
//! The steps of a capture are: wait for processes to poll, choose processes, send requests, watch
//! the requests, collect the traces, and write the report. The protocol with the processes and the
//! state of each request are part of the crate `fleet`.

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
use crate::args;
use crate::capture_outcome::{self as outcome, CaptureOutcome, CaptureRow};
use crate::capture_request::{check_empty_folder, socket_place, trace_detail};
use crate::command::fleet::trace::{self as fleet_trace, WantedTraces};
use setup::Session;
use setup::error::{EXIT_INTERRUPTED, Error, RunError, UsageError};
use setup::error_text::plain;
use setup::interrupt;
use setup::output;
use setup::render::{self, Console};

/// Time after the first poll by which every running process has polled, because processes poll
/// every 5 s.
const SETTLE: Duration = Duration::from_millis(6500);
/// Maximum time in which the agent of this host must answer a request.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks of the polls of processes and of the growth of trace files.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A running capture, with the server that answers polls and the processes that have polled.
struct CaptureServer {
    server: Server,
    roster: Roster,
    /// The printed text about each process: the reason why it is skipped, or an empty text.
    announced: BTreeMap<u32, &'static str>,
    console: Console,
    uid: u32,
}

/// Runs `rowmill capture` and prints its result.
pub fn run(args: &args::Capture, session: &Session) -> Result<ExitCode, Error> {
    check_request(args)?;
    // The folder is created first, so that the user does not wait for a capture that cannot be
    // written. Dropping `made` removes the folder if it is still empty.
    let made = output::folder(&args.output)?;
    let stop = interrupt::stop_flag("ending the capture");
    let place = socket_place(args.socket_dir.as_deref());
    let socket = match Socket::bind(&place) {
        // Only one process can own the socket. If the owner is an agent, the traces are captured
        // through it.
        Err(taken @ SocketError::Taken { .. }) => {
            let agent = Client::local(place, AGENT_PATIENCE);
            if !agent.is_listening() {
                return Err(taken.into());
            }
            let code = capture_through_agent(args, agent, session);
            drop(made);
            return code;
        }
        bound => bound?,
    };
    let mut capture = CaptureServer::open(socket, session)?;
    session.console.say(format_args!(
        "waiting at {} for processes started with KINETO_USE_DAEMON=1, which poll every 5 s",
        place.words()
    ));
    let chosen = wait_for_processes(&mut capture, args, &place, &stop)?;
    if stop.load(Ordering::SeqCst) {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let mut tracing = send_requests(&capture, args, chosen, &stop)?;
    watch_requests(&capture, &mut tracing, &stop)?;
    let outcome = collect_outcome(&capture, &tracing, args);
    // The socket is closed before the report is written, because writing takes long. A process that
    // polls a closed socket continues unharmed.
    drop((tracing, capture));
    let code = outcome::report_outcome(outcome, session, stop.load(Ordering::SeqCst));
    drop(made);
    code
}

/// Refuses an output folder that is not empty, and process ids that do not exist, before any
/// waiting begins.
fn check_request(args: &args::Capture) -> Result<(), Error> {
    check_empty_folder(&args.output)?;
    match args.pid.iter().find(|&&pid| Process::read(pid).is_none()) {
        Some(&pid) => Err(UsageError::NoSuchProcess { pid }.into()),
        None => Ok(()),
    }
}

/// Captures through the agent that owns the socket of this host. Processes poll the agent instead
/// of this command.
fn capture_through_agent(
    args: &args::Capture,
    agent: Client,
    session: &Session,
) -> Result<ExitCode, Error> {
    session.console.say("an agent runs on this host: capturing through it");
    let when = match choose_trigger(args) {
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

/// Waits until the wanted processes have polled. With `--processes`, these are as many as the
/// option says; without it, the wait ends when no new process appears.
fn wait_for_processes(
    capture: &mut CaptureServer,
    args: &args::Capture,
    place: &SocketPlace,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Process>, Error> {
    let mut first = None;
    loop {
        capture.server.wait(CHECK_INTERVAL)?;
        capture.roster.refresh(&capture.server);
        let now = capture.server.now();
        let chosen = capture.choose_processes(&args.pid);
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

impl CaptureServer {
    fn open(socket: Socket, session: &Session) -> Result<Self, Error> {
        let (console, uid) = (session.console, fleet::process::own_uid());
        // With -vv, every datagram is printed in hexadecimal.
        let tap = move |direction: char, at: Duration, pid: u32, bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            console.say(format_args!("{direction} {:.3} {pid} {hex}", at.as_secs_f64()));
        };
        let tap = (console.verbose > 1).then(|| Box::new(tap) as Tap);
        let server = Server::start(socket, uid, tap)
            .map_err(|source| RunError::Thread { what: "polls", source })?;
        Ok(Self { server, roster: Roster::default(), announced: BTreeMap::new(), console, uid })
    }

    /// Chooses the wanted processes among the processes that have polled, and prints why others are
    /// skipped.
    fn choose_processes(&mut self, wanted: &[u32]) -> Vec<Process> {
        let polled = self.roster.processes();
        let choices = choose(&polled, wanted, self.uid);
        for (process, (_, skip)) in polled.iter().zip(&choices) {
            let what = skip.map_or("", Skip::words);
            if self.announced.insert(process.pid, what) != Some(what) {
                let gap = if what.is_empty() { "" } else { " " };
                self.say(format_args!("{}{gap}{what}", outcome::describe_process(process)));
            }
        }
        let kept = |(process, (_, skip)): (Process, (u32, Option<Skip>))| {
            skip.is_none().then_some(process)
        };
        polled.into_iter().zip(choices).filter_map(kept).collect()
    }

    /// Prints a line that begins with the seconds since the start of the capture.
    fn say(&self, text: impl Display) {
        let now = self.server.now().as_secs_f64();
        self.console.say(format_args!("{now:6.1} s  {text}"));
    }
}

/// Sends a request to every chosen process. Requests to several processes are sent after the
/// longest pause between their polls. All of them thus receive their request before the next
/// multiple of iterations.
fn send_requests(
    capture: &CaptureServer,
    args: &args::Capture,
    chosen: Vec<Process>,
    stop: &Arc<AtomicBool>,
) -> Result<Tracing, Error> {
    let token = format!("rowmill-{}", tracing::unique_token());
    // A request with --duration contains its start time. Only requests that count iterations must
    // reach all processes within one round of polls.
    if args.duration.is_none() && chosen.len() > 1 {
        let polled = capture.server.polled(chosen.iter().map(|process| process.pid));
        let start = round_start(capture.server.now(), &polled);
        while capture.server.now() < start && !stop.load(Ordering::SeqCst) {
            capture.server.wait(start.saturating_sub(capture.server.now()).min(CHECK_INTERVAL))?;
        }
    }
    let order = TracingOrder {
        token,
        trigger: choose_trigger(args),
        detail: trace_detail(&args.with),
        size_max: Bytes(args.size_max),
        patience: args.timeout,
    };
    let count = render::counted(chosen.len() as u64, "process");
    let folder = OwnFolder::hold(&args.output).map_err(io::Error::from);
    let place = TracePlace::unlimited(folder.map_err(Error::io(&args.output, "open"))?);
    let tracing = Tracing::begin(&capture.server, chosen, place, &order);
    capture.say(format_args!("requested {} from {count}", describe_trigger(args)));
    Ok(tracing)
}

/// Decides from the options when processes record: at a multiple of iterations, or at a time.
fn choose_trigger(args: &args::Capture) -> Trigger {
    let Some(length) = args.duration else {
        let count = args.iterations.unwrap_or(5);
        return Trigger::Iterations { count, align: args.align };
    };
    let warmup = Duration::from_secs(u64::from(args.warmup));
    let ahead = args.start_in.unwrap_or_else(|| tracing::start_ahead(warmup));
    let start_unix_ms = unix_ms() + u64::try_from(ahead.as_millis()).unwrap_or(0);
    Trigger::Duration { length, warmup_s: args.warmup, start_unix_ms }
}

fn describe_trigger(args: &args::Capture) -> String {
    match args.duration {
        Some(length) => format!("{} ms", length.as_millis()),
        None => format!(
            "{} iterations from the next multiple of {}",
            args.iterations.unwrap_or(5),
            args.align
        ),
    }
}

/// Follows the requests and prints every change of state, until each request is done or lost.
fn watch_requests(
    capture: &CaptureServer,
    tracing: &mut Tracing,
    stop: &Arc<AtomicBool>,
) -> Result<(), Error> {
    loop {
        if stop.load(Ordering::SeqCst) {
            tracing.interrupt(&capture.server);
        }
        for change in tracing.step(&capture.server) {
            let reason = match &change.state {
                RequestState::Lost(reason) => format!(": {}", plain(&reason.to_string())),
                _ => String::new(),
            };
            let (title, word) = (outcome::process_title(&change.process), change.state.word());
            capture.say(format_args!("{title}: {word}{reason}"));
        }
        if tracing.is_over() {
            return Ok(());
        }
        // Traces are copied in short turns, so the next turn must follow without a wait.
        let wait = if tracing.is_copying() { Duration::ZERO } else { CHECK_INTERVAL };
        capture.server.wait(wait)?;
    }
}

/// Collects the traces and the reasons for missing ones. Warns about files that could not be
/// removed.
fn collect_outcome(
    capture: &CaptureServer,
    tracing: &Tracing,
    args: &args::Capture,
) -> CaptureOutcome {
    let row = |target: tracing::TracingOutcome| {
        if let Some(left) = &target.left {
            capture.console.warn(format_args!(
                "{}: not removed, because the folder was replaced or holds files of others",
                left.display()
            ));
        }
        CaptureRow {
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
    CaptureOutcome::new(&args.output, tracing.outcomes().into_iter().map(row).collect())
}
