//! Problems without a plan: each error names what binds.

use std::collections::BTreeMap;

use plan::{
    Constraints, Error, Layout, LayoutKind, Placement, PlanOptions, TableConstraints, plan,
};
use predict::step::Models;
use schema::{Rank, Topology};

use crate::cases::RandomCase;

fn refused(case: &RandomCase, constraints: &Constraints) -> Error {
    let models = Models::shipped().expect("models");
    let options = PlanOptions { budget: Some(200), ..PlanOptions::new(1) };
    plan(&case.problem(&models, constraints), &options).expect_err("no plan")
}

fn for_one(name: &str, constraints: TableConstraints) -> Constraints {
    let tables = BTreeMap::from([(name.to_owned(), constraints)]);
    Constraints { tables, ..Constraints::default() }
}

fn layouts(kinds: &[LayoutKind]) -> TableConstraints {
    TableConstraints { layouts: Some(kinds.to_vec()), ..TableConstraints::default() }
}

#[test]
fn memory_that_lacks_is_named_with_the_smallest_changes() {
    let mut case = RandomCase::new(0);
    for table in &mut case.config.model.tables {
        table.rows = 20_000_000;
    }
    let Error::Memory(found) = refused(&case, &Constraints::default()) else { unreachable!() };
    assert_eq!(
        (found.kind, found.reserve, found.fits_unconstrained),
        ("table_weights", None, false)
    );
    assert!(found.needed > found.capacity && found.hosts.is_some_and(|hosts| hosts > 1));

    // A reserve and a batch that do not fit.
    let case = RandomCase::new(0);
    let reserve = Constraints { reserve_bytes: 33 << 30, ..Constraints::default() };
    let Error::Memory(found) = refused(&case, &reserve) else { unreachable!() };
    assert!(found.reserve.is_some_and(|bytes| bytes > 0), "{found}");
    let mut case = RandomCase::new(0);
    case.config.training.batch_size <<= 8;
    let Error::Memory(found) = refused(&case, &Constraints::default()) else { unreachable!() };
    let batch = case.config.training.batch_size;
    assert!(found.batch.is_some_and(|fits| fits < batch), "{found}");
    assert!(found.kind != "table_weights", "{found}");

    // A constraint that does not let the largest table be cut.
    let mut case = RandomCase::new(0);
    case.config.model.tables[5].rows = 300_000_000;
    let whole = for_one("t5", layouts(&[LayoutKind::Table]));
    let error = refused(&case, &whole);
    let Error::Memory(found) = &error else { unreachable!() };
    assert!(found.fits_unconstrained && error.to_string().contains("other constraints"), "{error}");
    let pinned = Some(Placement::whole(Rank(2)));
    let pinned = for_one("t5", TableConstraints { pinned, ..TableConstraints::default() });
    let Error::Memory(found) = refused(&case, &pinned) else { unreachable!() };
    assert_eq!((found.rank, found.fits_unconstrained), (2, true));
    let Error::Memory(found) = refused(&case, &for_one("t5", layouts(&[LayoutKind::Replicated])))
    else {
        unreachable!()
    };
    assert!(found.fits_unconstrained);
}

#[test]
fn constraints_and_topologies_that_exclude_every_layout_are_named() {
    let mut case = RandomCase::new(0);
    let check = |case: &RandomCase, constraints: &Constraints, expected: &str| {
        let text = refused(case, constraints).to_string();
        assert!(text.contains(expected), "{text}");
    };
    let by_host = for_one("t1", layouts(&[LayoutKind::TableRow]));
    check(&case, &by_host, "table \"t1\": expected a layout that is possible on at most 8 ranks");
    check(&case, &by_host, "got only table_row");
    let none =
        for_one("t1", TableConstraints { most_ranks: Some(0), ..layouts(&[LayoutKind::Table]) });
    check(&case, &none, "at most 0 ranks");
    check(&case, &for_one("t1000", layouts(&[])), "table \"t1000\": expected a name among the");
    let columns =
        Constraints { least_columns: Some(1_000), ..for_one("t1", layouts(&[LayoutKind::Column])) };
    check(&case, &columns, "got only column");
    let pinned = |placement: Placement| {
        let pinned = Some(placement);
        for_one("t1", TableConstraints { pinned, ..TableConstraints::default() })
    };
    check(
        &case,
        &pinned(Placement::whole(Rank(8))),
        "pinned table \"t1\": expected ranks below 8, got 8",
    );
    let two = Placement { layout: Layout::Table, ranks: vec![Rank(0), Rank(1)] };
    check(&case, &pinned(two), "one rank for each part of the layout table, got 2 ranks");
    case.topology = Topology::parse("2xv100x4").expect("hosts");
    let ranks = vec![Rank(3), Rank(4)];
    let apart = Placement { layout: Layout::TableRow, ranks };
    check(&case, &pinned(apart), "expected the rows of a column part on one host");
    case.topology = Topology::parse("v100").expect("a device");
    check(&case, &for_one("t1", layouts(&[LayoutKind::Row])), "got only row");
}
