//! Explains idle time: the gaps between device rows of each stream and device, by cause.
//!
//! For a stream, the cause follows from times alone; for a device, from what the thread did that
//! launched the work ending the gap.

mod device;
mod share;
mod stream;
#[cfg(test)]
mod tests;
mod thread;

use serde::Serialize;

use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;

pub use share::IdleSettings;

pub use device::{DeviceCause, DeviceIdle, Gap, IdleOwner};
pub(crate) use thread::is_input;

pub use stream::{StreamCause, StreamIdle};

/// The idle time of a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// One row per stream and cause; a stream's rows sum to the window without its busy time.
    pub streams: Vec<StreamIdle>,
    /// One row per device and cause; a device's rows sum to its `idle_ns` in
    /// [`breakdown::by_device`](crate::tables::breakdown::by_device).
    pub devices: Vec<DeviceIdle>,
    /// The operators that own most of a device's idle time, by device, the longest first.
    pub owners: Vec<IdleOwner>,
    /// Every gap of each device, by device and start.
    pub gaps: Vec<Gap>,
}

/// Computes the idle time of streams and devices with work in the window. `tree` must be that of
/// the trace.
///
/// # Cost
/// `O(n log n)` in the device rows and the host rows inside gaps.
pub fn compute_idle_time(scope: &Scope<'_>, tree: &OperatorTree, settings: &IdleSettings) -> Idle {
    let device::DeviceIdleTime { devices, owners, gaps } =
        device::compute_device_idle(scope, tree, settings);
    Idle { streams: stream::compute_stream_idle(scope, settings), devices, owners, gaps }
}
