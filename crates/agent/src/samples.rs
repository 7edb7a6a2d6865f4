//! Samples processes on request: their use of resources, and where their threads wait.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use fleet::capture::choose;
use fleet::process::Process;
use fleet::proto::{Body, HostEvent};
use fleet::sampling::Sampler;
use fleet::tracing::unix_ms;
use fleet::wire::{SampleOrder, Sampled, Samples};
use serde_json::json;

use crate::hub::row;
use crate::state::{AgentState, lock};
use crate::uids::Uids;

/// The longest duration of a sampling order, and the shortest interval between two samples, in
/// milliseconds.
const BOUNDS_MS: (u64, u64) = (60_000, 10);
/// Largest number of sampling orders that run at the same time. Each caller may run one.
const ORDERS_MAX: usize = 8;
/// Number of places of a process that are reported to the hub.
const PLACES_REPORTED: usize = 10;
/// Largest number of processes of one sampling order.
const PROCESSES_MAX: usize = 64;

/// Samples the processes of an order for the duration that the order states.
///
/// # Errors
/// If the order is invalid, another one of the caller is running, or the caller may see none of the
/// processes.
pub fn take(state: &AgentState, order: &SampleOrder, uids: &Uids) -> Result<Samples, String> {
    let (longest, shortest) = BOUNDS_MS;
    let (length, every) = (order.length_ms, order.every_ms);
    if length > longest {
        return Err(format!(
            "length of the sample: expected at most {longest} ms, got {length} ms"
        ));
    }
    if !(shortest..=length).contains(&every) {
        let expected = format!("{shortest} ms to the length of the sample, {length} ms");
        return Err(format!("interval between samples: expected {expected}, got {every} ms"));
    }
    let _turn = Turn::take(state, uids)?;
    let processes = processes(state, order, uids)?;
    let began = Instant::now();
    let length = Duration::from_millis(order.length_ms);
    let before = cpu_ns();
    let mut sampler = Sampler::begin(processes);
    while began.elapsed() < length && !state.is_ending() {
        thread::sleep(Duration::from_millis(order.every_ms));
        sampler.look();
    }
    let length_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let processes = sampler.end();
    let spent_ms = cpu_ns().zip(before).map(|(now, before)| (now - before) as f64 * 1e-6);
    let event = |sampled: &Sampled| sample_event(state, sampled, length_ms);
    state.queue_events(processes.iter().map(event).collect());
    Ok(Samples { length_ms, spent_ms, processes })
}

/// Creates the event that reports the most frequent places of a process to the hub. The command
/// line stays on the host, because it may contain secrets.
fn sample_event(state: &AgentState, sampled: &Sampled, length_ms: u64) -> Body {
    let owners = lock(&state.owners);
    let places = &sampled.waiting[..sampled.waiting.len().min(PLACES_REPORTED)];
    let details = json!({ "looks": sampled.looks, "used": sampled.used, "waiting": places });
    Body::Event(Box::new(HostEvent {
        kind: "sample".to_owned(),
        start_unix_ms: unix_ms().saturating_sub(length_ms),
        length_ms,
        is_over: true,
        run: owners.runs().get(&sampled.pid).map(row::run),
        pid: Some(sampled.pid),
        rank: sampled.rank,
        details: details.to_string(),
    }))
}

/// Marks a caller's order as running for as long as this guard lives.
struct Turn<'a> {
    state: &'a AgentState,
    uids: &'a Uids,
}

impl<'a> Turn<'a> {
    fn take(state: &'a AgentState, uids: &'a Uids) -> Result<Self, String> {
        let mut running = lock(&state.sampling);
        if running.contains(uids) || running.len() >= ORDERS_MAX {
            return Err("another sampling order is running; try again when it has ended".to_owned());
        }
        running.push(uids.clone());
        Ok(Self { state, uids })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.state.sampling).retain(|uids| uids != self.uids);
    }
}

/// CPU time of the calling thread in nanoseconds, if the kernel reports it.
fn cpu_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn processes(state: &AgentState, order: &SampleOrder, uids: &Uids) -> Result<Vec<Process>, String> {
    state.look();
    let asked = lock(&state.roster).processes();
    let found: Vec<Process> = if !order.pids.is_empty() {
        let look =
            |&pid: &u32| Process::read(pid).ok_or_else(|| format!("process {pid}: has ended"));
        order.pids.iter().take(PROCESSES_MAX + 1).map(look).collect::<Result<_, _>>()?
    } else if let Some(run) = &order.run {
        let owners = lock(&state.owners);
        let runs = owners.runs();
        let is_of = |process: &Process| runs.get(&process.pid).is_some_and(|of| of.is_named(run));
        asked.into_iter().filter(is_of).collect()
    } else {
        let choices = choose(&asked, &[], 0);
        let chosen = asked.into_iter().zip(choices).filter(|(_, (_, skip))| skip.is_none());
        chosen.map(|(process, _)| process).collect()
    };
    let all = found.len();
    let own: Vec<Process> = found.into_iter().filter(|process| uids.has(process.uid)).collect();
    match (all, own.len()) {
        (0, _) => {
            Err("no process to sample: no process polls for traces, or none of this run".to_owned())
        }
        (_, 0) => Err("no process to sample: all belong to another user".to_owned()),
        (_, count) if count > PROCESSES_MAX => {
            Err(format!("expected at most {PROCESSES_MAX} processes, got {count}"))
        }
        _ => Ok(own),
    }
}
