//! The command `rowmill fleet trace`, which orders traces from all hosts at once, fetches a trace
//! or a reason for every rank, and writes the report.
//!
//! `rowmill capture` uses the same code if an agent owns the socket of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet::capture::round_start;
use fleet::tracing::{self, unix_ms};
use fleet::wire::{self, RecordWhen, TraceOrder, TraceRow, TraceState};

use super::reach::{PATIENCE, open_clients, say_problem};
use super::select::{self, PidsByHost, StatusAnswer};
use crate::agent_client::{Client, ask_each};
use crate::args::{Align, FleetTrace, ProcessSelection, With};
use crate::capture_outcome::{self as outcome, CaptureOutcome, CaptureRow};
use crate::capture_request::check_empty_folder;
use setup::Session;
use setup::error::{Error, RunError};
use setup::error_text::plain;
use setup::interrupt;
use setup::{output, render};

/// Time between two queries for the state of an order.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A host whose agent does not answer for this long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Number of iterations at whose multiples a recording starts, if no process reports its step time.
const DEFAULT_ALIGN: u32 = 100;
/// How long the iterations between two multiples should take. All ranks must receive the request
/// between the same two multiples, so this is several times the interval at which they poll.
const ALIGN_TIME: Duration = Duration::from_secs(20);
/// Time for the orders to reach all hosts before the first process is answered.
const ORDER_TRANSIT: Duration = Duration::from_millis(1500);

/// The traces to order from all hosts.
pub struct WantedTraces<'a> {
    /// Process ids to record, by host. If the map is empty, all processes of every host are
    /// recorded.
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
    let answers = ask_each(&clients, Client::fetch_status);
    let statuses = || select::by_host(&clients, &answers);
    let mut selection = args.select.clone();
    // The hosts of a Slurm job may also run other jobs, so the selection is restricted to the job.
    if selection.is_all() {
        selection.run = args.reach.slurm.map(|job| job.to_string());
    }
    let mut pids = select::choose(statuses(), &selection)?;
    select::check_one_job(statuses(), &pids)?;
    if selection.is_all() {
        // Hosts without processes also receive an order, because their agents report why there are
        // no processes.
        for (host, _) in statuses() {
            pids.entry(host.to_owned()).or_default();
        }
    }
    let made = output::folder(&args.output)?;
    let stop = interrupt::stop_flag("ending the capture");
    for (client, answer) in clients.iter().zip(&answers) {
        match answer {
            Ok((_, clock)) => session.console.say(format_args!(
                "{}: {}, clock {}",
                client.name(),
                render::counted(pids.get(client.name()).map_or(0, Vec::len) as u64, "process"),
                clock.describe()
            )),
            Err(problem) => say_problem(client, problem, session),
        }
    }
    let align = match args.align {
        Align::Given(align) => align,
        Align::Auto => choose_align(select::chosen_rows(statuses(), &pids).collect(), session),
    };
    let when = RecordWhen::Iterations { count: args.iterations, align };
    let (size_max, timeout) = (args.size_max, args.timeout);
    let output = args.output.as_path();
    let wanted = WantedTraces { pids, when, with: &args.with, size_max, timeout, output };
    let rows = check_any_order(record(&clients, &answers, &wanted, session, &stop))?;
    let outcome = CaptureOutcome::new(&args.output, rows);
    let code = outcome::report_outcome(outcome, session, stop.load(Ordering::SeqCst));
    drop(made);
    code
}

/// Traces the processes of this host through its agent, on behalf of `rowmill capture`.
pub fn trace_local_host(
    client: Client,
    wanted: &WantedTraces<'_>,
    session: &Session,
) -> Result<ExitCode, Error> {
    let clients = [client];
    let answers = ask_each(&clients, Client::fetch_status);
    // Without --pid all processes of the host are recorded, so they must belong to one job.
    if wanted.pids.values().all(Vec::is_empty) {
        let statuses = select::by_host(&clients, &answers);
        let all = select::choose(statuses.clone(), &ProcessSelection::default())?;
        select::check_one_job(statuses, &all)?;
    }
    let stop = interrupt::stop_flag("ending the capture");
    let rows = check_any_order(record(&clients, &answers, wanted, session, &stop))?;
    let outcome = CaptureOutcome::new(wanted.output, rows);
    outcome::report_outcome(outcome, session, stop.load(Ordering::SeqCst))
}

