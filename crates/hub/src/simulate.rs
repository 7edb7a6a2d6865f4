//! `rowmill-hub simulate`: a made-up fleet sends rows to a hub, and the true sums are known.

pub mod fault;
pub mod fleet;
pub mod planted;
pub mod sender;
pub mod truth;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::fault::{SimulatedFault, ahead_s, fault};
use self::fleet::{CLUSTER, FleetSpec, HostRows, SimulatedFleet};
use self::sender::{HubAddress, SenderRound, SenderState, SimulatedAgent, send_rounds};
use self::truth::{FleetTruth, PeriodTruth};
use crate::config::parse_time;
use crate::error::Error;
use crate::log::say;

/// Number of threads that send. Each serves some hosts. While it waits for a commit of the hub, the
/// others send.
const SENDERS: usize = 256;
/// Number of rounds that may wait for a sending thread.
const ROUNDS_WAITING: usize = 2;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// Days before the end in which one workflow is slower than before.
const SLOW_DAYS: u64 = 1;

/// The options of a simulation.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateOptions {
    /// URL of the hub
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9470")]
    pub hub: String,
    /// File with a token of the role agent
    #[arg(long, value_name = "FILE")]
    pub token: PathBuf,
    /// Certificate in PEM by which the hub is known, if no public authority signed it
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub hosts: u64,
    /// GPUs of each host
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: u32,
    /// Seconds of the interval of a row
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Time whose rows are sent first, as fast as the hub takes them
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    pub since: Duration,
    /// End of this time, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS")]
    pub until: Option<u64>,
    /// Time for which rows are then sent at their real pace [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub length: Option<Duration>,
    /// What goes wrong: each except repeated on one of fifty hosts
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub faults: Vec<SimulatedFault>,
    /// File for the true sums, as JSON [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,
}

/// Simulates a fleet until its end or until `stop`. Returns the true sums of its rows, all of which
/// the hub has confirmed unless `stop` ended the simulation.
///
/// # Errors
/// If a file cannot be read, or if the hub refuses rows for good.
pub fn simulate(options: &SimulateOptions, stop: Arc<AtomicBool>) -> Result<FleetTruth, Error> {
    let hub = HubAddress::new(&options.hub, &options.token, options.ca.as_deref())?;
    let interval_s = u64::from(options.interval);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let live_s = options.until.unwrap_or(now_s) / interval_s * interval_s;
    let from_s = live_s.saturating_sub(options.since.as_secs()) / interval_s * interval_s;
    let until_s = options.length.map(|length| live_s + length.as_secs());
    let spec = FleetSpec {
        seed: options.seed,
        hosts: options.hosts as usize,
        gpus: options.gpus,
        interval_s: options.interval,
        slow_from_s: live_s.saturating_sub(SLOW_DAYS * 86_400),
    };
    let mut simulated = SimulatedFleet::new(spec, &options.faults);
    let mut truth = first_truth(&simulated, spec, options);
    (truth.from_unix_s, truth.until_unix_s) = (from_s, from_s);
    let (report_s, week_s) = (until_s.unwrap_or(live_s), 7 * 86_400);
    truth.last_day = PeriodTruth::day_before(report_s);
    truth.week_before = PeriodTruth::day_before(report_s.saturating_sub(week_s));
    let (confirmed, delayed, is_away) = Default::default();
    let state = SenderState { hub, confirmed, delayed, is_away, stop };
    let began = Instant::now();
    thread::scope(|scope| {
        let count = SENDERS.min(spec.hosts);
        let (rounds, threads): (Vec<_>, Vec<_>) = (0..count)
            .map(|sender| {
                let (rounds, received) = sync_channel::<SenderRound>(ROUNDS_WAITING);
                let mut agents = agents_of(sender, count, &simulated, options);
                let state = &state;
                let work = move || send_rounds(&mut agents, &received, state);
                (rounds, scope.spawn(work))
            })
            .unzip();
        let mut said = Instant::now();
        let mut start_s = from_s;
        while !state.stop.load(Ordering::Relaxed) && until_s.is_none_or(|end_s| start_s < end_s) {
            // A row is sent when its interval is over.
            wait_until(start_s + interval_s, live_s, &state.stop);
            if state.stop.load(Ordering::Relaxed) {
                break;
            }
            let is_last = until_s.is_some_and(|end_s| start_s + interval_s >= end_s);
            let is_past = start_s + 2 * interval_s <= live_s;
            let rows = next_rows(&mut simulated, &mut truth, options, start_s);
            let round = SenderRound { start_s, rows, is_past, is_last };
            if !send_round(round, &rounds) {
                // A sending thread has ended by an error, which is returned below.
                break;
            }
            start_s += interval_s;
            truth.until_unix_s = start_s;
            if said.elapsed() > PROGRESS {
                said = Instant::now();
                say(&progress(&state, start_s, began));
            }
        }
        drop(rounds);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        say(&progress(&state, truth.until_unix_s, began));
        truth.finish();
        Ok(truth)
    })
}

