//! The rules: what is wrong with a run or a host, by what its rows say. A rule judges only what was
//! observed, so without rows it finds nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{DoctorFacts, GpuCell, GpuFacts, HostCell, StepCell, StepSource};
use super::finding::{
    DoctorCase, DoctorNumber, DoctorSeverity, DoctorTab, ExplainedLoss, GpuPlace,
};
use super::limits::{self, DoctorLimit};

/// A rule, with what is done about its cases.
pub struct DoctorRule {
    pub id: &'static str,
    pub tab: DoctorTab,
    pub title: &'static str,
    pub advice: &'static str,
    /// DoctorSeverity of a finding that costs nothing, as far as is known.
    pub least: DoctorSeverity,
    pub limits: &'static [DoctorLimit],
    /// Lists the places that have the issue.
    pub find: fn(&DoctorFacts) -> Vec<DoctorCase>,
}

/// All rules in the order of their ids.
pub const RULES: [DoctorRule; 12] = [
    DoctorRule {
        id: "P01",
        tab: DoctorTab::Cpu,
        title: "CPUs are busy while GPUs wait",
        advice: "Give the run more CPU cores, or move work off them: decode and transform data on \
                 the GPU or once in advance, and look for other programs on the host. A trace \
                 tells which threads are busy.",
        least: DoctorSeverity::Info,
        limits: &[limits::CPU_BUSY, limits::GPU_WAITS, limits::TIME_MIN, limits::SHARE_MIN],
        find: |facts| {
            waiting_gpus(facts, "CPUs busy", limits::CPU_BUSY, |host| {
                Some(host.cpu_busy_s).zip(positive(host.cpu_all_s))
            })
        },
    },
    DoctorRule {
        id: "P02",
        tab: DoctorTab::Network,
        title: "Tasks wait for disks while GPUs wait",
        advice: "Read ahead with more loader processes, copy the data to a local disk first, or \
                 store it in fewer and larger files. Write checkpoints and logs less often.",
        least: DoctorSeverity::Info,
        limits: &[limits::IO_PRESSURE, limits::GPU_WAITS, limits::TIME_MIN, limits::SHARE_MIN],
        find: |facts| {
            waiting_gpus(facts, "waits for disks", limits::IO_PRESSURE, |host| {
                host.pressure_s.get("io").copied().zip(positive(host.observed_s))
            })
        },
    },
    DoctorRule {
        id: "P03",
        tab: DoctorTab::Memory,
        title: "The memory of the host is nearly full",
        advice: "Use fewer loader processes or smaller queues, map files instead of reading them \
                 whole, and look for a process whose memory grows. At a peak, the kernel ends \
                 processes.",
        least: DoctorSeverity::High,
        limits: &[limits::MEMORY_AVAILABLE, limits::TIME_MIN, limits::SHARE_MIN],
        find: full_memory,
    },
    DoctorRule {
        id: "P04",
        tab: DoctorTab::Memory,
        title: "Tasks wait for memory",
        advice: "The host reclaims or swaps memory. Use less of it, with fewer loader processes and \
                 smaller caches, or give the run a host or a limit with more.",
        least: DoctorSeverity::Medium,
        limits: &[limits::MEMORY_PRESSURE, limits::TIME_MIN, limits::SHARE_MIN],
        find: memory_pressure,
    },
    DoctorRule {
        id: "P05",
        tab: DoctorTab::Gpu,
        title: "GPUs are throttled",
        advice: "hw_thermal_slowdown and sw_thermal_slowdown: check fans, air flow and the \
                 temperature of the room. hw_power_brake and hw_slowdown: check power supplies \
                 and cables. Drain the host until it is mended.",
        least: DoctorSeverity::Medium,
        limits: &[limits::THROTTLED_S, limits::THROTTLED],
        find: throttled,
    },
    DoctorRule {
        id: "P06",
        tab: DoctorTab::Gpu,
        title: "GPUs are held and idle",
        advice: "End runs that wait for nothing, and release GPUs between experiments. For \
                 notebooks, use a smaller GPU, a part of one, or a time limit.",
        least: DoctorSeverity::Info,
        limits: &[limits::IDLE_S, limits::SHARE_MIN],
        find: held_idle,
    },
    DoctorRule {
        id: "P07",
        tab: DoctorTab::Gpu,
        title: "GPUs of the run work unevenly",
        advice: "Divide the work evenly: shard tables by their cost, and batches by their length. \
                 If one GPU differs in every run, test it.",
        least: DoctorSeverity::Info,
        limits: &[limits::UNEVEN, limits::GPUS_MIN, limits::CELLS_MIN],
        find: uneven,
    },
    DoctorRule {
        id: "P08",
        tab: DoctorTab::Gpu,
        title: "Few multiprocessors work while GPUs are busy",
        advice: "Give each kernel more work: larger batches, fused kernels (torch.compile), CUDA \
                 graphs against gaps. Record a trace, which names the kernels.",
        least: DoctorSeverity::Info,
        limits: &[limits::SM_ACTIVE, limits::TIME_MIN, limits::CELLS_MIN],
        find: low_sm,
    },
    DoctorRule {
        id: "P09",
        tab: DoctorTab::Gpu,
        title: "GPUs report errors",
        advice: "Look up the XID number in NVIDIA's list. Drain the host, and run `dcgmi diag -r \
                 3` before jobs use it again. Uncorrected memory errors need a reset of the GPU.",
        least: DoctorSeverity::High,
        limits: &[limits::ERRORS],
        find: errors,
    },
    DoctorRule {
        id: "P10",
        tab: DoctorTab::Application,
        title: "A process hangs",
        advice: "Look at the stacks of all ranks (`rowmill fleet sample`): mostly one rank failed \
                 or waits outside of the collective in which the others are. Set a timeout for \
                 collectives, so that the run ends by itself.",
        least: DoctorSeverity::High,
        limits: &[limits::HUNG],
        find: hangs,
    },
    DoctorRule {
        id: "P11",
        tab: DoctorTab::Application,
        title: "The step time varies",
        advice: "Some steps wait: for data, checkpoints, evaluation or other ranks. Record a \
                 trace of enough steps to have a slow one.",
        least: DoctorSeverity::Info,
        limits: &[limits::VARIES, limits::CELLS_MIN],
        find: varying_steps,
    },
    DoctorRule {
        id: "P12",
        tab: DoctorTab::Application,
        title: "Steps become slower",
        advice: "Look for what grows with the time: lists of losses kept on the GPU, logs, \
                 caches, memory, or sequences. Compare a trace of the beginning with one of now.",
        least: DoctorSeverity::Info,
        limits: &[limits::GROWS, limits::CELLS_MIN],
        find: growing_steps,
    },
];