/// Chooses the multiple of iterations at which the recording starts. The multiple is a round number
/// of iterations that together take at least [`ALIGN_TIME`], by the median step time of the chosen
/// processes.
fn choose_align(chosen: Vec<&wire::ProcessRow>, session: &Session) -> u32 {
    let steps = chosen.iter().filter_map(|process| process.step_ns).filter(|&ns| ns > 0);
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    let Some(&median_ns) = steps.get(steps.len() / 2) else {
        session.console.say(format_args!(
            "no process reports its steps: recording from the next multiple of {DEFAULT_ALIGN}"
        ));
        return DEFAULT_ALIGN;
    };
    let align =
        round_up(u64::try_from(ALIGN_TIME.as_nanos()).unwrap_or(u64::MAX).div_ceil(median_ns));
    session.console.say(format_args!(
        "a step takes {:.1} ms: recording from the next multiple of {align}",
        median_ns as f64 * 1e-6
    ));
    align
}

/// Rounds up to the next number in the series 1, 2, 5, 10, 20, ….
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

/// Orders traces from all hosts at once, and waits until every process has a trace or a reason why
/// it has none.
fn record(
    clients: &[Client],
    answers: &[StatusAnswer],
    wanted: &WantedTraces<'_>,
    session: &Session,
    stop: &AtomicBool,
) -> Vec<CaptureRow> {
    let token = tracing::unique_token();
    let start = choose_start(answers);
    let known: BTreeMap<&str, &StatusAnswer> =
        clients.iter().map(Client::name).zip(answers).collect();
    let many = clients.len() > 1;
    let place = Destination { folder: wanted.output, many, taken: Mutex::default() };
    let rows = ask_each(clients, |client| {
        let offset_ns = match known.get(client.name()) {
            Some(Ok((_, clock))) => clock.offset_ns,
            Some(Err(problem)) => return vec![lost_host(client, problem)],
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
            run: None,
            when: wanted.when,
            with: wanted.with.iter().map(|with| format!("{with:?}").to_lowercase()).collect(),
            size_max: wanted.size_max,
            patience_ms: u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX),
            // A single agent finds the best start time itself. Several agents need a common start,
            // given by each host's clock.
            not_before_unix_ms: many.then(|| start.saturating_add_signed(offset_ns / 1_000_000)),
        };
        let state = match client.order_traces(&order) {
            Ok(state) => state,
            Err(problem) => return vec![lost_host(client, &problem)],
        };
        let state = watch_order(client, state, session, stop);
        let rows = fetch_traces(client, state, &place);
        // If a trace could not be fetched, its host keeps it until it expires, so that the user can
        // still fetch it. After Ctrl-C the traces are not wanted, so they are deleted.
        if stop.load(Ordering::SeqCst) || rows.iter().all(|row| !row.is_on_host) {
            client.delete_order(&token);
        }
        rows.into_iter().map(|fetched| fetched.row).collect()
    });
    rows.into_iter().flatten().collect()
}

/// Returns the rows if at least one host accepted its order.
///
/// # Errors
/// No host accepted its order.
fn check_any_order(rows: Vec<CaptureRow>) -> Result<Vec<CaptureRow>, Error> {
    if rows.iter().any(|row| row.pid != 0) {
        return Ok(rows);
    }
    let problems: Vec<String> = rows.into_iter().filter_map(|row| row.reason).collect();
    Err(RunError::NoOrder { problems: problems.join("; ") }.into())
}

/// Chooses the time from which agents answer polls, in Unix milliseconds of this host's clock. The
/// time is after the longest pause between the polls of all hosts, so that all ranks receive their
/// requests as simultaneously as their polls allow.
fn choose_start(answers: &[StatusAnswer]) -> u64 {
    let mut polled = Vec::new();
    for (status, clock) in answers.iter().flatten() {
        let at = i64::try_from(status.unix_ns).unwrap_or(i64::MAX) - clock.offset_ns;
        let at = Duration::from_nanos(u64::try_from(at).unwrap_or(0));
        let rows = status.processes.iter().filter(|process| process.skip.is_none());
        polled.extend(rows.map(|row| at.saturating_sub(Duration::from_millis(row.polled_ms))));
    }
    let now = Duration::from_millis(unix_ms()) + ORDER_TRANSIT;
    u64::try_from(round_start(now, &polled).as_millis()).unwrap_or(u64::MAX)
}

