//! Metrics of the agent itself: its connections, its resource use, and missing capabilities.

use fleet::server::ServerTally;

use super::{Families, Metric};
use crate::state::AgentState;

/// Adds the metrics of the agent itself to a page.
pub fn add(out: &mut Families, state: &AgentState) {
    let version =
        vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("host", state.host.clone())];
    out.add(Metric::info("rowmill_agent", "Version and host of the agent."), version, 1.0);
    let tally = state.server.tally();
    let seen = state.server.seen().len() as f64;
    out.add(
        Metric::gauge("rowmill_processes", "Number of processes that poll for traces."),
        vec![],
        seen,
    );
    let polls = Metric::counter("rowmill_polls", "Number of polls, by outcome.");
    for (outcome, count) in [
        ("answered", tally.answered),
        ("late", tally.late),
        ("refused", tally.refused),
        ("dropped", tally.dropped),
    ] {
        out.add(polls, vec![("outcome", outcome.to_owned())], count as f64);
    }
    let within = Metric::counter(
        "rowmill_polls_within",
        "Number of answers within the latency in the label, in seconds.",
    );
    for (bound_us, count) in ServerTally::BOUNDS_US.iter().zip(tally.within_us) {
        let bound = format!("{}", *bound_us as f64 / 1e6);
        out.add(within, vec![("seconds", bound)], count as f64);
    }
    let refused = Metric::counter(
        "rowmill_connections_refused",
        "Number of connections that were refused or closed to make room, by endpoint.",
    );
    for (endpoint, count) in state.gates.refused() {
        out.add(refused, vec![("endpoint", endpoint.to_owned())], count as f64);
    }
    let spooled = Metric::gauge("rowmill_spool_bytes", "Bytes of traces waiting to be fetched.");
    out.add(spooled, vec![], state.spool.used() as f64);
    add_hub(out, state);
    add_clock(out, state);
    let missing = state.all_notes().len() as f64;
    let help = "Number of notes about missing capabilities; `rowmill fleet doctor` lists them.";
    out.add(Metric::gauge("rowmill_agent_notes", help), vec![], missing);
    add_readings(out, state);
    let up = state.up().as_secs_f64();
    out.add(
        Metric::gauge("rowmill_agent_uptime_seconds", "Seconds since the agent started."),
        vec![],
        up,
    );
    if let Ok(own) = procfs::process::Process::myself().and_then(|own| own.stat()) {
        let cpu = (own.utime + own.stime) as f64 / procfs::ticks_per_second().max(1) as f64;
        out.add(
            Metric::counter("process_cpu_seconds", "CPU time of the agent in seconds."),
            vec![],
            cpu,
        );
        let resident = own.rss as f64 * procfs::page_size() as f64;
        out.add(
            Metric::gauge(
                "process_resident_memory_bytes",
                "Resident memory of the agent in bytes.",
            ),
            vec![],
            resident,
        );
    }
}

/// Adds metrics of the counter readings: their age, the driver's state and the number of GPUs.
fn add_readings(out: &mut Families, state: &AgentState) {
    let gauge = |name, help| Metric::gauge(name, help);
    let age = state.reading_age().as_secs_f64();
    let help = "Seconds since the last complete reading; it grows while a driver call hangs.";
    out.add(gauge("rowmill_reading_age_seconds", help), vec![], age);
    let driver = f64::from(u8::from(state.has_driver()));
    out.add(gauge("rowmill_nvml_up", "Whether the GPU driver responds."), vec![], driver);
    let count = state.gpu_count() as f64;
    out.add(gauge("rowmill_gpus", "Number of whole GPUs that can be read."), vec![], count);
    let expected = state.config.expected_gpus.map(f64::from);
    out.add(
        gauge("rowmill_gpus_expected", "Number of GPUs that the host should have."),
        vec![],
        expected,
    );
}

/// Adds metrics of jumps of the wall clock, and of rows that were discarded because of such jumps.
fn add_clock(out: &mut Families, state: &AgentState) {
    let help = "Number of jumps of the wall clock by more than half a second.";
    let jumps = Metric::counter("rowmill_clock_jumps", help);
    for (direction, count) in state.clock.jumps() {
        out.add(jumps, vec![("direction", direction.to_owned())], count as f64);
    }
    let help = "Number of rows discarded because their interval had already been written.";
    let discarded = Metric::counter("rowmill_rows_discarded", help);
    let before = state.hub.as_ref().map_or(0, |hub| hub.tally().repeated);
    for (reason, count) in [("clock", state.clock.discarded()), ("restart", before)] {
        out.add(discarded, vec![("reason", reason.to_owned())], count as f64);
    }
}

/// Adds metrics of the queue for the hub, if a hub is configured.
fn add_hub(out: &mut Families, state: &AgentState) {
    let Some(tally) = state.hub.as_ref().map(|hub| hub.tally()) else { return };
    let up = f64::from(u8::from(tally.is_up));
    out.add(
        Metric::gauge("rowmill_hub_up", "Whether the hub answered the last request."),
        vec![],
        up,
    );
    let waiting =
        Metric::gauge("rowmill_hub_queue_entries", "Number of entries waiting for the hub.");
    out.add(waiting, vec![], tally.queued as f64);
    let bytes = Metric::gauge("rowmill_hub_queue_bytes", "Bytes of the hub queue on disk.");
    out.add(bytes, vec![], tally.bytes as f64);
    let entries = Metric::counter("rowmill_hub_entries", "Number of queue entries, by outcome.");
    for (outcome, count) in [("sent", tally.sent), ("dropped", tally.dropped)] {
        out.add(entries, vec![("outcome", outcome.to_owned())], count as f64);
    }
    let failures = Metric::counter("rowmill_hub_failures", "Number of failed requests to the hub.");
    out.add(failures, vec![], tally.failures as f64);
}
