//! `rowmill capture`: from a request to running PyTorch processes to a report of their traces.
//!
//! gather who asks → choose → ask → watch → collect → report. What is said to processes and what
//! became of it is `fleet`'s affair.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet::capture::{Skip, choose, round_start};
use fleet::ipc::config::{Config, Detail, Switch, Trigger};
use fleet::ipc::request::{POLL, Reason, Request, Sight, State, Timing};
use fleet::ipc::socket::{Place, Socket};
use fleet::ipc::staging::Staging;
use fleet::process::Process;
use fleet::untrusted::Copying;
use schema::Bytes;

use crate::args::{self, With};
use crate::error::{EXIT_INTERRUPTED, Error};
use crate::interrupt;
use crate::output;
use crate::plain::plain;
use crate::render;
use crate::resolve::Session;

mod daemon;
mod outcome;

use daemon::Daemon;
use outcome::{Outcome, Row};

/// Once the first has asked, every process that runs has asked within this.
const SETTLE: Duration = Duration::from_millis(6500);
/// How long the copy of a trace goes on before polls are answered again; they wait 90 ms at most.
const COPY_TURN: Duration = Duration::from_millis(20);
/// A start needs this beside a poll and the warm-up: the profiler's second, and room.
const START_ROOM: Duration = Duration::from_secs(5);

/// A process that is asked for its trace.
struct Target {
    process: Process,
    own_pid: i32,
    /// None where the process could not write.
    staging: Option<Staging>,
    /// The copy that is being made.
    copying: Option<Copying>,
    file: PathBuf,
    bytes: u64,
    told: &'static str,
}

