//! The tables that `rowmill plan` prints: by rank, by table and by search rule.

use plan::CandidatePlan;
use plan::explain::{AlternativePlacement, EQUAL_NS, PlacementReason, TableExplanation};
use predict::step::{RankPrice, Stage, StepPrice};
use schema::{Bytes, Rank, ShardingPlan, TableConfig, TableRow};
use serde::Serialize;
use setup::args::OutputFormat;
use setup::render::Console;
use setup::table_output::TOP;

/// A rank's part of a plan, with its predicted time and memory.
#[derive(Serialize, TableRow)]
pub struct RankRow {
    rank: u32,
    host: usize,
    /// Number of tables of which the rank holds a part that is not replicated.
    tables: usize,
    /// Bytes of the weights and optimizer states of tables on the rank.
    table_bytes: u64,
    total_bytes: u64,
    lookup_ns: f64,
    embedding_update_ns: f64,
    exchange_ns: f64,
    dense_ns: f64,
    /// Time of the rank's own lookups and updates, and of the stages that all ranks share.
    busy_ns: f64,
    /// Time for which the rank waits for slower ranks and for the host, until the step ends.
    wait_ns: f64,
}

/// A table's place in a plan.
#[derive(Serialize, TableRow)]
pub struct PlacementRow {
    table: String,
    rows: u64,
    dim: usize,
    weight_bytes: u64,
    layout: &'static str,
    /// Ranks that hold the table, such as `0-7,9`.
    ranks: String,
}

/// The plan of a search rule, with its predicted step.
#[derive(Serialize, TableRow)]
pub struct RuleRow {
    pub rule: String,
    pub step_ns: f64,
    /// Time of the step if the host took no time.
    pub device_ns: f64,
    /// Relative to the plan that was chosen, in percent.
    pub slower_pct: f64,
    /// The device's time relative to that of the chosen plan, in percent. It differs while the host
    /// hides the device.
    pub device_slower_pct: f64,
    pub peak_bytes: u64,
    pub fits: bool,
}

/// A placement of a table that is explained: the chosen one, or another with its cost.
#[derive(Serialize, TableRow)]
pub struct AlternativeRow {
    table: String,
    layout: &'static str,
    ranks: String,
    step_ns: f64,
    /// Nanoseconds by which the step would be longer than with the chosen placement if the host
    /// took no time.
    added_ns: f64,
    fits: bool,
    /// The stage that lengthens or shortens the step most, or the reason of the chosen placement.
    why: String,
}

/// Lists the chosen placement of a table, then its alternatives.
pub fn alternatives(explained: &TableExplanation) -> Vec<AlternativeRow> {
    let row = |placement: &plan::Placement, why: String| AlternativeRow {
        table: explained.table.clone(),
        layout: placement.layout.kind().name(),
        ranks: rank_text(placement),
        step_ns: explained.cost.step.mean_ns,
        added_ns: 0.0,
        fits: true,
        why,
    };
    let other = |other: &AlternativePlacement| AlternativeRow {
        step_ns: other.cost.step.mean_ns,
        added_ns: other.added_ns,
        fits: other.fits,
        ..row(&other.placement, difference(other))
    };
    let chosen = row(&explained.placement, format!("chosen: {}", reason(explained.reason)));
    std::iter::once(chosen).chain(explained.alternatives.iter().map(other)).collect()
}

/// Names the stage that changes the step most in the direction in which the step changes.
fn difference(other: &AlternativePlacement) -> String {
    if other.added_ns.abs() < EQUAL_NS {
        return "as fast".to_owned();
    }
    let (sign, word) = if other.added_ns > 0.0 { (1.0, "longer") } else { (-1.0, "shorter") };
    let changed = |stage: &Stage| sign * other.added_stages_ns[*stage as usize];
    let most = Stage::ALL.into_iter().max_by(|a, b| changed(a).total_cmp(&changed(b)));
    let stage = most.filter(|stage| changed(stage) > 0.0);
    stage.map_or_else(|| format!("{word} step"), |stage| format!("{word} {}", stage.name()))
}

