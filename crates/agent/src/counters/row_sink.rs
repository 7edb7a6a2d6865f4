//! The destination of counter rows: a JSON file or stdout, and the queue of the hub.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use fleet::proto::Body;
use serde::Serialize;

use super::gpu::GpuIdentity;
use super::interval::{CounterReading, IntervalRow, ReadingTime};
use crate::audit;
use crate::hub::activity::ActivityEntries;
use crate::hub::{Hub, row};
use crate::state::{AgentState, lock};

/// A counter row of a GPU, as it is written to the JSON file.
#[derive(Debug, Serialize)]
struct GpuLine<'a> {
    host: &'a str,
    gpu: u32,
    uuid: &'a str,
    instance: Option<u32>,
    runs: Vec<String>,
    #[serde(flatten)]
    row: &'a IntervalRow,
}

/// The destination of counter rows. Each row goes to a JSON file or stdout, and to the queue of the
/// hub.
pub struct RowSink {
    lines: Option<Box<dyn Write + Send>>,
    hub: Option<Arc<Hub>>,
    /// Rows of the current reading, which are queued for the hub together in one write.
    pending: Vec<Body>,
    start_unix_s: u64,
}

impl RowSink {
    /// Opens the destination. Rows are appended to the file at `path`, or written to stdout if
    /// `path` is `-`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: Option<&Path>, hub: Option<Arc<Hub>>) -> io::Result<Self> {
        let lines: Option<Box<dyn Write + Send>> = match path {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(audit::append(path)?)),
        };
        Ok(Self { lines, hub, pending: Vec::new(), start_unix_s: 0 })
    }

    pub(super) fn is_none(&self) -> bool {
        self.lines.is_none() && self.hub.is_none()
    }

    /// Adds a row to the rows that [`Self::flush`] will queue for the hub.
    pub(super) fn queue(&mut self, start_unix_s: u64, row: impl FnOnce() -> Body) {
        if self.hub.is_some() {
            self.pending.push(row());
            self.start_unix_s = self.start_unix_s.max(start_unix_s);
        }
    }

    /// Adds rows to the pending rows, and queues events for the hub at once.
    pub(super) fn report(&mut self, state: &AgentState, entries: ActivityEntries) {
        self.pending.extend(entries.rows);
        state.queue_events(entries.events);
    }

    /// Queues the pending rows for the hub.
    pub(super) fn flush(&mut self, state: &AgentState) {
        let rows = std::mem::take(&mut self.pending);
        let Some(hub) = self.hub.as_ref().filter(|_| !rows.is_empty()) else { return };
        if let Err(error) = hub.add_rows(self.start_unix_s, rows) {
            state.note(format!("queue of the hub: {error}"));
        }
    }

    pub(super) fn write(&mut self, line: &impl Serialize) {
        let Some(out) = &mut self.lines else { return };
        let mut text = serde_json::to_string(line).unwrap_or_default();
        text.push('\n');
        // Write errors are ignored, because a closed pipe must not stop the agent.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Writes the completed rows of a device.
fn emit(state: &AgentState, sink: &mut RowSink, identity: &GpuIdentity, rows: &[IntervalRow]) {
    if rows.is_empty() || sink.is_none() {
        return;
    }
    let holders = lock(&state.owners).runs_on(&identity.uuid).to_vec();
    let runs: Vec<String> = holders.iter().map(|run| run.job.clone()).collect();
    let length_s = state.config.interval_s();
    for row in rows {
        sink.queue(row.start_unix_s, || row::gpu(identity, &holders, length_s, row));
        sink.write(&GpuLine {
            host: &state.host,
            gpu: identity.index,
            uuid: &identity.uuid,
            instance: identity.instance,
            runs: runs.clone(),
            row,
        });
    }
}

/// Records a reading of a device, or the reason why it is missing. Writes the rows that the reading
/// completes.
pub(super) fn take_reading(
    state: &AgentState,
    uuid: &str,
    moment: ReadingTime,
    reading: Result<CounterReading, String>,
    sink: &mut RowSink,
) {
    let completed_rows = state.with_gpu(uuid, |gpu| {
        let reading = match reading {
            Ok(reading) => {
                gpu.lost = None;
                gpu.xid = reading.xids.last().copied().unwrap_or(gpu.xid);
                gpu.last = Some(reading.clone());
                Some(reading)
            }
            Err(problem) => {
                gpu.lost = Some(problem);
                gpu.last = None;
                gpu.computing.clear();
                None
            }
        };
        let repeated = gpu.intervals.repeated;
        let rows = gpu.intervals.read(moment, reading);
        state.clock.discard(gpu.intervals.repeated - repeated);
        (gpu.identity.clone(), rows)
    });
    if let Some((identity, rows)) = completed_rows {
        emit(state, sink, &identity, &rows);
    }
}
