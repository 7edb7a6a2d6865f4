//! Defines the thresholds for idle time, and the columns that tables of idle time share.

use crate::facts::distribution::{self, Distribution};
use crate::facts::scope::Scope;
use crate::percent::percent;

/// Thresholds that separate the causes of gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleSettings {
    /// A gap shorter than this, before work that was already launched, is the device's own delay
    /// between two rows.
    pub kernel_wait_ns: i64,
    /// Maximum number of owners that are listed per device.
    pub owner_count: usize,
}

impl IdleSettings {
    /// The usual thresholds: 30 µs, as in Holistic Trace Analysis, and ten owners.
    pub const USUAL: Self = Self { kernel_wait_ns: 30_000, owner_count: 10 };
}

/// The columns that rows of streams and rows of devices have in common.
pub(super) struct IdleShare {
    pub spread: Distribution,
    pub idle_pct: Option<f64>,
    pub window_pct: Option<f64>,
}

impl IdleShare {
    /// Describes the gaps of one cause, with their shares of the total idle time and of the window.
    pub fn new(scope: &Scope<'_>, mut gaps: Vec<i64>, idle_ns: i64) -> Self {
        let spread = distribution::describe_values(&mut gaps);
        Self {
            idle_pct: percent(spread.total, idle_ns),
            window_pct: percent(spread.total, scope.window.length()),
            spread,
        }
    }
}
