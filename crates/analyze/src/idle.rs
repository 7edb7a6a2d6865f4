//! Why streams and devices do nothing: the gaps between device rows, by cause.
//!
//! Of a stream the cause is told by times alone; of a device by what the thread did that launched
//! the work ending the gap. Knows no remedies.

mod device;
mod stream;
#[cfg(test)]
mod tests;
mod thread;

use serde::Serialize;

use crate::distribution::{self, Distribution};
use crate::percent;
use crate::scope::Scope;
use crate::tree::Tree;

pub use device::{DeviceCause, DeviceIdle, Gap, IdleOwner};
pub(crate) use thread::INPUT;

pub use stream::{StreamCause, StreamIdle};

/// What counts as what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A shorter wait of work that was launched before is what the device needs between two rows.
    pub kernel_wait_ns: i64,
    /// How many owners of a device's idle time are listed.
    pub owner_count: usize,
}

impl Settings {
    /// 30 µs, as Holistic Trace Analysis has it, and ten owners.
    pub const USUAL: Self = Self { kernel_wait_ns: 30_000, owner_count: 10 };
}

/// The idle time of a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// By stream and cause; a stream's rows sum to the window without its busy time.
    pub streams: Vec<StreamIdle>,
    /// By device and cause; a device's rows sum to its `idle_ns` in
    /// [`breakdown::by_device`](crate::breakdown::by_device).
    pub devices: Vec<DeviceIdle>,
    /// The operators that own most of a device's idle time, by device, the longest first.
    pub owners: Vec<IdleOwner>,
    /// Every gap of each device, by device and start.
    pub gaps: Vec<Gap>,
}

/// The idle time of streams and devices with work in the window; `tree` is that of the trace.
///
/// # Cost
/// `O(n log n)` in the device rows and the host rows inside gaps.
pub fn of(scope: &Scope<'_>, tree: &Tree, settings: &Settings) -> Idle {
    let device::Found { devices, owners, gaps } = device::of(scope, tree, settings);
    Idle { streams: stream::of(scope, settings), devices, owners, gaps }
}

/// What the rows of streams and devices have in common.
struct Share {
    spread: Distribution,
    idle_pct: Option<f64>,
    window_pct: Option<f64>,
}

impl Share {
    fn new(scope: &Scope<'_>, mut gaps: Vec<i64>, idle_ns: i64) -> Self {
        let spread = distribution::of(&mut gaps);
        Self {
            idle_pct: percent(spread.total, idle_ns),
            window_pct: percent(spread.total, scope.window.length()),
            spread,
        }
    }
}
