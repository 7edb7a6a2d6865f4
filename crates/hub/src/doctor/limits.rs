//! The thresholds of all rules, each with its source or reason.

use serde::Serialize;

/// A threshold of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DoctorLimit {
    pub name: &'static str,
    pub value: f64,
    /// `share`, `s`, `×` or `1`.
    pub unit: &'static str,
    /// Source or reason of the value.
    pub why: &'static str,
}

const fn limit(
    name: &'static str,
    value: f64,
    unit: &'static str,
    why: &'static str,
) -> DoctorLimit {
    DoctorLimit { name, value, unit, why }
}

/// What a condition over time needs, so that a short start or a single interval does not count.
pub const TIME_MIN: DoctorLimit =
    limit("least time", 600.0, "s", "shorter times are starts, checkpoints and evaluations");
pub const SHARE_MIN: DoctorLimit =
    limit("least share of the time", 0.1, "share", "what is rarer costs less than 10 %");
pub const CELLS_MIN: DoctorLimit =
    limit("least intervals", 10.0, "1", "a mean of fewer differs by chance");

pub const CPU_BUSY: DoctorLimit =
    limit("CPUs busy", 0.9, "share", "above 90 %, threads wait for CPUs as queueing theory says");
pub const GPU_WAITS: DoctorLimit =
    limit("GPUs busy, less than", 0.5, "share", "the GPUs wait for most of the time");
pub const IO_PRESSURE: DoctorLimit = limit(
    "a task waits for disks",
    0.3,
    "share",
    "pressure of the kernel (PSI, some); a loader that is ahead of the GPUs waits seldom",
);
pub const MEMORY_AVAILABLE: DoctorLimit = limit(
    "available memory, less than",
    0.05,
    "share",
    "with less, the kernel reclaims pages all the time, and ends processes at a small peak",
);
pub const MEMORY_PRESSURE: DoctorLimit = limit(
    "a task waits for memory",
    0.1,
    "share",
    "pressure of the kernel (PSI, some); systemd-oomd ends programs at 0.6 of full pressure",
);
pub const THROTTLED_S: DoctorLimit = limit("throttled", 60.0, "s", "as in the list of sick hosts");
pub const THROTTLED: DoctorLimit =
    limit("throttled", 0.01, "share", "less costs under 1 % of the GPU's time");
pub const IDLE_S: DoctorLimit =
    limit("held and idle", 1800.0, "s", "half an hour is longer than starts and checkpoints take");
pub const UNEVEN: DoctorLimit = limit(
    "difference from the median GPU",
    0.25,
    "share",
    "five times what means of ten intervals differ by if each varies by 15 %",
);
pub const GPUS_MIN: DoctorLimit =
    limit("least GPUs", 3.0, "1", "of two GPUs, neither is the usual one");
pub const SM_ACTIVE: DoctorLimit = limit(
    "SM active while busy, less than",
    0.5,
    "share",
    "NVIDIA DCGM: below 0.5 \"likely indicates ineffective GPU usage\"",
);
pub const ERRORS: DoctorLimit =
    limit("errors", 1.0, "1", "XID errors and uncorrected memory errors never are usual");
pub const HUNG: DoctorLimit = limit("no step for", 0.0, "s", "the agent decides what hangs");
pub const VARIES: DoctorLimit = limit(
    "95th percentile over median",
    1.5,
    "×",
    "steps with the same work differ by a few percent",
);
pub const GROWS: DoctorLimit = limit(
    "last third over first third",
    1.2,
    "×",
    "more than the 15 % that count as usual when the hub watches a run",
);