/// Runs the command.
pub fn run(args: &args::Capture, session: &Session) -> Result<ExitCode, Error> {
    check(args)?;
    // Made now, before anyone waits, and gone again if nothing comes.
    let made = output::folder(&args.output)?;
    let stop = interrupt::stop_flag("ending the capture");
    let place = place(args.socket_dir.as_deref());
    let socket = Socket::bind(&place)?;
    let mut daemon = Daemon::new(socket, session.console);
    session.console.say(format_args!(
        "waiting at {} for processes started with KINETO_USE_DAEMON=1; they ask every 5 s",
        place.words()
    ));
    let chosen = gather(&mut daemon, args, &place, &stop)?;
    if stop.load(Ordering::SeqCst) {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let mut targets = ask(&mut daemon, args, chosen, &stop)?;
    watch(&mut daemon, &mut targets, &stop)?;
    // Processes that ask from now on find nobody, which costs them nothing but their exit.
    let outcome = conclude(&daemon, targets, args);
    drop(daemon);
    let told = outcome::tell(outcome, session, stop.load(Ordering::SeqCst));
    drop(made);
    told
}

/// Where processes are expected to ask.
pub fn place(given: Option<&Path>) -> Place {
    let own = || std::env::var_os(fleet::ipc::socket::VARIABLE).map(PathBuf::from);
    let folder = given.map(Path::to_owned).or_else(own).filter(|path| !path.as_os_str().is_empty());
    folder.map_or(Place::Abstract, Place::Folder)
}

/// Refuses what could not succeed, before anyone waits for it.
fn check(args: &args::Capture) -> Result<(), Error> {
    let is_free = match fs::read_dir(&args.output) {
        Ok(mut entries) => entries.next().is_none(),
        // What cannot be listed cannot be known to be empty.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !is_free {
        return Err(Error::Exists { path: args.output.clone() });
    }
    match args.pid.iter().find(|&&pid| Process::of(pid).is_none()) {
        Some(&pid) => Err(Error::NoSuchProcess { pid }),
        None => Ok(()),
    }
}

/// Waits until those who are wanted have asked.
fn gather(
    daemon: &mut Daemon,
    args: &args::Capture,
    place: &Place,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Process>, Error> {
    let mut first = None;
    loop {
        daemon.serve(Duration::from_millis(50))?;
        let chosen = choose_now(daemon, &args.pid);
        let wanted = args.processes.unwrap_or(1);
        if !chosen.is_empty() {
            first.get_or_insert(daemon.now());
        }
        let is_settled = first.is_some_and(|first| daemon.now() > first + SETTLE);
        let is_enough = chosen.len() >= wanted && (args.processes.is_some() || is_settled);
        if is_enough || stop.load(Ordering::SeqCst) {
            return Ok(chosen);
        }
        if daemon.now() > args.timeout {
            return Err(Error::NobodyAsked {
                place: place.words(),
                seconds: args.timeout.as_secs(),
                wanted,
                got: chosen.len(),
            });
        }
    }
}

/// Those who asked and are wanted; says of the others why not.
fn choose_now(daemon: &mut Daemon, wanted: &[u32]) -> Vec<Process> {
    let asked = daemon.asked();
    let choices = choose(&asked, wanted, daemon.uid());
    for (process, (_, skip)) in asked.iter().zip(&choices) {
        let what = match skip {
            None => "",
            Some(Skip::Launcher) => "skipped: a launcher",
            Some(Skip::Helper) => "skipped: loads data for another",
            Some(Skip::OtherUser) => "skipped: another user's",
            Some(Skip::NotWanted) => "skipped: not asked for",
        };
        daemon.introduce(process, what);
    }
    let kept =
        |(process, (_, skip)): (Process, (u32, Option<Skip>))| skip.is_none().then_some(process);
    asked.into_iter().zip(choices).filter_map(kept).collect()
}

/// Sends every chosen process its request.
fn ask(
    daemon: &mut Daemon,
    args: &args::Capture,
    chosen: Vec<Process>,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Target>, Error> {
    let token = format!("rowmill-{:x}", unix_ms());
    if args.duration.is_none() && chosen.len() > 1 {
        let start = round_start(daemon.now(), &daemon.polled(&chosen));
        while daemon.now() < start && !stop.load(Ordering::SeqCst) {
            daemon.serve(Duration::from_millis(20))?;
        }
    }
    let (trigger, timing) = when(args, daemon.now());
    let names = outcome::names(&chosen);
    let mut targets = Vec::new();
    for (process, name) in chosen.into_iter().zip(names) {
        let pid = process.pid;
        let id = format!("{token}-{pid}");
        let prepared = prepare(&process, &id, trigger, args);
        let (staging, text, problem) = match prepared {
            Ok((staging, text)) => (Some(staging), text, None),
            // What one process makes impossible must not end the capture of the others.
            Err(problem) => (None, String::new(), Some(problem)),
        };
        let mut request = Request::new(daemon.now(), (text, id), timing, args.timeout);
        if let Some(problem) = problem {
            request.lose(Reason::Unwritable(problem));
        }
        let own_pid = daemon.request(pid, request);
        let file = args.output.join(name);
        targets.push(Target { process, own_pid, staging, copying: None, file, bytes: 0, told: "" });
    }
    daemon.say(format_args!(
        "asked {} for {}",
        render::counted(targets.len() as u64, "process"),
        words(args)
    ));
    Ok(targets)
}

/// The folder of a process's trace, and the text that asks for it; or why there can be none.
fn prepare(
    process: &Process,
    id: &str,
    trigger: Trigger,
    args: &args::Capture,
) -> Result<(Staging, String), String> {
    let size_max = Bytes(args.size_max << 20);
    let staging = Staging::prepare(process, id, size_max).map_err(|error| error.to_string())?;
    let (path, detail) = (staging.requested(), detail(&args.with));
    let config = Config { path, trigger, detail, trace_id: id.to_owned() };
    let text = config.text().map_err(|error| error.to_string())?;
    Ok((staging, text))
}

/// When to record, as the processes and as the watch understand it.
fn when(args: &args::Capture, now: Duration) -> (Trigger, Timing) {
    let Some(length) = args.duration else {
        let count = args.iterations.unwrap_or(5);
        return (Trigger::Iterations { count, align: args.align }, Timing::Iterations);
    };
    let warmup = Duration::from_secs(u64::from(args.warmup));
    let ahead = args.start_in.unwrap_or(POLL + warmup + START_ROOM);
    let start_unix_ms = unix_ms() + u64::try_from(ahead.as_millis()).unwrap_or(0);
    (
        Trigger::Duration { length, warmup_s: args.warmup, start_unix_ms },
        Timing::At { start: now + ahead, warmup, length },
    )
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

fn detail(with: &[With]) -> Detail {
    let switch = |what| if with.contains(&what) { Switch::On } else { Switch::Off };
    Detail {
        shapes: switch(With::Shapes),
        stacks: switch(With::Stacks),
        flops: switch(With::Flops),
        modules: switch(With::Modules),
        memory: switch(With::Memory),
    }
}

/// Serves polls and looks at files until every request is done or lost.
fn watch(daemon: &mut Daemon, targets: &mut [Target], stop: &Arc<AtomicBool>) -> Result<(), Error> {
    let mut looked = Instant::now();
    while !daemon.is_over() {
        if stop.load(Ordering::SeqCst) {
            for target in &*targets {
                daemon.lose(target.process.pid, Reason::Interrupted);
            }
        }
        let is_copying = targets.iter().any(|target| target.copying.is_some());
        let wait = if is_copying { Duration::ZERO } else { Duration::from_millis(50) };
        let asked = daemon.serve(wait)?;
        copy(daemon, targets);
        // A file may be whole before the poll that says so is answered.
        if asked || looked.elapsed() > Duration::from_millis(100) {
            for target in &mut *targets {
                look(daemon, target);
            }
            looked = Instant::now();
        }
    }
    for target in targets {
        look(daemon, target);
    }
    Ok(())
}

/// Goes on with one copy.
fn copy(daemon: &mut Daemon, targets: &mut [Target]) {
    let first = targets.iter_mut().find_map(|target| {
        let copying = target.copying.as_mut()?;
        Some((copying.step(COPY_TURN), target))
    });
    let Some((step, target)) = first else { return };
    let pid = target.process.pid;
    match step {
        Ok(None) => return,
        Ok(Some(bytes)) => {
            target.bytes = bytes;
            daemon.collected(pid);
        }
        Err(error) => daemon.lose(pid, Reason::NotCopied(error.to_string())),
    }
    target.copying = None;
}

/// Looks at one process, tells what changed, begins to copy its trace when it is whole.
fn look(daemon: &mut Daemon, target: &mut Target) {
    let pid = target.process.pid;
    if let Some(staging) = &mut target.staging
        && !daemon.state(pid).is_some_and(|state| matches!(state, State::Finished))
    {
        let sight = staging.look(&target.process, target.own_pid);
        daemon.look(pid, &sight);
    } else {
        daemon.look(pid, &Sight::default());
    }
    if daemon.state(pid) == Some(&State::Finished) && target.copying.is_none() {
        begin_copy(daemon, target);
    }
    let Some(state) = daemon.state(pid) else { return };
    let told = outcome::state_words(state);
    if target.told == told {
        return;
    }
    let reason = match state {
        State::Lost(reason) => {
            target.copying = None;
            format!(": {}", plain(&reason.to_string()))
        }
        _ => String::new(),
    };
    target.told = told;
    daemon.say(format_args!("{}: {told}{reason}", outcome::title(&target.process)));
}

fn begin_copy(daemon: &mut Daemon, target: &mut Target) {
    let Some(staging) = &mut target.staging else { return };
    match staging.collect(&target.file) {
        Ok(copying) => target.copying = copying,
        Err(error) => daemon.lose(target.process.pid, Reason::NotCopied(error.to_string())),
    }
}

fn conclude(daemon: &Daemon, targets: Vec<Target>, args: &args::Capture) -> Outcome {
    let row = |target: Target| {
        if let Some(left) = target.staging.and_then(Staging::remove) {
            daemon.warn(format_args!(
                "{}: not removed, because it is not the folder that was made there or holds what is \
                 not the process's file",
                left.display()
            ));
        }
        let state = daemon.state(target.process.pid);
        Row {
            pid: target.process.pid,
            rank: target.process.rank(),
            state: state.map_or("lost", outcome::state_words),
            reason: match state {
                Some(State::Lost(reason)) => Some(plain(&reason.to_string())),
                _ => None,
            },
            path: (state == Some(&State::Written)).then_some(target.file),
            bytes: target.bytes,
            command: target.process.command.join(" "),
        }
    };
    Outcome {
        folder: args.output.clone(),
        report: None,
        merged: None,
        is_aligned: None,
        processes: targets.into_iter().map(row).collect(),
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}