fn positive(value: f64) -> Option<f64> {
    (value > 0.0).then_some(value)
}

fn number(name: &'static str, value: f64, unit: &'static str) -> DoctorNumber {
    DoctorNumber { name: name.to_owned(), value, unit }
}

/// Finds the hosts on which a resource is used up while their GPUs wait. `usage` returns the used
/// and the whole amount in a cell, or `None` if it was not observed.
fn waiting_gpus(
    facts: &DoctorFacts,
    name: &'static str,
    used_up: DoctorLimit,
    usage: fn(&HostCell) -> Option<(f64, f64)>,
) -> Vec<DoctorCase> {
    let case = |(host, cells): (&String, &BTreeMap<u64, HostCell>)| {
        let (mut judged_s, mut found_s, mut used, mut whole) = (0.0, 0.0, 0.0, 0.0);
        let (mut found, mut found_cells) = (GpuCell::default(), BTreeSet::new());
        for (start, cell) in cells {
            let gpus = facts.gpus_of(host, *start);
            let Some((part, all)) = usage(cell).filter(|_| gpus.busy_observed_s > 0.0) else {
                continue;
            };
            judged_s += cell.observed_s;
            let waits = gpus.busy_s < limits::GPU_WAITS.value * gpus.busy_observed_s;
            if part > used_up.value * all && waits {
                found_s += cell.observed_s;
                (used, whole) = (used + part, whole + all);
                found.busy_s += gpus.busy_s;
                found.busy_observed_s += gpus.busy_observed_s;
                found_cells.insert(*start);
            }
        }
        lasts(found_s, judged_s).then(|| DoctorCase {
            place: host.clone(),
            numbers: vec![
                number("time", found_s, "s"),
                number("share of the time", found_s / judged_s, "share"),
                number(name, used / whole, "share"),
                number("GPUs busy", found.busy_s / found.busy_observed_s, "share"),
            ],
            lost_s: Some(found.busy_observed_s - found.busy_s),
            explains: ExplainedLoss::HostIdle { host: host.clone(), cells: found_cells },
            ..DoctorCase::default()
        })
    };
    facts.hosts.iter().filter_map(case).collect()
}

