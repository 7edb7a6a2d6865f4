//! Explains idle time, which is the gaps between the device rows of each stream and of each device,
//! by cause.
//!
//! The cause for a stream follows from times alone. The cause for a device follows from the
//! activity of the thread that launched the work after the gap.

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

/// The idle time of a rank's streams and devices, with its causes, owners and gaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle<'a> {
    /// One row per stream and cause, which together sum to the window minus the stream's busy time.
    pub streams: Vec<StreamIdle>,
    /// One row per device and cause. The rows of a device sum to its `idle_ns` in
    /// [`breakdown::by_device`](crate::tables::breakdown::by_device).
    pub devices: Vec<DeviceIdle>,
    /// The operators that own most of a device's idle time, sorted by device, longest time first.
    pub owners: Vec<IdleOwner>,
    /// All gaps of each device, sorted by device and start.
    pub gaps: Vec<Gap<'a>>,
}

/// Computes the idle time of the streams and devices that have work in the window. `tree` must be
/// the operator tree of the scope's trace.
///
/// # Cost
/// The cost is `O(n log n)` in the device rows and in the host rows inside gaps.
pub fn compute_idle_time<'a>(
    scope: &Scope<'a>,
    tree: &OperatorTree,
    settings: &IdleSettings,
) -> Idle<'a> {
    let device::DeviceIdleTime { devices, owners, gaps } =
        device::compute_device_idle(scope, tree, settings);
    Idle { streams: stream::compute_stream_idle(scope, settings), devices, owners, gaps }
}
