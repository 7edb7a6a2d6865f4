//! Handles failed requests to the hub: reports them, and determines how long to wait before a
//! retry.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::outbox::{Hub, TICK};
use crate::state::{AgentState, unix_ns};

/// The first wait after a failed request. Each further wait is twice as long.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(500);
/// The longest wait after a failed request.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Records whether the hub answered a request, and notes the first failure of a series.
pub(super) fn record_outcome(state: &AgentState, hub: &Hub, problem: Option<&str>) {
    let was_up = hub.is_up.swap(problem.is_none(), Ordering::Relaxed);
    let Some(problem) = problem else { return };
    if hub.failures.fetch_add(1, Ordering::Relaxed) == 0 || was_up {
        state.note(format!("hub {}: {problem}", hub.link.url()));
    }
}

/// Waits after a failed request and returns the next, longer wait. Half of the wait is random, so
/// that thousands of agents do not reconnect at once.
pub(super) fn pause(state: &AgentState, wait: Duration) -> Duration {
    let chance = u32::from_le_bytes([unix_ns().to_le_bytes()[1]; 4]) % 256;
    let until = Instant::now() + wait / 2 + wait * chance / 512;
    while !state.is_ending() && Instant::now() < until {
        std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
    }
    (wait * 2).min(WAIT_MAX)
}
