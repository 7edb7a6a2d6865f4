//! Problems without a plan: each error names what binds and the smallest changes that would help.

use std::collections::BTreeMap;

use plan::{
    BindingConstraints, Constraints, Error, Layout, LayoutKind, MemoryShortage, Placement,
    PlanOptions, TableConstraints, plan,
};
use predict::step::Models;
use schema::{Rank, Topology};

use crate::cases::RandomCase;

fn refused(case: &RandomCase, constraints: &Constraints) -> Error {
    let models = Models::shipped().expect("models");
    let options = PlanOptions { budget: Some(200), ..PlanOptions::new(1) };
    plan(&case.problem(&models, constraints), &options).expect_err("no plan")
}

/// Returns the shortage of memory, whose text must contain each of the words.
fn lacking(case: &RandomCase, constraints: &Constraints, words: &[&str]) -> MemoryShortage {
    let error = refused(case, constraints);
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let Error::Memory(shortage) = error else { unreachable!("{text}") };
    assert!(shortage.needed > shortage.memory.saturating_sub(shortage.reserved), "{text}");
    shortage
}

fn check(case: &RandomCase, constraints: &Constraints, expected: &str) {
    let text = refused(case, constraints).to_string();
    assert!(text.contains(expected), "{text}");
}

/// Returns the first case, in which one table has another number of rows.
fn with_rows(table: usize, rows: u64) -> RandomCase {
    let mut case = RandomCase::new(0);
    case.config.model.tables[table].rows = rows;
    case
}

fn on(hardware: &str) -> RandomCase {
    let topology = Topology::parse(hardware).expect("hardware");
    RandomCase { topology, ..RandomCase::new(0) }
}

fn for_one(name: &str, constraints: TableConstraints) -> Constraints {
    let tables = BTreeMap::from([(name.to_owned(), constraints)]);
    Constraints { tables, ..Constraints::default() }
}

fn layouts(kinds: &[LayoutKind]) -> TableConstraints {
    TableConstraints { layouts: Some(kinds.to_vec()), ..TableConstraints::default() }
}

fn pinned(name: &str, layout: Layout, ranks: impl IntoIterator<Item = u32>) -> Constraints {
    let ranks = ranks.into_iter().map(Rank).collect();
    let pinned = Some(Placement { layout, ranks });
    for_one(name, TableConstraints { pinned, ..TableConstraints::default() })
}

#[test]
fn tables_larger_than_all_devices_need_more_hosts() {
    let mut case = RandomCase::new(0);
    for table in &mut case.config.model.tables {
        table.rows = 20_000_000;
    }
    let words = ["table_weights is the largest part", "more memory per rank", "hosts"];
    let found = lacking(&case, &Constraints::default(), &words);
    assert!(found.hosts.is_some_and(|hosts| hosts > 1) && found.constraints.is_none(), "{found}");
    // With that many hosts a plan fits, and with one fewer none does.
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    let options = PlanOptions { budget: Some(200), ..PlanOptions::new(1) };
    let least = found.hosts.expect("hosts");
    assert!(found.to_string().ends_with(&format!(" or {least} hosts")), "{found}");
    for (hosts, fits) in [(least, true), (least - 1, false)] {
        case.topology.hosts = hosts;
        assert_eq!(plan(&case.problem(&models, &constraints), &options).is_ok(), fits);
    }
}

/// Returns whether the search finds a plan.
fn has_plan(case: &RandomCase, constraints: &Constraints) -> bool {
    let models = Models::shipped().expect("models");
    let options = PlanOptions { budget: Some(200), ..PlanOptions::new(1) };
    plan(&case.problem(&models, constraints), &options).is_ok()
}