/// Whether a condition holds long enough to be an issue.
fn lasts(found_s: f64, judged_s: f64) -> bool {
    found_s >= limits::TIME_MIN.value && found_s >= limits::SHARE_MIN.value * judged_s
}

/// Finds the hosts of which a value per cell meets a condition for long enough. Returns each host
/// with the seconds and the values that meet it.
fn lasting(
    facts: &DoctorFacts,
    value: fn(&HostCell) -> Option<f64>,
    is_found: fn(f64) -> bool,
) -> Vec<(String, f64, Vec<f64>)> {
    let host = |(host, cells): (&String, &BTreeMap<u64, HostCell>)| {
        let (mut judged_s, mut found_s, mut values) = (0.0, 0.0, Vec::new());
        for cell in cells.values() {
            let Some(value) = value(cell) else { continue };
            judged_s += cell.observed_s;
            if is_found(value) {
                found_s += cell.observed_s;
                values.push(value);
            }
        }
        lasts(found_s, judged_s).then(|| (host.clone(), found_s, values))
    };
    facts.hosts.iter().filter_map(host).collect()
}

fn full_memory(facts: &DoctorFacts) -> Vec<DoctorCase> {
    let is_full = |available| available < limits::MEMORY_AVAILABLE.value;
    let hosts = lasting(facts, |host| host.memory_available, is_full).into_iter();
    let case = |(place, found_s, values): (String, f64, Vec<f64>)| DoctorCase {
        place,
        numbers: vec![
            number("time", found_s, "s"),
            number("least available", values.into_iter().fold(1.0, f64::min), "share"),
        ],
        ..DoctorCase::default()
    };
    hosts.map(case).collect()
}

fn memory_pressure(facts: &DoctorFacts) -> Vec<DoctorCase> {
    let share = |host: &HostCell| {
        let waited_s = host.pressure_s.get("memory").copied();
        waited_s.zip(positive(host.observed_s)).map(|(part, all)| part / all)
    };
    let hosts = lasting(facts, share, |share| share > limits::MEMORY_PRESSURE.value).into_iter();
    let case = |(place, found_s, values): (String, f64, Vec<f64>)| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let numbers = vec![
            number("time", found_s, "s"),
            number("share in which a task waited", mean, "share"),
        ];
        DoctorCase { place, numbers, ..DoctorCase::default() }
    };
    hosts.map(case).collect()
}

/// Makes cases of the GPUs for which `case` returns figures and lost seconds. `explains` returns
/// what a case of a GPU explains.
fn gpu_cases(
    facts: &DoctorFacts,
    explains: fn(GpuPlace) -> ExplainedLoss,
    case: impl Fn(&GpuFacts) -> Option<(Vec<DoctorNumber>, Option<f64>)>,
) -> Vec<DoctorCase> {
    let gpus = facts.gpus.iter().filter_map(|(gpu, facts)| {
        let (numbers, lost_s) = case(facts)?;
        let explains = explains(gpu.clone());
        Some(DoctorCase { place: gpu.name(), numbers, lost_s, explains, ..DoctorCase::default() })
    });
    gpus.collect()
}

fn throttled(facts: &DoctorFacts) -> Vec<DoctorCase> {
    // A throttled GPU is busy, so it explains no idle time.
    gpu_cases(
        facts,
        |_| ExplainedLoss::Nothing,
        |gpu| {
            let [throttled_s, observed_s] =
                [gpu.sum(|cell| cell.throttled_s), gpu.sum(|cell| cell.observed_s)];
            let is_found = throttled_s >= limits::THROTTLED_S.value
                && throttled_s >= limits::THROTTLED.value * observed_s;
            is_found.then(|| {
                let reason = |(reason, seconds): (&String, &f64)| DoctorNumber {
                    name: reason.clone(),
                    value: *seconds,
                    unit: "s",
                };
                let mut numbers: Vec<DoctorNumber> = gpu.throttled_s.iter().map(reason).collect();
                numbers.push(number("share of the time", throttled_s / observed_s, "share"));
                // The GPU works meanwhile, so this is a bound.
                let lost_s = gpu.sum(|cell| cell.throttled_s.min(cell.held_s));
                (numbers, Some(lost_s))
            })
        },
    )
}

