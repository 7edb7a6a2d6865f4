//! Splits the saving of a remedy into the step of the host and the step of the devices, for ranks
//! whose devices lag behind the host.

use super::finding::{Finding, HostDeviceSplit, RowEdit};
use super::price::Pricer;
use crate::facts::job::JobFacts;
use crate::graph::edit::Action;
use crate::text::time;

/// Sets [`Finding::split`] of a priced finding, and describes the split in findings about
/// communication.
pub(super) fn add_split(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let (Some(_), Some(remedy)) = (finding.saving, &finding.remedy) else { return };
    let worst_rank =
        finding.evidence.first().map(|evidence| evidence.rank).or(finding.ranks.first().copied());
    let Some(at) = job.ranks.iter().position(|rank| Some(rank.rank()) == worst_rank) else {
        return;
    };
    let steps = job.ranks[at].step_count();
    let measured = pricer.measured();
    let Some(device_ns) = measured.device_ns(at, &measured.times) else { return };
    let mut with = |edits: &[RowEdit]| {
        pricer.after(edits, |_, times| {
            (measured.host_ns(at, times) / steps, measured.device_ns(at, times))
        })
    };
    let (cured_host_ns, cured) = with(&remedy.edits);
    // Hiding a transfer completely is the most that a cure can achieve, so half of it is priced
    // too.
    let is_transfer = remedy.edits.iter().all(|edit| edit.action == Action::Overlap);
    let half = |edit: &RowEdit| RowEdit { action: Action::Scale(0.5), ..edit.clone() };
    let halved: Option<Vec<RowEdit>> = is_transfer.then(|| remedy.edits.iter().map(half).collect());
    let halved = halved.and_then(|edits| with(&edits).1);
    let split = HostDeviceSplit {
        host_ns: measured.host_ns(at, &measured.times) / steps,
        cured_host_ns,
        device_ns: device_ns / steps,
        cured_device_ns: cured.unwrap_or(device_ns) / steps,
        halved_device_ns: halved.map(|ns| ns / steps),
    };
    finding.split = Some(split);
    if let Some(halved_ns) = split.halved_device_ns {
        finding.what += &words(&split, halved_ns);
    }
}

fn words(split: &HostDeviceSplit, halved_ns: i64) -> String {
    let less = |ns: i64| 100.0 * (split.device_ns - ns) as f64 / split.device_ns.max(1) as f64;
    let binds = match split.cured_host_ns >= split.cured_device_ns {
        true => ", which then decides",
        false => "",
    };
    format!(
        " The device needs {} for a step of {} of the host: {} ({:.1} % less) with half of it gone, {} \
         ({:.1} % less) with all; the host's step would take {}{binds}.",
        time(split.device_ns),
        time(split.host_ns),
        time(halved_ns),
        less(halved_ns),
        time(split.cured_device_ns),
        less(split.cured_device_ns),
        time(split.cured_host_ns)
    )
}
