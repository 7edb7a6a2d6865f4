//! `rowmill fleet trace`: one order to all hosts at once, then a trace or a reason for every rank,
//! then the report. `rowmill capture` comes here too where an agent has the socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet::capture::round_start;
use fleet::tracing::{self, unix_ms};
use fleet::wire::{self, RecordWhen, Status, TraceOrder, TraceRow, TraceState};

use super::reach::{PATIENCE, counted, open_clients};
use super::select::{self, PidsByHost};
use crate::agent_client::{Client, HostClock, each, hint};
use crate::args::{Align, FleetTrace, ProcessSelection, With};
use crate::capture_outcome::{self as outcome, CaptureOutcome, ProcessRow};
use crate::capture_request::check_empty_folder;
use setup::Session;
use setup::error::{Error, RunError};
use setup::error_text::plain;
use setup::interrupt;
use setup::output;

/// Between two looks at an order.
const LOOK: Duration = Duration::from_millis(500);
/// A host that says nothing for this long is gone.
const SILENCE: Duration = Duration::from_secs(20);
/// The multiple where no job reports its steps.
const ALIGN: u32 = 100;
/// How long a multiple of iterations should last: all ranks are asked within a fraction of it.
const LASTING: Duration = Duration::from_secs(20);
/// Room for the orders to arrive before the first process is answered.
const ROOM: Duration = Duration::from_millis(1500);

/// What is recorded, everywhere.
pub struct WantedTraces<'a> {
    /// Processes by host; all of every host where nobody is named.
    pub pids: PidsByHost,
    pub when: RecordWhen,
    pub with: &'a [With],
    pub size_max: u64,
    pub timeout: Duration,
    pub output: &'a Path,
}

/// Runs `rowmill fleet trace` and prints its result.
pub fn run(args: &FleetTrace, session: &Session) -> Result<ExitCode, Error> {
    check_empty_folder(&args.output)?;
    let clients = open_clients(&args.reach, PATIENCE)?;
    let looked = each(&clients, Client::status);
    let statuses = || {
        let named = clients.iter().map(Client::name).zip(&looked);
        named.filter_map(|(host, looked)| Some((host, &looked.as_ref().ok()?.0)))
    };
    let mut selection = args.select.clone();
    if selection.is_all() {
        selection.run = args.reach.slurm.map(|job| job.to_string());
    }
    let mut pids = select::choose(statuses(), &selection)?;
    select::check_one_job(statuses(), &pids)?;
    if selection.is_all() {
        // The agent of a host without processes says why there is none.
        for (host, _) in statuses() {
            pids.entry(host.to_owned()).or_default();
        }
    }
    let made = output::folder(&args.output)?;
    let stop = interrupt::stop_flag("ending the capture");
    for (client, looked) in clients.iter().zip(&looked) {
        match looked {
            Ok((_, clock)) => session.console.say(format_args!(
                "{}: {}, clock {}",
                client.name(),
                counted(pids.get(client.name()).map_or(0, Vec::len), "process"),
                clock.words()
            )),
            Err(problem) => {
                session.console.say(format_args!("{}: {problem}", client.name()));
                if let Some(hint) = hint(problem) {
                    session.console.say(format_args!("hint: {hint}"));
                }
            }
        }
    }
    let align = match args.align {
        Align::Given(align) => align,
        Align::Auto => auto(select::rows(statuses(), &pids).collect(), session),
    };
    let when = RecordWhen::Iterations { count: args.iterations, align };
    let (size_max, timeout) = (args.size_max, args.timeout);
    let output = args.output.as_path();
    let wanted = WantedTraces { pids, when, with: &args.with, size_max, timeout, output };
    let rows = begun(order(&clients, &looked, &wanted, (session, &stop)))?;
    let outcome = CaptureOutcome {
        folder: args.output.clone(),
        report: None,
        merged: None,
        is_aligned: None,
        processes: rows,
    };
    let told = outcome::tell(outcome, session, stop.load(Ordering::SeqCst));
    drop(made);
    told
}

/// Traces the processes of this host through its agent, on behalf of `rowmill capture`.
pub fn trace_local_host(
    client: Client,
    wanted: &WantedTraces<'_>,
    session: &Session,
) -> Result<ExitCode, Error> {
    let clients = [client];
    let looked = each(&clients, Client::status);
    if wanted.pids.values().all(Vec::is_empty) {
        let named = clients.iter().map(Client::name).zip(&looked);
        let statuses = named.filter_map(|(host, looked)| Some((host, &looked.as_ref().ok()?.0)));
        let all = select::choose(statuses.clone(), &ProcessSelection::default())?;
        select::check_one_job(statuses, &all)?;
    }
    let stop = interrupt::stop_flag("ending the capture");
    let processes = begun(order(&clients, &looked, wanted, (session, &stop)))?;
    let folder = wanted.output.to_owned();
    let outcome =
        CaptureOutcome { folder, report: None, merged: None, is_aligned: None, processes };
    outcome::tell(outcome, session, stop.load(Ordering::SeqCst))
}