fn held_idle(facts: &DoctorFacts) -> Vec<DoctorCase> {
    gpu_cases(facts, ExplainedLoss::GpuIdle, |gpu| {
        let [idle_s, observed_s] =
            [gpu.sum(|cell| cell.idle_s), gpu.sum(|cell| cell.busy_observed_s)];
        let is_found =
            idle_s >= limits::IDLE_S.value && idle_s >= limits::SHARE_MIN.value * observed_s;
        is_found.then(|| {
            let numbers = vec![
                number("idle", idle_s, "s"),
                number("share of the time", idle_s / observed_s, "share"),
            ];
            (numbers, Some(idle_s))
        })
    })
}

fn low_sm(facts: &DoctorFacts) -> Vec<DoctorCase> {
    gpu_cases(facts, ExplainedLoss::GpuSm, |gpu| {
        let [active_s, busy_s] = [gpu.sum(|cell| cell.sm_active_s), gpu.sum(|cell| cell.sm_busy_s)];
        let cells = gpu.cells.values().filter(|cell| cell.sm_busy_s > 0.0).count();
        let is_found = busy_s >= limits::TIME_MIN.value
            && cells as f64 >= limits::CELLS_MIN.value
            && active_s < limits::SM_ACTIVE.value * busy_s;
        is_found.then(|| {
            let numbers = vec![
                number("busy", busy_s, "s"),
                number("SM active while busy", active_s / busy_s, "share"),
            ];
            (numbers, Some(busy_s - active_s))
        })
    })
}

fn errors(facts: &DoctorFacts) -> Vec<DoctorCase> {
    gpu_cases(
        facts,
        |_| ExplainedLoss::Nothing,
        |gpu| {
            // Corrected errors cost nothing.
            let counted = gpu.errors.iter().filter(|(name, _)| *name != "ecc_corrected");
            let numbers: Vec<DoctorNumber> = counted
                .map(|(name, count)| DoctorNumber {
                    name: name.clone(),
                    value: *count as f64,
                    unit: "1",
                })
                .collect();
            let count: f64 = numbers.iter().map(|one| one.value).sum();
            (count >= limits::ERRORS.value).then_some((numbers, None))
        },
    )
}

/// Finds the GPUs of one run that do much more or less than the others. With even work, all of them
/// would do what they do in the mean, so a run that waits for the busiest one would be faster by
/// that ratio.
fn uneven(facts: &DoctorFacts) -> Vec<DoctorCase> {
    // Only the GPUs of a run share work.
    if !facts.is_run {
        return Vec::new();
    }
    let has_sm = |gpu: &GpuFacts| gpu.sum(|cell| cell.sm_observed_s) > 0.0;
    let by_sm = facts.gpus.values().all(has_sm);
    let parts = |cell: &GpuCell| match by_sm {
        true => [cell.sm_active_s, cell.sm_observed_s],
        false => [cell.busy_s, cell.busy_observed_s],
    };
    let share = |gpu: &GpuFacts| {
        let cells = gpu.cells.values().filter(|cell| parts(cell)[1] > 0.0).count();
        let [active_s, observed_s] = [0, 1].map(|at| gpu.sum(|cell| parts(cell)[at]));
        (cells as f64 >= limits::CELLS_MIN.value).then(|| active_s / observed_s)
    };
    let shares: Vec<(&GpuPlace, f64, f64)> = facts
        .gpus
        .iter()
        .filter_map(|(place, gpu)| Some((place, share(gpu)?, gpu.held_s())))
        .collect();
    if (shares.len() as f64) < limits::GPUS_MIN.value {
        return Vec::new();
    }
    let mut sorted: Vec<f64> = shares.iter().map(|(_, share, _)| *share).collect();
    sorted.sort_by(f64::total_cmp);
    let (median, most) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let held_s: f64 = shares.iter().map(|(.., held_s)| held_s).sum();
    let work: f64 = shares.iter().map(|(_, share, held_s)| share * held_s).sum();
    let mut lost_s = positive(most).map(|most| held_s - work / most);
    let far = shares.iter().filter(|(_, share, _)| {
        median > 0.0 && (share - median).abs() >= limits::UNEVEN.value * median
    });
    let name = if by_sm { "SM active" } else { "GPU busy" };
    far.map(|(place, share, _)| {
        // The loss is that of all GPUs together.
        let lost_s = lost_s.take();
        DoctorCase {
            place: place.name(),
            numbers: vec![number(name, *share, "share"), number("median GPU", median, "share")],
            lost_s,
            explains: lost_s.map_or(ExplainedLoss::Nothing, ExplainedLoss::Estimate),
            ..DoctorCase::default()
        }
    })
    .collect()
}

