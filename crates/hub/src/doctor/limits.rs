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

/// Declares thresholds, one a line: name of the constant, name, value, unit, and source or reason.
macro_rules! limits {
    ($(
        $(#[$about:meta])*
        $constant:ident: $name:literal, $value:literal, $unit:literal, $why:literal;
    )*) => {
        $($(#[$about])* pub const $constant: DoctorLimit =
            DoctorLimit { name: $name, value: $value, unit: $unit, why: $why };)*
    };
}

limits! {
    /// What a condition over time needs, so that a short start or a single interval does not count.
    TIME_MIN: "least time", 600.0, "s", "shorter times are starts, checkpoints and evaluations";
    SHARE_MIN: "least share of the time", 0.1, "share", "what is rarer costs less than 10 %";
    CELLS_MIN: "least intervals", 10.0, "1", "a mean of fewer differs by chance";
    CPU_BUSY: "CPUs busy", 0.9, "share",
        "above 90 %, threads wait for CPUs as queueing theory says";
    GPU_WAITS: "GPUs busy, less than", 0.5, "share", "the GPUs wait for most of the time";
    IO_PRESSURE: "a task waits for disks", 0.3, "share",
        "pressure of the kernel (PSI, some); a loader that is ahead of the GPUs waits seldom";
    MEMORY_AVAILABLE: "available memory, less than", 0.05, "share",
        "with less, the kernel reclaims pages all the time, and ends processes at a small peak";
    MEMORY_PRESSURE: "a task waits for memory", 0.1, "share",
        "pressure of the kernel (PSI, some); systemd-oomd ends programs at 0.6 of full pressure";
    THROTTLED_S: "throttled", 60.0, "s", "as in the list of sick hosts";
    THROTTLED: "throttled", 0.01, "share", "less costs under 1 % of the GPU's time";
    IDLE_S: "held and idle", 1800.0, "s", "half an hour is longer than starts and checkpoints take";
    UNEVEN: "difference from the median GPU", 0.25, "share",
        "five times what means of ten intervals differ by if each varies by 15 %";
    GPUS_MIN: "least GPUs", 3.0, "1", "of two GPUs, neither is the usual one";
    SM_ACTIVE: "SM active while busy, less than", 0.5, "share",
        "NVIDIA DCGM: below 0.5 \"likely indicates ineffective GPU usage\"";
    ERRORS: "errors", 1.0, "1", "XID errors and uncorrected memory errors never are usual";
    HUNG: "no step for", 0.0, "s", "the agent decides what hangs";
    VARIES: "95th percentile over median", 1.5, "×",
        "steps with the same work differ by a few percent";
    GROWS: "last third over first third", 1.2, "×",
        "more than the 15 % that count as usual when the hub watches a run";
}
