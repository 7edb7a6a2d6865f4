//! The program `rowmill-agent`, which runs on every host of a fleet. The agent answers the polls of
//! PyTorch processes, reads counters, and takes traces on request. The agent neither interprets
//! traces nor communicates with other agents.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use fleet::ipc::socket::{Socket, SocketPlace};
use fleet::plain::without_controls;
use fleet::roster;
use fleet::server::Server;
use fleet::steps;
use fleet::untrusted::{MissingFolder, OwnFolder};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

mod audit;
mod check;
mod clock;
mod config;
mod control;
mod counters;
mod gate;
mod hub;
mod kubernetes;
mod lock;
mod net;
mod owners;
mod page;
mod periodic;
mod pods;
mod samples;
mod secret;
mod state;
mod step_receiver;
#[cfg(test)]
mod tests;
mod traces;
mod uids;

use audit::Audit;
use check::Checked;
use config::{Args, Config, ConfigError};
use control::{Listeners, ServiceContext};
use counters::RowSink;
use state::AgentState;
use traces::Traces;

/// Time between two scans of the host's processes.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two removals of the sockets of ended processes.
const SWEEP: Duration = Duration::from_secs(60);
/// Largest number of requests that read from `/proc` or the disk at the same time.
const BLOCKING_MAX: usize = 24;
/// Exit code for wrong usage or a wrong configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match prepare(&args) {
        Ok((config, _)) if args.check => {
            say(
                "the agent would start: configuration, folders, files, sockets and ports are right",
            );
            check::silent_sources(&config).iter().for_each(|note| say(&format!("note: {note}")));
            Ok(())
        }
        Ok((config, checked)) => run(config, checked).map_err(|problem| vec![problem]),
        Err(problems) => Err(problems),
    };
    let Err(problems) = outcome else { return ExitCode::SUCCESS };
    problems.iter().for_each(|problem| report(problem, &args));
    ExitCode::from(EXIT_USAGE)
}

/// Reads the configuration and checks everything that it names.
fn prepare(args: &Args) -> Result<(Config, Checked), Vec<ConfigError>> {
    let config = Config::from_args(args).map_err(|problem| vec![problem])?;
    let checked = check::everything(&config)?;
    Ok((config, checked))
}

/// Prints a problem of the configuration with the name of its file and a hint.
fn report(problem: &ConfigError, args: &Args) {
    let origin = problem.key().and_then(|key| args.origin(key));
    let origin = origin.map_or(String::new(), |path| format!("{}: ", path.display()));
    let text = format!("error: {origin}{problem}");
    match problem {
        // The TOML parser's message has several lines, because it marks the position of the error.
        ConfigError::Toml { .. } => text.lines().for_each(say),
        _ => say(&text),
    }
    if let Some(hint) = problem.hint() {
        say(&format!("hint: {hint}"));
    }
}

fn run(config: Config, checked: Checked) -> Result<(), ConfigError> {
    // The state folder must exist before the agent accepts requests. Opening it checks the folder
    // and its parents again.
    OwnFolder::open(&config.state(), MissingFolder::Make(0o700))?;
    fleet::process::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_MAX)
        .thread_stack_size(512 << 10)
        .build()
        .map_err(ConfigError::start("cannot start the runtime"))?;
    let audit = Audit::open(config.audit.as_deref(), config.audit_mib() << 20)?;
    let place = config.place();
    let socket = polls(&place)?;
    let server =
        Server::start(socket, 0, None).map_err(ConfigError::start("cannot start a thread"))?;
    let mut messages = vec![format!(
        "rowmill-agent {}: state in {}; answering at {}",
        env!("CARGO_PKG_VERSION"),
        config.state().display(),
        place.words()
    )];
    let listeners = runtime.block_on(Listeners::bind(&config, &mut messages))?;
    let state = Arc::new(AgentState::new(config, server, audit)?);
    let sink = RowSink::open(state.config.json.as_deref(), state.hub.clone());
    let sink = sink.map_err(ConfigError::start("json"))?;
    let traces = Traces::start(&state).map_err(ConfigError::start("traces"))?;
    hub::start(&state, &traces).map_err(ConfigError::start("cannot start a thread"))?;
    let periodic = periodic::start(&state, &traces).map_err(ConfigError::start("periodic"))?;
    threads(&state, sink, &place)?;
    // Whoever reads the line below may signal the agent at once.
    let ended = end_at_signal(&state)?;
    say(&messages.join("; "));
    let Checked { secrets, page_secrets, fields } = checked;
    let context =
        ServiceContext { state: Arc::clone(&state), traces, fields, secrets, page_secrets };
    runtime.block_on(async {
        tokio::select! {
            () = listeners.serve(context) => {}
            _ = ended => {}
        }
    });
    // If the socket's name stayed, every process would wait for an answer from it when the process
    // exits.
    state.server.end();
    runtime.shutdown_timeout(Duration::from_secs(1));
    // The thread of periodic traces saves the budgets used today before it ends.
    if let Some(periodic) = periodic {
        let until = Instant::now() + Duration::from_secs(2);
        while !periodic.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
    if let SocketPlace::Folder(folder) = &place {
        fleet::ipc::control::remove(folder);
        let _ = std::fs::remove_file(folder.join(steps::NAME));
    }
    say("rowmill-agent ended by a signal");
    Ok(())
}

