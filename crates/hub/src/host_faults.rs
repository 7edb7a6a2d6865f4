//! Describes the faults of the GPUs of a host as issues, with one issue for all GPUs that have the
//! same kind of fault.

use std::collections::BTreeMap;

use crate::faults::GpuFault;
use crate::status::HostIssue;

/// Begin of the kind of faults of GPUs that were slowed down.
const THROTTLED: &str = "throttled ";
/// Throttled seconds of a GPU below which they are not an issue of its host.
const THROTTLED_MIN_S: f64 = 60.0;

/// Adds up the seconds in which GPUs were throttled. Several reasons may hold at the same time.
pub fn sum_throttled_s(faults: &[GpuFault]) -> f64 {
    let throttled = faults.iter().filter(|fault| fault.kind.starts_with(THROTTLED));
    throttled.map(|fault| fault.amount).sum()
}

/// Lists the issues of the GPUs of one host: throttling for a minute or more, and errors.
pub fn describe_faults(faults: &[GpuFault]) -> Vec<HostIssue> {
    let mut by_kind: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
    for GpuFault { gpu, kind, amount, .. } in faults {
        let is_short = kind.starts_with(THROTTLED) && *amount < THROTTLED_MIN_S;
        if !is_short {
            *by_kind.entry(kind).or_default().entry(*gpu).or_default() += amount;
        }
    }
    let issue = |(kind, amounts): (&str, BTreeMap<u32, f64>)| {
        let gpus: Vec<u32> = amounts.keys().copied().collect();
        let (least, most) = amounts
            .values()
            .fold((f64::INFINITY, 0.0_f64), |(least, most), one| (least.min(*one), most.max(*one)));
        let what = match kind.split_once(' ')? {
            ("throttled", reason) => {
                let [least, most] = [least, most].map(|seconds| format!("{:.1}", seconds / 60.0));
                let minutes = if least == most { least } else { format!("{least} to {most}") };
                format!("throttled for {minutes} minutes ({reason})")
            }
            ("error", name) => format!("{name} × {:.0}", amounts.values().sum::<f64>()),
            _ => return None,
        };
        Some(HostIssue { kind: kind.to_owned(), text: format!("{}: {what}", name_gpus(&gpus)) })
    };
    by_kind.into_iter().filter_map(issue).collect()
}

/// Names GPUs by ascending numbers, as in `GPUs 0–3, 6`.
fn name_gpus(gpus: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &gpu in gpus {
        match ranges.last_mut().filter(|(_, last)| *last + 1 == gpu) {
            Some((_, last)) => *last = gpu,
            None => ranges.push((gpu, gpu)),
        }
    }
    let range = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    };
    let names: Vec<String> = ranges.iter().map(range).collect();
    format!("GPU{} {}", if gpus.len() == 1 { "" } else { "s" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::describe_faults;
    use crate::faults::GpuFault;

    #[test]
    fn gpus_with_the_same_fault_share_an_issue() {
        let fault = |gpu, kind: &str, amount| GpuFault {
            host: "a".to_owned(),
            gpu,
            model: "H100".to_owned(),
            kind: kind.to_owned(),
            amount,
            last_unix_s: 0,
        };
        let mut faults: Vec<GpuFault> =
            (0..8).map(|gpu| fault(gpu, "throttled hw_slowdown", 60.0 * f64::from(gpu))).collect();
        faults.extend([fault(3, "error xid_79", 2.0), fault(5, "error xid_79", 1.0)]);
        faults.push(fault(2, "throttled hw_power_brake", 90.0));
        let texts: Vec<String> =
            describe_faults(&faults).into_iter().map(|issue| issue.text).collect();
        assert_eq!(
            texts,
            [
                "GPUs 3, 5: xid_79 × 3",
                "GPU 2: throttled for 1.5 minutes (hw_power_brake)",
                "GPUs 1–7: throttled for 1.0 to 7.0 minutes (hw_slowdown)",
            ]
        );
    }
}