/// A host's status and clock offset, or the reason why its agent did not answer.
type Looked = Result<(Status, HostClock), String>;

/// A multiple that lasts long enough by the usual step of the chosen processes, a round number.
fn auto(chosen: Vec<&wire::ProcessRow>, session: &Session) -> u32 {
    let steps = chosen.iter().filter_map(|process| process.step_ns).filter(|&ns| ns > 0);
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    let Some(&usual) = steps.get(steps.len() / 2) else {
        session.console.say(format_args!(
            "no process reports its steps: beginning at the next multiple of {ALIGN}"
        ));
        return ALIGN;
    };
    let align = round_up(u64::try_from(LASTING.as_nanos()).unwrap_or(u64::MAX).div_ceil(usual));
    session.console.say(format_args!(
        "a step takes {:.1} ms: beginning at the next multiple of {align}",
        usual as f64 * 1e-6
    ));
    align
}

/// The next of 1, 2, 5, 10, 20, ….
fn round_up(count: u64) -> u32 {
    let mut base = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            if base * factor >= count {
                return u32::try_from(base * factor).unwrap_or(u32::MAX);
            }
        }
        base *= 10;
        if base > 1_000_000_000 {
            return 1_000_000_000;
        }
    }
}

/// Asks all hosts at once, and waits until every process has a trace or a reason.
fn order(
    clients: &[Client],
    looked: &[Looked],
    wanted: &WantedTraces<'_>,
    (session, stop): (&Session, &AtomicBool),
) -> Vec<ProcessRow> {
    let token = tracing::unique_token();
    let start = start(looked);
    let known: BTreeMap<&str, &Looked> = clients.iter().map(Client::name).zip(looked).collect();
    let many = clients.len() > 1;
    let place = Destination { folder: wanted.output, many, taken: Mutex::default() };
    let rows = each(clients, |client| {
        let offset_ns = match known.get(client.name()) {
            Some(Ok((_, clock))) => clock.offset_ns,
            Some(Err(problem)) => return vec![lost(client, problem)],
            None => 0,
        };
        let pids = match wanted.pids.get(client.name()) {
            Some(pids) => pids.clone(),
            None if wanted.pids.is_empty() => Vec::new(),
            None => return Vec::new(),
        };
        let order = TraceOrder {
            token: token.clone(),
            pids,
            job: None,
            when: wanted.when,
            with: wanted.with.iter().map(|with| format!("{with:?}").to_lowercase()).collect(),
            size_max: wanted.size_max,
            patience_ms: u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX),
            not_before_unix_ms: many.then(|| start.saturating_add_signed(offset_ns / 1_000_000)),
        };
        let begun = match client.begin(&order) {
            Ok(state) => state,
            Err(problem) => return vec![lost(client, &problem)],
        };
        let state = watch(client, begun, (session, stop));
        let rows = fetch(client, state, &place);
        // What could not be fetched stays on the host until it expires, unless nobody wants it.
        if stop.load(Ordering::SeqCst) || rows.iter().all(|row| !row.is_left) {
            client.forget(&token);
        }
        rows.into_iter().map(|fetched| fetched.row).collect()
    });
    rows.into_iter().flatten().collect()
}

/// The rows of an order that at least one host has begun.
///
/// # Errors
/// No host has.
fn begun(rows: Vec<ProcessRow>) -> Result<Vec<ProcessRow>, Error> {
    if rows.iter().any(|row| row.pid != 0) {
        return Ok(rows);
    }
    let problems: Vec<String> = rows.into_iter().filter_map(|row| row.reason).collect();
    Err(RunError::NoOrder { problems: problems.join("; ") }.into())
}

/// When to begin to answer, by our clock: behind the longest pause between all hosts' polls.
fn start(looked: &[Looked]) -> u64 {
    let mut polled = Vec::new();
    for (status, clock) in looked.iter().flatten() {
        let at = i64::try_from(status.unix_ns).unwrap_or(i64::MAX) - clock.offset_ns;
        let at = Duration::from_nanos(u64::try_from(at).unwrap_or(0));
        let rows = status.processes.iter().filter(|process| process.skip.is_none());
        polled.extend(rows.map(|row| at.saturating_sub(Duration::from_millis(row.polled_ms))));
    }
    let now = Duration::from_millis(unix_ms()) + ROOM;
    u64::try_from(round_start(now, &polled).as_millis()).unwrap_or(u64::MAX)
}