/// Queries the state of an order and prints every change, until the order is over, the host no
/// longer answers, or the user stops the capture.
fn watch_order(
    client: &Client,
    mut state: TraceState,
    session: &Session,
    stop: &AtomicBool,
) -> TraceState {
    let mut last_answer = Instant::now();
    let mut printed: BTreeMap<u32, String> = BTreeMap::new();
    loop {
        for row in &state.rows {
            if printed.insert(row.pid, row.state.clone()).as_deref() != Some(&row.state) {
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
        std::thread::sleep(POLL_INTERVAL);
        let gave_up = stop.load(Ordering::SeqCst);
        match client.fetch_state(&state.token) {
            Ok(None) => return mark_lost(state, "the agent restarted and lost the order"),
            Ok(Some(now)) if !gave_up => {
                (state, last_answer) = (now, Instant::now());
            }
            Ok(Some(_)) => return mark_lost(state, "the capture was interrupted"),
            Err(problem) if last_answer.elapsed() > SILENCE_MAX || gave_up => {
                let why = format!(
                    "its agent has not answered for {} s: {problem}",
                    last_answer.elapsed().as_secs()
                );
                return mark_lost(state, &why);
            }
            // A failed query is repeated until the host has been silent for [`SILENCE_MAX`].
            Err(_) => {}
        }
    }
}

/// Marks all processes that have no trace as lost, for the reason `why`.
fn mark_lost(mut state: TraceState, why: &str) -> TraceState {
    for row in state.rows.iter_mut().filter(|row| row.file.is_none() && row.state != "lost") {
        row.state = "lost".to_owned();
        row.reason = Some(why.to_owned());
    }
    state
}

/// The result of fetching the trace of one process.
struct FetchedTrace {
    row: CaptureRow,
    /// Whether the trace was written but could not be fetched, so that it remains on its host.
    is_on_host: bool,
}

/// The folder for the traces of all hosts. The folder assigns free file names, so that traces with
/// the same name do not overwrite each other.
struct Destination<'a> {
    folder: &'a Path,
    many: bool,
    taken: Mutex<BTreeSet<PathBuf>>,
}

fn fetch_traces(client: &Client, state: TraceState, place: &Destination<'_>) -> Vec<FetchedTrace> {
    let token = state.token.clone();
    let row = |row: TraceRow| {
        let mut result = CaptureRow {
            host: Some(client.name().to_owned()),
            pid: row.pid,
            rank: row.rank,
            state: "lost",
            reason: row.reason.map(|why| plain(&why)),
            path: None,
            bytes: 0,
            command: row.command,
        };
        let Some(file) = row.file else { return FetchedTrace { row: result, is_on_host: false } };
        let fetched = place.reserve_path(client.name(), &file.name).and_then(|path| {
            client.fetch_trace(&token, &file, &path)?;
            Ok(path)
        });
        let is_on_host = fetched.is_err();
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
        FetchedTrace { row: result, is_on_host }
    };
    state.rows.into_iter().map(row).collect()
}

impl Destination<'_> {
    /// Reserves a path for the trace `name` of `host`. If the plain name is taken, the host's name
    /// is put in front of it. If the name with the host is also taken, a number follows the host's
    /// name.
    fn reserve_path(&self, host: &str, name: &str) -> Result<PathBuf, String> {
        // The name comes from the agent, so it is checked: it must not lead out of the folder.
        if name.contains('/') || name.starts_with('.') {
            return Err(format!("{name}: expected a plain file name"));
        }
        let host: String =
            host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // Process ids are unique only on one host, whereas ranks are unique in the whole job.
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

/// Builds the row of a host that gave no trace at all. The process id in this row is 0, because no
/// process is known.
fn lost_host(client: &Client, problem: &str) -> CaptureRow {
    CaptureRow {
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
    fn traces_of_the_same_name_get_different_paths() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rank-0.json.gz"), "an earlier one").unwrap();
        let place = Destination { folder: folder.path(), many: true, taken: Mutex::default() };
        let name = |host: &str, name: &str| {
            let path = place.reserve_path(host, name).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name("a:1", "rank-0.json.gz"), "a-1-rank-0.json.gz");
        assert_eq!(name("a:1", "rank-0.json.gz"), "a-1-1-rank-0.json.gz");
        assert_eq!(name("b", "rank-1.json.gz"), "rank-1.json.gz");
        assert_eq!(name("b", "pid-7.json.gz"), "b-pid-7.json.gz");
        assert!(place.reserve_path("b", "../x").is_err() && place.reserve_path("b", ".x").is_err());
    }

    #[test]
    fn multiples_are_rounded_up_to_one_two_or_five_times_a_power_of_ten() {
        for (count, round) in [(0, 1), (1, 1), (3, 5), (100, 100), (101, 200), (670, 1000)] {
            assert_eq!(round_up(count), round);
        }
        assert_eq!(round_up(u64::MAX), 1_000_000_000);
    }
}
