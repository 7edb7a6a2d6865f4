//! Placements and their tiles.

use plan::{CandidatePlan, Layout, Placement};
use schema::{HostLayout, Rank, ShardingPlan, TableConfig};

fn table(rows: u64, dim: usize) -> TableConfig {
    let name = format!("{rows}x{dim}");
    TableConfig {
        features: vec![name.clone()],
        name,
        rows,
        dim,
        pooling: Default::default(),
        sequence_length: None,
        data_type: Default::default(),
    }
}

fn ranks(ranks: impl IntoIterator<Item = u32>) -> Vec<Rank> {
    ranks.into_iter().map(Rank).collect()
}

#[test]
fn layouts_give_the_tiles_of_the_ready_made_plans() {
    let tables = [table(100, 8), table(7, 3)];
    let hosts = HostLayout::with_ranks_per_host(4, 2).expect("hosts");
    let check = |layout, ranks: [Vec<Rank>; 2], expected: ShardingPlan| {
        let placements = ranks.map(|ranks| Placement { layout, ranks }).to_vec();
        let plan = CandidatePlan { placements }.to_sharding_plan(&tables, &hosts);
        assert_eq!(plan.expect("a plan"), expected.on_hosts(hosts.clone()), "{layout:?}");
    };
    let all = || ranks(0..4);
    check(Layout::Row, [all(), all()], ShardingPlan::row_wise(&tables, 4));
    check(Layout::Column { parts: 4 }, [all(), all()], ShardingPlan::column_wise(&tables, 4));
    let by_host = ShardingPlan::table_row_wise(&tables, &hosts);
    check(Layout::TableRow, [ranks([0, 1]), ranks([2, 3])], by_host);
    let grid = ShardingPlan::grid(&tables, &hosts);
    check(Layout::Grid { columns: 2 }, [all(), all()], grid);
    check(Layout::Replicated, [vec![], vec![]], ShardingPlan::replicate(&tables, 4));
}