/// Looks until the order is over, or the host says nothing any more.
fn watch(
    client: &Client,
    begun: TraceState,
    (session, stop): (&Session, &AtomicBool),
) -> TraceState {
    let mut state = begun;
    let mut heard = Instant::now();
    let mut told: BTreeMap<u32, String> = BTreeMap::new();
    loop {
        for row in &state.rows {
            if told.insert(row.pid, row.state.clone()).as_deref() != Some(&row.state) {
                let why =
                    row.reason.as_ref().map_or(String::new(), |why| format!(": {}", plain(why)));
                let who =
                    row.rank.map_or(format!("process {}", row.pid), |rank| format!("rank {rank}"));
                session.console.say(format_args!("{}: {who}: {}{why}", client.name(), row.state));
            }
        }
        if state.is_over {
            return state;
        }
        std::thread::sleep(LOOK);
        let gave_up = stop.load(Ordering::SeqCst);
        match client.state(&state.token) {
            Ok(None) => return ended(state, "the agent restarted and lost the order"),
            Ok(Some(now)) if !gave_up => {
                (state, heard) = (now, Instant::now());
            }
            Ok(Some(_)) => return ended(state, "the capture was interrupted"),
            Err(problem) if heard.elapsed() > SILENCE || gave_up => {
                let why = format!(
                    "its agent says nothing for {} s: {problem}",
                    heard.elapsed().as_secs()
                );
                return ended(state, &why);
            }
            Err(_) => {}
        }
    }
}

/// What has no trace yet will have none.
fn ended(mut state: TraceState, why: &str) -> TraceState {
    for row in state.rows.iter_mut().filter(|row| row.file.is_none() && row.state != "lost") {
        row.state = "lost".to_owned();
        row.reason = Some(why.to_owned());
    }
    state
}

/// A row, and whether its trace was written but could not be fetched.
struct Fetched {
    row: ProcessRow,
    is_left: bool,
}

/// Where traces of all hosts go: no trace is written over another, whatever its name.
struct Destination<'a> {
    folder: &'a Path,
    many: bool,
    taken: Mutex<BTreeSet<PathBuf>>,
}

fn fetch(client: &Client, state: TraceState, place: &Destination<'_>) -> Vec<Fetched> {
    let token = state.token.clone();
    let row = |row: TraceRow| {
        let mut result = ProcessRow {
            host: Some(client.name().to_owned()),
            pid: row.pid,
            rank: row.rank,
            state: "lost",
            reason: row.reason.map(|why| plain(&why)),
            path: None,
            bytes: 0,
            command: row.command,
        };
        let Some(file) = row.file else { return Fetched { row: result, is_left: false } };
        let fetched = place.free_path(client.name(), &file.name).and_then(|path| {
            client.fetch(&token, &file, &path)?;
            Ok(path)
        });
        let is_left = fetched.is_err();
        match fetched {
            Ok(path) => {
                (result.state, result.bytes) = ("written", file.bytes);
                result.path = Some(path);
            }
            Err(problem) => {
                result.reason = Some(plain(&format!(
                    "{problem}; the trace stays on the host for an hour (order {token}, {})",
                    file.name
                )));
            }
        }
        Fetched { row: result, is_left }
    };
    state.rows.into_iter().map(row).collect()
}

impl Destination<'_> {
    /// A path that is free, and taken from now on.
    fn free_path(&self, host: &str, name: &str) -> Result<PathBuf, String> {
        // A name is the agent's word.
        if name.contains('/') || name.starts_with('.') {
            return Err(format!("{name}: expected a plain file name"));
        }
        let host: String =
            host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // Two hosts may have processes of one number.
        let plain = (!self.many || name.starts_with("rank-")).then(|| name.to_owned());
        let numbered = (1..1000).map(|at| format!("{host}-{at}-{name}"));
        let names = plain.into_iter().chain([format!("{host}-{name}")]).chain(numbered);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |path: &PathBuf| !taken.contains(path) && !path.exists();
        let path = names.map(|name| self.folder.join(name)).find(is_free);
        let path = path.ok_or_else(|| format!("{name}: a thousand traces have this name"))?;
        taken.insert(path.clone());
        Ok(path)
    }
}

/// A host without any trace: its row names no process.
fn lost(client: &Client, problem: &str) -> ProcessRow {
    ProcessRow {
        host: Some(client.name().to_owned()),
        pid: 0,
        rank: None,
        state: "lost",
        reason: Some(plain(&format!("{}: {problem}", client.name()))),
        path: None,
        bytes: 0,
        command: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::{Destination, round_up};

    #[test]
    fn traces_of_one_name_never_replace_each_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rank-0.json.gz"), "an earlier one").unwrap();
        let place = Destination { folder: folder.path(), many: true, taken: Mutex::default() };
        let name = |host: &str, name: &str| {
            let path = place.free_path(host, name).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name("a:1", "rank-0.json.gz"), "a-1-rank-0.json.gz");
        assert_eq!(name("a:1", "rank-0.json.gz"), "a-1-1-rank-0.json.gz");
        assert_eq!(name("b", "rank-1.json.gz"), "rank-1.json.gz");
        assert_eq!(name("b", "pid-7.json.gz"), "b-pid-7.json.gz");
        assert!(place.free_path("b", "../x").is_err() && place.free_path("b", ".x").is_err());
    }

    #[test]
    fn multiples_are_round() {
        for (count, round) in [(0, 1), (1, 1), (3, 5), (100, 100), (101, 200), (670, 1000)] {
            assert_eq!(round_up(count), round);
        }
        assert_eq!(round_up(u64::MAX), 1_000_000_000);
    }
}
