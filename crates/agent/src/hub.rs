//! The connection to the hub. Rows are sent from a queue on disk. Orders arrive by long poll, so
//! that the host opens no port. Counters, pages and traces work without a hub, or while it is
//! unreachable.

use std::sync::Arc;

use crate::state::AgentState;
use crate::traces::Traces;
use backoff::{WAIT_MIN, pause, record_outcome};
use outbox::Delivery;

pub mod activity;
mod backoff;
mod link;
mod orders;
mod outbox;
mod queue;
pub mod row;

pub use outbox::Hub;

/// Largest number of queue entries in one message to the hub.
const BATCH_ENTRIES: usize = 512;
/// Starts the threads that send rows and fetch orders, if a hub is configured.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn start(state: &Arc<AgentState>, traces: &Arc<Traces>) -> std::io::Result<()> {
    let Some(hub) = &state.hub else { return Ok(()) };
    let builder =
        |name: &str| std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10);
    let (own, to) = (Arc::clone(state), Arc::clone(hub));
    builder("hub rows").spawn(move || send(&own, &to))?;
    orders::start(state, hub, traces, builder)
}

fn send(state: &AgentState, hub: &Hub) {
    let mut wait = WAIT_MIN;
    let mut alone = 0_usize;
    // After the hub refuses a batch, its entries are sent one by one, so that only the refused
    // entry is dropped.
    while !state.is_ending() {
        let limit = if alone > 0 { 1 } else { BATCH_ENTRIES };
        match hub.deliver(limit) {
            Delivery::Idle => hub.wait(),
            Delivery::Sent => {
                record_outcome(state, hub, None);
                (wait, alone) = (WAIT_MIN, alone.saturating_sub(1));
            }
            Delivery::Refused(why) => {
                state.note(format!("hub {}: refuses rows: {why}", hub.link.url()));
                alone = if alone > 0 { alone - 1 } else { BATCH_ENTRIES };
            }
            Delivery::Failed(why) => {
                record_outcome(state, hub, Some(&why));
                wait = pause(state, wait);
            }
        }
    }
}

#[cfg(test)]
mod tests;