/// Opens the socket that PyTorch processes poll. The socket is either passed in by systemd or
/// another process, or created.
fn polls(place: &SocketPlace) -> Result<Socket, ConfigError> {
    let mut given = listenfd::ListenFd::from_env();
    for at in 0..given.len() {
        if let Ok(Some(socket)) = given.take_unix_datagram(at) {
            return Socket::adopt(socket)
                .map_err(ConfigError::start("the socket that another process passed"));
        }
    }
    Ok(Socket::bind(place)?)
}

/// Starts all threads of the agent that do not serve connections.
fn threads(state: &Arc<AgentState>, sink: RowSink, place: &SocketPlace) -> Result<(), ConfigError> {
    let spawn = |name: &str, stack: usize, work: Box<dyn FnOnce() + Send>| {
        let builder = thread::Builder::new().name(name.to_owned()).stack_size(stack);
        builder.spawn(work).map(drop).map_err(ConfigError::start("cannot start a thread"))
    };
    let own = Arc::clone(state);
    spawn("counters", 1 << 20, Box::new(move || counters::run(&own, sink)))?;
    match Socket::bind_as(place, steps::NAME) {
        Ok(socket) => {
            let own = Arc::clone(state);
            spawn("steps", 256 << 10, Box::new(move || step_receiver::run(&own, &socket)))?;
        }
        Err(error) => state.note(format!("steps of jobs are not received: {error}")),
    }
    if state.config.pod_resources.is_some() || state.config.kubernetes.is_some() {
        let own = Arc::clone(state);
        spawn("pods", 512 << 10, Box::new(move || pods::run(&own)))?;
    }
    let (own, place) = (Arc::clone(state), place.clone());
    spawn("look", 512 << 10, Box::new(move || look(&own, &place)))
}

fn look(state: &AgentState, place: &SocketPlace) {
    let (mut swept, mut looked) = (Instant::now(), None::<Instant>);
    let mut messages = Vec::new();
    while !state.is_ending() {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            state.look();
            state.audit.write_suppressed();
            let notes = state.all_notes();
            let new = notes.iter().filter(|note| !messages.contains(*note));
            new.for_each(|note| say(&format!("note: {note}")));
            messages = notes;
            looked = Some(Instant::now());
        }
        if let SocketPlace::Folder(folder) = place
            && swept.elapsed() >= SWEEP
        {
            roster::sweep(folder);
            swept = Instant::now();
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Ends the agent at SIGTERM or Ctrl-C. Threads end by the stop flag of the state, connections by
/// the returned channel.
fn end_at_signal(
    state: &Arc<AgentState>,
) -> Result<tokio::sync::oneshot::Receiver<()>, ConfigError> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(ConfigError::start("signals"))?;
    let (ended, wait) = tokio::sync::oneshot::channel();
    let own = Arc::clone(state);
    let builder = thread::Builder::new().name("signals".to_owned()).stack_size(128 << 10);
    let work = move || {
        if signals.forever().next().is_some() {
            own.stop.store(true, Ordering::SeqCst);
            let _ = ended.send(());
        }
    };
    builder.spawn(work).map_err(ConfigError::start("cannot start a thread"))?;
    Ok(wait)
}

/// Writes a line to stderr. Errors are ignored, because a closed stderr must not stop the agent.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", without_controls(text));
}