fn first_truth(
    simulated: &SimulatedFleet,
    spec: FleetSpec,
    options: &SimulateOptions,
) -> FleetTruth {
    let mut truth = FleetTruth {
        seed: spec.seed,
        hosts: spec.hosts,
        gpus_per_host: spec.gpus,
        interval_s: spec.interval_s,
        ..FleetTruth::default()
    };
    for (at, name) in simulated.names().enumerate() {
        if let Some(fault) = fault(at as u64, &options.faults) {
            truth.faults.entry(fault.name()).or_default().push(name.to_owned());
        }
    }
    truth
}

/// The agents of one sending thread, at the indices of their hosts. The last one sends for the
/// scheduler.
fn agents_of(
    sender: usize,
    senders: usize,
    simulated: &SimulatedFleet,
    options: &SimulateOptions,
) -> Vec<Option<SimulatedAgent>> {
    let all = simulated.names().map(|name| (name, options.faults.as_slice()));
    let agent = |(at, (name, faults)): (usize, (&str, &[SimulatedFault]))| {
        let is_own = at % senders == sender;
        is_own.then(|| SimulatedAgent::new(name, at as u64, options.seed, faults))
    };
    all.chain([(CLUSTER, [].as_slice())]).enumerate().map(agent).collect()
}

/// Simulates one interval, adds its rows to the truth and returns them.
fn next_rows(
    simulated: &mut SimulatedFleet,
    truth: &mut FleetTruth,
    options: &SimulateOptions,
    start_s: u64,
) -> Vec<HostRows> {
    let mut rows = simulated.step(start_s);
    for host in &mut rows {
        host.set_ahead(ahead_s(host.host as u64, &options.faults));
    }
    let names: Vec<&str> = simulated.names().collect();
    truth.add(&rows, &names);
    truth.add_runs(simulated.take_ended());
    truth.add_repeated(simulated.take_repeated());
    rows
}

/// Gives the rows of an interval to the sending threads. Returns whether all of them take rows.
fn send_round(round: SenderRound, rounds: &[SyncSender<SenderRound>]) -> bool {
    let mut parts: Vec<Vec<_>> = rounds.iter().map(|_| Vec::new()).collect();
    for host in round.rows {
        parts[host.host % rounds.len()].push(host);
    }
    let SenderRound { start_s, is_past, is_last, .. } = round;
    let sent = rounds.iter().zip(parts);
    sent.fold(true, |all, (to, rows)| {
        to.send(SenderRound { start_s, rows, is_past, is_last }).is_ok() && all
    })
}

/// Waits until a moment, if it is not before the start of the part at real pace.
fn wait_until(moment_s: u64, live_s: u64, stop: &AtomicBool) {
    let at = UNIX_EPOCH + Duration::from_secs(moment_s);
    while moment_s > live_s && !stop.load(Ordering::Relaxed) {
        match at.duration_since(SystemTime::now()) {
            Ok(left) => thread::sleep(left.min(Duration::from_millis(100))),
            Err(_) => return,
        }
    }
}

fn progress(state: &SenderState, until_s: u64, began: Instant) -> String {
    let until = chrono::DateTime::from_timestamp(until_s.cast_signed(), 0).unwrap_or_default();
    let rows = state.confirmed.load(Ordering::Relaxed);
    let delayed = state.delayed.load(Ordering::Relaxed);
    let rate = rows as f64 / began.elapsed().as_secs_f64();
    let until = until.format("%Y-%m-%d %H:%M:%S");
    format!(
        "{rows} rows confirmed ({rate:.0} per second, {delayed} answers later), until {until} UTC"
    )
}
