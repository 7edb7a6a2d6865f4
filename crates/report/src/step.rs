//! The steps tab of the page: each step of each rank, on the page's clock.

use analyze::job::{JobFacts, RankFacts};
use analyze::steps;
use serde::Serialize;

use crate::clock::Zero;

/// Maximum number of listed steps, which keeps the page small.
const ROWS_MAX: usize = 4000;

/// The recorded steps of all ranks.
#[derive(Clone, Debug, Serialize)]
pub struct StepPart {
    /// Steps, sorted by rank and start.
    pub rows: Vec<StepView>,
    pub left_out_count: u64,
}

/// One step of one rank as the page shows it; see [`steps::StepRow`].
#[derive(Clone, Debug, Serialize)]
pub struct StepView {
    pub rank: u32,
    pub number: i64,
    /// Start of the step on the page's clock.
    pub at_ns: i64,
    pub host_ns: i64,
    /// Time from the start of this step to the start of the next step.
    pub period_ns: Option<i64>,
    /// Whether the whole step was recorded.
    pub is_whole: bool,
    pub busy_ns: Option<i64>,
    pub idle_ns: Option<i64>,
    pub compute_ns: Option<i64>,
    pub communication_ns: Option<i64>,
    /// Time of communication during which no compute runs.
    pub exposed_communication_ns: Option<i64>,
    /// Time of copies and memory sets.
    pub memory_ns: Option<i64>,
}

pub(crate) fn build_part(job: &JobFacts<'_>, zero: &Zero) -> StepPart {
    let of_all = job.ranks.iter().flat_map(RankFacts::steps);
    let mut rows: Vec<StepView> = of_all.map(|row| view(row, zero)).collect();
    let left_out_count = rows.len().saturating_sub(ROWS_MAX) as u64;
    if left_out_count > 0 {
        // Each rank keeps the same number of steps, so that the same steps are listed for every
        // rank.
        let each = ROWS_MAX / job.ranks.len().max(1);
        let mut seen = std::collections::BTreeMap::<u32, usize>::new();
        rows.retain(|row| {
            let count = seen.entry(row.rank).or_default();
            *count += 1;
            *count <= each
        });
    }
    StepPart { rows, left_out_count }
}

fn view(row: &steps::StepRow, zero: &Zero) -> StepView {
    StepView {
        rank: row.rank,
        number: row.number,
        at_ns: zero.at(row.rank, row.start_ns),
        host_ns: row.host_ns,
        period_ns: row.period_ns,
        is_whole: row.is_whole,
        busy_ns: row.busy_ns,
        idle_ns: row.idle_ns,
        compute_ns: row.compute_ns,
        communication_ns: row.communication_ns,
        exposed_communication_ns: row.exposed_communication_ns,
        memory_ns: row.memory_ns,
    }
}