fn hangs(facts: &DoctorFacts) -> Vec<DoctorCase> {
    let last = facts.gpus.values().filter_map(|gpu| gpu.cells.keys().next_back()).max();
    let case = |(process, hang): (&super::facts::HungProcess, &super::facts::HangFacts)| {
        let start_s = process.start_ms as f64 * 1e-3;
        // A hang that is not over lasts until the last row.
        let until_s = last.map_or(0.0, |last| (last + facts.cell_s) as f64);
        let length_s =
            if hang.is_over { hang.length_s } else { hang.length_s.max(until_s - start_s) };
        let hung = start_s..start_s + length_s;
        let overlap = |start: &u64| {
            let cell = *start as f64..(*start + facts.cell_s) as f64;
            (hung.end.min(cell.end) - hung.start.max(cell.start)).max(0.0)
        };
        // The other processes of the run wait for it. Of a host, the run has a share of the GPUs.
        let held = facts.gpus.values().flat_map(|gpu| &gpu.cells);
        let held_s: f64 = held.map(|(start, cell)| cell.held_s.min(overlap(start))).sum();
        let share = facts.share_of_run(&hang.run);
        DoctorCase {
            place: format!("{} process {} ({})", process.host, process.pid, hang.run),
            numbers: vec![number("hung", length_s, "s")],
            lost_s: Some(held_s * share),
            explains: ExplainedLoss::Time { time: hung, share },
            ..DoctorCase::default()
        }
    };
    facts.hangs.iter().filter(|(_, hang)| hang.length_s >= limits::HUNG.value).map(case).collect()
}

/// Creates the case of steps that could take a share less time. The GPUs of their run would not be
/// held for that time.
fn step_case(
    facts: &DoctorFacts,
    source: &StepSource,
    numbers: Vec<DoctorNumber>,
    share: f64,
) -> DoctorCase {
    let share = share.max(0.0);
    let held_s = source.run().and_then(|run| facts.held_by_run_s.get(run));
    let lost_s = held_s.map(|held_s| held_s * share);
    DoctorCase {
        place: source.name(),
        numbers,
        lost_s,
        lost_share: Some(share),
        explains: lost_s.map_or(ExplainedLoss::Nothing, ExplainedLoss::Estimate),
    }
}

fn varying_steps(facts: &DoctorFacts) -> Vec<DoctorCase> {
    let case = |(source, cells): (&StepSource, &BTreeMap<u64, StepCell>)| {
        let known = || cells.values().filter(|cell| cell.quantile_steps > 0.0);
        let sum = |value: fn(&StepCell) -> f64| known().map(value).sum::<f64>();
        let steps = sum(|cell| cell.quantile_steps);
        let (median_s, high_s) =
            (sum(|cell| cell.p50_sum_s) / steps, sum(|cell| cell.p95_sum_s) / steps);
        let mean_s = sum(|cell| cell.time_s) / sum(|cell| cell.steps as f64);
        let is_found = known().count() as f64 >= limits::CELLS_MIN.value
            && high_s >= limits::VARIES.value * median_s;
        is_found.then(|| {
            let numbers = vec![
                number("median step", median_s, "s"),
                number("95th percentile", high_s, "s"),
                number("mean step", mean_s, "s"),
            ];
            step_case(facts, source, numbers, 1.0 - median_s / mean_s)
        })
    };
    facts.steps.iter().filter_map(case).collect()
}

fn growing_steps(facts: &DoctorFacts) -> Vec<DoctorCase> {
    let case = |(source, cells): (&StepSource, &BTreeMap<u64, StepCell>)| {
        let cells: Vec<&StepCell> = cells.values().filter(|cell| cell.steps > 0).collect();
        let third = cells.len() / 3;
        let mean_s = |cells: &[&StepCell]| {
            let steps: u64 = cells.iter().map(|cell| cell.steps).sum();
            cells.iter().map(|cell| cell.time_s).sum::<f64>() / steps as f64
        };
        if (third as f64) < limits::CELLS_MIN.value {
            return None;
        }
        let [first_s, last_s] = [mean_s(&cells[..third]), mean_s(&cells[cells.len() - third..])];
        let all_s = mean_s(&cells);
        (last_s >= limits::GROWS.value * first_s).then(|| {
            let numbers = vec![
                number("mean step of the first third", first_s, "s"),
                number("mean step of the last third", last_s, "s"),
            ];
            step_case(facts, source, numbers, 1.0 - first_s / all_s)
        })
    };
    facts.steps.iter().filter_map(case).collect()
}
