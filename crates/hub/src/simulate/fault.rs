//! The faults that a simulation may have, and how they change what hosts measure.

use fleet::proto::{GpuInterval, GpuRun, HostEvent, HostInterval, StepInterval};

/// Seconds by which a clock is ahead.
const AHEAD_S: u64 = 300;
/// Factor of the activity of GPUs whose CPUs are used by another program.
pub const STARVED: f64 = 0.4;
/// Factor of the activity of a GPU that has less work than others.
pub const UNEVEN: f64 = 0.5;
/// Share of the time in which hot GPUs are throttled.
const THROTTLED: f64 = 0.3;
/// Share of the CPUs that another program uses.
const CPU_BUSY: f64 = 0.97;
/// Available share of full memory, and the share of the time in which tasks wait for it.
const FULL: [f64; 2] = [0.02, 0.3];
/// Milliseconds for which a process hangs.
const HUNG_MS: u64 = 1_200_000;
/// Step time in seconds, and its growth in an hour.
const STEP_S: f64 = 0.5;
const GROWTH: f64 = 1.1;

/// What goes wrong on a host, or between it and the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SimulatedFault {
    /// An agent is cut off for five minutes of every hour, and then sends its rows
    Late,
    /// Two agents send the rows of one host
    Doubled,
    /// The clock of a host is five minutes ahead
    Ahead,
    /// Batches are sent twice, on all hosts
    Repeated,
    /// GPUs of a host are throttled because they are hot
    Hot,
    /// Another program uses the CPUs of a host, so that GPUs of runs on it wait
    Starved,
    /// The memory of a host is full
    Full,
    /// The first GPU of a host works half as much as the others of its run
    Uneven,
    /// A process on the first GPU of a host hangs for 20 minutes of every hour
    Hung,
    /// Steps of the runs on a host become slower; all runs report steps
    Slowing,
    /// Steps of the runs on a host vary; all runs report steps
    Varying,
}

/// Faults of single hosts, in the order of the hosts that have them.
const SINGLE: [SimulatedFault; 10] = [
    SimulatedFault::Late,
    SimulatedFault::Doubled,
    SimulatedFault::Ahead,
    SimulatedFault::Hot,
    SimulatedFault::Starved,
    SimulatedFault::Full,
    SimulatedFault::Uneven,
    SimulatedFault::Hung,
    SimulatedFault::Slowing,
    SimulatedFault::Varying,
];

impl SimulatedFault {
    /// The name by which the fault is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Doubled => "doubled",
            Self::Ahead => "ahead",
            Self::Repeated => "repeated",
            Self::Hot => "hot",
            Self::Starved => "starved",
            Self::Full => "full",
            Self::Uneven => "uneven",
            Self::Hung => "hung",
            Self::Slowing => "slowing",
            Self::Varying => "varying",
        }
    }
}

/// The fault of a host. Of fifty hosts, one has each chosen fault.
pub fn fault(at: u64, faults: &[SimulatedFault]) -> Option<SimulatedFault> {
    let mut place = (1..).zip(SINGLE);
    place.find(|(place, fault)| at % 50 == *place && faults.contains(fault)).map(|(_, fault)| fault)
}

/// The seconds by which the clock of a host is ahead.
pub fn ahead_s(at: u64, faults: &[SimulatedFault]) -> u64 {
    if fault(at, faults) == Some(SimulatedFault::Ahead) { AHEAD_S } else { 0 }
}

/// Changes the rows of a host as its fault would. Without a fault, they stay as they are.
pub fn change(fault: Option<SimulatedFault>, own: &mut HostInterval, gpus: &mut [GpuInterval]) {
    let length_s = f64::from(own.length_s);
    match fault {
        Some(SimulatedFault::Hot) => gpus.iter_mut().for_each(|gpu| {
            gpu.throttle_s.insert("hw_thermal_slowdown".to_owned(), THROTTLED * length_s);
        }),
        Some(SimulatedFault::Starved) => {
            let all_s: f64 = own.cpu_s.values().sum();
            let parts = [("user", CPU_BUSY), ("system", 0.0), ("idle", 1.0 - CPU_BUSY)];
            own.cpu_s = parts.map(|(name, share)| (name.to_owned(), share * all_s)).into();
        }
        Some(SimulatedFault::Full) => {
            own.memory_available_min = (own.memory_total as f64 * FULL[0]) as u64;
            own.pressure_s.insert("memory".to_owned(), FULL[1] * length_s);
        }
        _ => {}
    }
}

/// The steps of a run in an interval, by the fault of its first host and its age in seconds. The
/// caller names the process.
pub fn steps(fault: Option<SimulatedFault>, age_s: u64, interval_s: u32) -> StepInterval {
    let growth = match fault {
        Some(SimulatedFault::Slowing) => GROWTH.powf(age_s as f64 / 3600.0),
        _ => 1.0,
    };
    let median_s = STEP_S * growth;
    let (mean_s, high_s) = match fault {
        Some(SimulatedFault::Varying) => (1.3 * median_s, 3.0 * median_s),
        _ => (1.01 * median_s, 1.1 * median_s),
    };
    let steps = (f64::from(interval_s) / mean_s).ceil();
    StepInterval {
        rank: Some(0),
        phase: "train".to_owned(),
        steps: steps as u64,
        timed_steps: steps as u64,
        timed_s: steps * mean_s,
        step_p50_s: Some(median_s),
        step_p95_s: Some(high_s),
        step_max_s: Some(high_s),
        ..StepInterval::default()
    }
}

/// A process of a run that hung.
pub fn hang(run: GpuRun, pid: u32, start_s: u64) -> HostEvent {
    HostEvent {
        kind: "hang".to_owned(),
        start_unix_ms: start_s * 1000,
        length_ms: HUNG_MS,
        is_over: true,
        run: Some(run),
        pid: Some(pid),
        rank: Some(0),
        details: "{}".to_owned(),
    }
}
