//! What a remedy saves of the host's step and of the devices', where those run behind the host and
//! take longer. Knows no rule.

use super::finding::{Finding, RowEdit, Sides};
use super::price::Pricer;
use crate::facts::job::JobFacts;
use crate::graph::edit::Action;
use crate::text::time;

/// Sets [`Finding::sides`] of a priced finding, and says them of communication.
pub(super) fn tell(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let (Some(_), Some(remedy)) = (finding.saving, &finding.remedy) else { return };
    let worst_rank =
        finding.proofs.first().map(|proof| proof.rank).or(finding.ranks.first().copied());
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
    let is_transfer = remedy.edits.iter().all(|edit| edit.action == Action::Overlap);
    let half = |edit: &RowEdit| RowEdit { action: Action::Scale(0.5), ..edit.clone() };
    let halved: Option<Vec<RowEdit>> = is_transfer.then(|| remedy.edits.iter().map(half).collect());
    let halved = halved.and_then(|edits| with(&edits).1);
    let sides = Sides {
        host_ns: measured.host_ns(at, &measured.times) / steps,
        cured_host_ns,
        device_ns: device_ns / steps,
        cured_device_ns: cured.unwrap_or(device_ns) / steps,
        halved_device_ns: halved.map(|ns| ns / steps),
    };
    finding.sides = Some(sides);
    if let Some(halved_ns) = sides.halved_device_ns {
        finding.what += &words(&sides, halved_ns);
    }
}

fn words(sides: &Sides, halved_ns: i64) -> String {
    let less = |ns: i64| 100.0 * (sides.device_ns - ns) as f64 / sides.device_ns.max(1) as f64;
    let binds = match sides.cured_host_ns >= sides.cured_device_ns {
        true => ", which then decides",
        false => "",
    };
    format!(
        " The device needs {} for a step of {} of the host: {} ({:.1} % less) with half of it gone, {} \
         ({:.1} % less) with all; the host's step would take {}{binds}.",
        time(sides.device_ns),
        time(sides.host_ns),
        time(halved_ns),
        less(halved_ns),
        time(sides.cured_device_ns),
        less(sides.cured_device_ns),
        time(sides.cured_host_ns)
    )
}
