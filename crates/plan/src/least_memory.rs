//! Searches for the plan with the least memory on its fullest rank. It decides whether a problem
//! has a plan that fits, and how much memory a plan needs at least.
//!
//! The steps of this search do not depend on the memory of the devices. So it finds the same plan
//! for a problem and for one with more or less memory, and a proposed change can be trusted.

use schema::layout::LayoutKind;

use crate::allowed::{AllowedLayouts, LayoutChoice};
use crate::baseline::{list_units, place_greedily, repair};
use crate::error::Error;
use crate::neo;
use crate::placement::CandidatePlan;
use crate::priced_plan::{PricedPlan, first_plan};
use crate::problem::PlanProblem;
use crate::watch::SearchWatch;

/// Shares by which the highest memory is lowered, one after the other.
const SHARES: [f64; 4] = [0.2, 0.05, 0.01, 0.002];

/// Whether some plan of a problem fits into memory.
///
/// # Errors
/// [`Error::Ended`] if the observer of `watch` ended the search.
pub fn has_fitting_plan(problem: PlanProblem<'_>, watch: SearchWatch<'_>) -> Result<bool, Error> {
    let Ok(first) = first_plan(&problem) else { return Ok(false) };
    let Ok(mut priced) = PricedPlan::new(problem, &first) else { return Ok(false) };
    let Ok(allowed) = AllowedLayouts::new(&problem, priced.hosts()) else { return Ok(false) };
    priced.watch_by(watch);
    let enough = priced.capacity();
    if enough == 0 {
        return Ok(false);
    }
    let peak_bytes = place_in_least_memory(&mut priced, &allowed, enough);
    if priced.watch().is_ended() { Err(Error::Ended) } else { Ok(peak_bytes <= enough) }
}

/// Places all tables so that the fullest rank needs as little memory as possible, or until it needs
/// at most `enough` bytes. Returns the bytes of the fullest rank.
///
/// # Cost
/// Some repairs, each of which prices at most a few hundred plans per table.
pub fn place_in_least_memory(
    priced: &mut PricedPlan<'_>,
    allowed: &AllowedLayouts,
    enough: u64,
) -> u64 {
    let sizes = neo::table_sizes(priced.problem());
    let capacity = priced.capacity();
    let bytes = |table: usize, choice: LayoutChoice| sizes[table].bytes / choice.parts() as f64;
    let whole = |table: usize| allowed.first(table, LayoutKind::Table);
    let most_parts =
        |table: usize| allowed.choices(table).iter().copied().max_by_key(|choice| choice.parts());
    let units = [
        list_units(sizes.len(), most_parts, bytes),
        list_units(sizes.len(), |table| whole(table).or_else(|| most_parts(table)), bytes),
    ];
    let mut best: Option<(u64, CandidatePlan)> = None;
    for units in units {
        priced.adopt(&CandidatePlan { placements: place_greedily(&units, priced, allowed) });
        keep_lower(priced, &mut best);
    }
    let Some(mut best) = best else { return priced.cost().peak_bytes };
    for share in SHARES {
        while best.0 > enough && !priced.watch().is_ended() {
            priced.set_capacity(((1.0 - share) * best.0 as f64) as u64);
            priced.adopt(&best.1);
            repair(priced, allowed, &sizes);
            let is_reached = priced.score().overflow == 0;
            let peak_bytes = priced.cost().peak_bytes;
            if peak_bytes < best.0 {
                best = (peak_bytes, priced.plan().clone());
            }
            if !is_reached {
                break;
            }
        }
    }
    priced.set_capacity(capacity);
    priced.adopt(&best.1);
    best.0
}

fn keep_lower(priced: &PricedPlan<'_>, best: &mut Option<(u64, CandidatePlan)>) {
    let peak_bytes = priced.cost().peak_bytes;
    if best.as_ref().is_none_or(|(least, _)| peak_bytes < *least) {
        *best = Some((peak_bytes, priced.plan().clone()));
    }
}