fn reason(reason: PlacementReason) -> String {
    match reason {
        PlacementReason::Pinned => "pinned by [plan]".to_owned(),
        PlacementReason::OnlyLayout => "the only allowed layout".to_owned(),
        PlacementReason::Memory { kind, needed, capacity } => {
            let (needed, capacity) = (Bytes(needed), Bytes(capacity));
            let kind = plan::name_part(kind);
            format!("faster ones need {needed} of {capacity}, most of it {kind}")
        }
        PlacementReason::Fastest => "the fastest".to_owned(),
        PlacementReason::Hidden => {
            "as fast as all; the host hides the time that others save, and they need more memory"
                .to_owned()
        }
        PlacementReason::NotFastest => {
            "not the fastest; the search was short (--effort) or had another --cost".to_owned()
        }
    }
}

/// Lists the ranks of a plan.
pub fn by_rank(plan: &ShardingPlan, price: &StepPrice) -> Vec<RankRow> {
    price.ranks.iter().map(|rank| rank_row(plan, rank)).collect()
}

fn rank_row(plan: &ShardingPlan, price: &RankPrice) -> RankRow {
    let rank = Rank(price.rank);
    let mut tables: Vec<_> = plan.tiles_of(rank).map(|tile| tile.table).collect();
    tables.dedup();
    let stage_ns = |stage: Stage| price.stages[stage as usize].mean_ns;
    let exchange_ns = Stage::EXCHANGES.into_iter().map(stage_ns).sum();
    RankRow {
        rank: price.rank,
        host: plan.hosts().host(rank),
        tables: tables.len(),
        table_bytes: price.memory.table_weights + price.memory.table_states,
        total_bytes: price.memory.total(),
        lookup_ns: stage_ns(Stage::Lookup),
        embedding_update_ns: stage_ns(Stage::EmbeddingUpdate),
        exchange_ns,
        dense_ns: stage_ns(Stage::Dense),
        busy_ns: price.stages.iter().map(|stage| stage.mean_ns).sum(),
        // The difference of two sums may be slightly below 0.
        wait_ns: price.wait_ns.max(0.0),
    }
}

/// Moves the slowest and the fullest rank to the front, if people would see only the first ranks.
pub fn show_extremes(rows: &mut [RankRow], console: Console) {
    if console.format != OutputFormat::Table || rows.len() <= TOP {
        return;
    }
    rows.sort_by(|a, b| b.busy_ns.total_cmp(&a.busy_ns));
    rows[1..].sort_by_key(|row| std::cmp::Reverse(row.total_bytes));
    rows[2..].sort_by_key(|row| row.rank);
    console.say("the slowest and the fullest rank are listed first");
}

/// Lists the tables of a plan.
pub fn by_table(tables: &[TableConfig], plan: &CandidatePlan) -> Vec<PlacementRow> {
    let row = |(table, placement): (&TableConfig, &plan::Placement)| PlacementRow {
        table: table.name.clone(),
        rows: table.rows,
        dim: table.dim,
        weight_bytes: table.rows * table.dim as u64 * table.data_type.bytes() as u64,
        layout: placement.layout.kind().name(),
        ranks: rank_text(placement),
    };
    tables.iter().zip(&plan.placements).map(row).collect()
}

fn rank_text(placement: &plan::Placement) -> String {
    match placement.ranks.is_empty() {
        true => "all".to_owned(),
        false => ranges(&placement.ranks),
    }
}

/// Formats ranks as ranges, such as `0-7,9`.
fn ranges(ranks: &[Rank]) -> String {
    let mut sorted: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|one, next| one + 1 == *next);
    let text = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use schema::Rank;

    use super::ranges;

    #[test]
    fn ranks_are_formatted_as_ranges() {
        let ranks: Vec<Rank> = [3, 0, 1, 2, 9, 7, 7].map(Rank).into();
        assert_eq!(ranges(&ranks), "0-3,7,9");
    }
}