#[test]
fn a_batch_that_is_too_large_names_the_largest_that_fits() {
    let mut case = RandomCase::new(0);
    case.config.training.batch_size <<= 8;
    let batch = case.config.training.batch_size;
    let free = Constraints::default();
    let found = lacking(&case, &free, &["a batch of"]);
    let fits = found.batch.expect("a batch");
    assert!(fits < batch && found.kind != "table_weights", "{found}");
    case.config.training.batch_size = fits;
    assert!(has_plan(&case, &free), "{found}");
}

#[test]
fn the_least_memory_and_the_largest_reserve_are_those_with_which_a_plan_fits() {
    if !testkit::has_time("the least memory and the largest reserve") {
        return;
    }
    let reserve = |bytes| Constraints { reserve_bytes: bytes, ..Constraints::default() };
    let mut case = RandomCase::new(0);
    let words = ["beside the 30.5 GiB of plan.reserve_bytes", "it fits with"];
    let found = lacking(&case, &reserve(32_749_125_632), &words);
    let fits = found.reserve.expect("a reserve");
    assert!(found.to_string().contains(&format!("plan.reserve_bytes = {fits}")), "{found}");
    assert!(has_plan(&case, &reserve(fits)), "{found}");
    // A heuristic may fit a plan into 1 % less memory than the search for the least memory.
    assert!(!has_plan(&case, &reserve(fits + found.needed / 50)), "{found}");
    // A reserve larger than the device leaves nothing.
    lacking(&case, &reserve(u64::MAX), &["at most 0 B"]);
    // The memory that lacks without a reserve is tried in the same way.
    let free = Constraints::default();
    case.topology.device.memory_bytes = 2 << 30;
    let found = lacking(&case, &free, &["more memory per rank"]);
    case.topology.device.memory_bytes = found.needed;
    assert!(has_plan(&case, &free), "{found}");
}

#[test]
fn constraints_on_a_table_that_does_not_fit_are_named() {
    let case = with_rows(5, 300_000_000);
    let binding = Some(BindingConstraints::Table("t5".to_owned()));
    let words = ["no constraints on table \"t5\""];
    // Only whole, on at most one rank, on every rank, or pinned to one.
    let limited = TableConstraints { most_ranks: Some(1), ..TableConstraints::default() };
    for constraints in [
        for_one("t5", layouts(&[LayoutKind::Table])),
        for_one("t5", layouts(&[LayoutKind::Replicated])),
        for_one("t5", TableConstraints { layouts: Some(vec![LayoutKind::Table]), ..limited }),
        pinned("t5", Layout::Table, [2]),
    ] {
        assert_eq!(lacking(&case, &constraints, &words).constraints, binding);
    }
    assert_eq!(lacking(&case, &pinned("t5", Layout::Table, [2]), &words).rank, 2);
    // The same constraint on every table binds as well.
    let every_table = layouts(&[LayoutKind::Table]);
    let every = Constraints { every_table, ..Constraints::default() };
    let found = lacking(&case, &every, &["no constraints on tables"]);
    assert_eq!(found.constraints, Some(BindingConstraints::Several));
}

/// A table that must lie on one host, whose devices together are too small.
#[test]
fn the_capacity_of_a_host_binds() {
    let mut case = with_rows(5, 2_000_000_000);
    case.topology = Topology::parse("16xdgx-1").expect("hosts");
    let one_host = for_one("t5", layouts(&[LayoutKind::TableRow]));
    let found = lacking(&case, &one_host, &["table_weights", "no constraints on table \"t5\""]);
    assert!(found.hosts.is_none(), "{found}");
}

#[test]
fn topologies_without_an_allowed_layout_are_named() {
    let only = |kind| for_one("t1", layouts(&[kind]));
    let hosts = "table \"t1\": no allowed layout is possible: table-row needs 2 hosts, got 1; \
                 allow the layout table";
    check(&RandomCase::new(0), &only(LayoutKind::TableRow), hosts);
    check(&RandomCase::new(0), &only(LayoutKind::Grid), "grid needs 2 hosts, got 1");
    check(&on("2xv100"), &only(LayoutKind::TableRow), "table-row needs 2 ranks per host, got 1");
    check(&on("v100"), &only(LayoutKind::Row), "row needs 2 ranks, got 1");
    check(&on("v100"), &only(LayoutKind::Replicated), "replicated needs 2 ranks, got 1");
    let both = for_one("t1", layouts(&[LayoutKind::Row, LayoutKind::Column]));
    check(&on("v100"), &both, "row needs 2 ranks, got 1, column needs 2 ranks, got 1");
}

#[test]
fn constraints_without_an_allowed_layout_are_named() {
    let case = RandomCase::new(0);
    let limited = |most, kinds: &[LayoutKind]| {
        for_one("t1", TableConstraints { most_ranks: Some(most), ..layouts(kinds) })
    };
    let most = "row needs 2 ranks of most_ranks, got 1";
    check(&case, &limited(1, &[LayoutKind::Row]), most);
    let by_host = limited(3, &[LayoutKind::TableRow]);
    check(&on("2xv100x4"), &by_host, "table-row needs 4 ranks of most_ranks, got 3");
    let none = limited(0, &[LayoutKind::Table]);
    check(&case, &none, "table needs 1 ranks of most_ranks, got 0");
    let dim = case.config.model.tables[1].dim;
    let columns =
        Constraints { least_columns: Some(1_000), ..for_one("t1", layouts(&[LayoutKind::Column])) };
    check(&case, &columns, &format!("column needs 2000 columns, got {dim}"));
    let one_row = with_rows(1, 1);
    let rows = for_one("t1", layouts(&[LayoutKind::Row]));
    check(&one_row, &rows, "row needs 2 rows, got 1");
}

#[test]
fn pinned_placements_that_do_not_exist_are_named() {
    let case = RandomCase::new(0);
    let beyond = "pinned table \"t1\": expected ranks below 8, got 8";
    check(&case, &pinned("t1", Layout::Table, [8]), beyond);
    let parts = "one rank for each part of the layout table, got 2 ranks";
    check(&case, &pinned("t1", Layout::Table, [0, 1]), parts);
    let columns = Layout::Column { parts: 300 };
    check(&case, &pinned("t1", columns, (0..300).map(|part| part % 8)), "got 300 ranks");
    let twice = "each row block of a column part on another rank, got ranks [1, 1]";
    check(&case, &pinned("t1", Layout::Row, [1, 1]), twice);
    // A pin must agree with the other constraints of its section.
    let mut column = pinned("t1", Layout::Column { parts: 2 }, [0, 1]);
    let own = column.tables.get_mut("t1").expect("constraints");
    own.layouts = Some(vec![LayoutKind::Row, LayoutKind::Table]);
    check(&case, &column, "expected one of the layouts row or table, got column");
    let own = column.tables.get_mut("t1").expect("constraints");
    (own.layouts, own.most_ranks) = (None, Some(1));
    check(&case, &column, "expected at most the 1 ranks of most_ranks, got 2 ranks");
    let alone = "expected several ranks for the parts of the layout column, got rank 3 alone";
    check(&case, &pinned("t1", Layout::Column { parts: 2 }, [3, 3]), alone);
    check(&case, &pinned("t1", Layout::Row, [3]), "the layout row, got rank 3 alone");
    let hosts = "expected several hosts for the layout table-row, got 1 host";
    check(&case, &pinned("t1", Layout::TableRow, [0, 1]), hosts);
    let grid = Layout::Grid { columns: 2 };
    check(&case, &pinned("t1", grid, [0, 1, 2, 3]), "for the layout grid, got 1 host");
    let apart = "expected the rows of a column part on one host";
    check(&on("2xv100x4"), &pinned("t1", Layout::TableRow, [3, 4]), apart);
}

#[test]
fn constraints_on_no_table_of_the_model_are_named() {
    let unknown = for_one("t1000", layouts(&[]));
    check(&RandomCase::new(0), &unknown, "table \"t1000\": expected a name among the");
}
