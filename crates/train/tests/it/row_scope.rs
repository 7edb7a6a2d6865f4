//! Runs whose plan splits columns: the update rule of row-wise Adagrad and LAMB, and what becomes
//! of it under another plan.

use device::Cpu;
use schema::{Optimizer, ShardingPlan, SplitRowRule, TableConfig};
use train::{Error, RuleChange, RunEvent, Start};

use crate::run::{dataset, plan, request};

/// A run resumes a checkpoint under another plan only if the plan keeps the update rule or the user
/// accepts the change. After an accepted change, the run reports it, and the next checkpoint names
/// the new rule.
#[test]
fn a_changed_update_rule_is_refused_unless_accepted() {
    type Make = fn(&[TableConfig], u32) -> ShardingPlan;
    let (table, row): (Make, Make) = (ShardingPlan::table_wise, ShardingPlan::row_wise);
    let (column, mixed): (Make, Make) = (ShardingPlan::column_wise, ShardingPlan::mixed);
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let whole = "whole rows";
    let (halves, columns) = ("2 column tiles of 2 columns", "4 column tiles of 1 column");
    let cases = [
        ((table, 1), (row, 3), None),
        ((row, 2), (table, 2), None),
        ((mixed, 2), (row, 2), None),
        ((column, 2), (column, 2), None),
        ((table, 1), (column, 2), Some((whole, halves))),
        ((column, 2), (row, 2), Some((halves, whole))),
        ((column, 2), (column, 4), Some((halves, columns))),
    ];
    for kind in Optimizer::ALL {
        for (number, (from, to, change)) in cases.iter().enumerate() {
            let what = format!("{kind}, case {number}");
            let change = change.filter(|_| kind.looks_at_rows());
            let run = folder.path().join(format!("{kind}-{number}"));
            let mut request = request(&run, &dataset, plan(from.0, from.1));
            request.config.optimizer.sparse.kind = kind;
            request.config.optimizer.row_scope = column_tiles(kind);
            request.config.optimizer.sparse.learning_rate = 0.01;
            request.config.training.steps = Some(2);
            let outcome = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
            request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
            request.config.training.steps = Some(4);
            request.plan = plan(to.0, to.1);
            let refused = train::run(&request, Cpu::open, &mut |_| {});
            let Some((before, after)) = change else {
                assert_eq!(refused.unwrap().step, 4, "{what}");
                continue;
            };
            let refused = refused.unwrap_err().to_string();
            let expected = format!(
                "table \"a\": state of {kind}: expected one over {after}, got one over {before}: \
                 another rule"
            );
            assert!(refused.ends_with(&expected), "{what}: {refused}");
            request.rule_change = RuleChange::Accept;
            let mut scopes = Vec::new();
            let accepted = train::run(&request, Cpu::open, &mut |event| {
                if let RunEvent::RowScope { optimizer, scope, before } = event {
                    let before = before.map(|before| before.text_of("a"));
                    scopes.push((optimizer, scope.text_of("a"), before));
                }
            });
            let checkpoint = accepted.unwrap().checkpoint.unwrap();
            assert_eq!(scopes, [(kind, after.to_owned(), Some(before.to_owned()))], "{what}");
            let scope = train::checkpoint::Checkpoint::open(&checkpoint).unwrap().row_scope();
            assert_eq!(scope.text_of("a"), after, "{what}");
        }
    }
}

/// Returns the rule of column tiles for optimizers of whole rows.
fn column_tiles(kind: Optimizer) -> SplitRowRule {
    if kind.looks_at_rows() { SplitRowRule::ColumnTiles } else { SplitRowRule::WholeRows }
}

/// By default, columns may be split without another rule, since ranks exchange terms of rows.
#[test]
fn a_run_over_whole_rows_resumes_under_any_plan() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let makes = [
        ShardingPlan::column_wise,
        ShardingPlan::replicate,
        crate::checkpoint::with_replicas,
        ShardingPlan::table_wise,
        ShardingPlan::mixed,
    ];
    for kind in [Optimizer::RowwiseAdagrad, Optimizer::Lamb] {
        let run = folder.path().join(kind.name());
        let mut request = request(&run, &dataset, plan(ShardingPlan::row_wise, 2));
        request.config.optimizer.sparse.kind = kind;
        for (number, make) in (1..).zip(makes) {
            request.config.training.steps = Some(number);
            let checkpoint = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint;
            let checkpoint = checkpoint.unwrap();
            let opened = train::checkpoint::Checkpoint::open(&checkpoint).unwrap();
            assert_eq!(opened.row_scope(), schema::RowScope::WholeRows, "{kind}, {number}");
            request.start = Start::Checkpoint(checkpoint);
            request.plan = plan(make, 1 + number as u32 % 3);
        }
        request.config.optimizer.row_scope = SplitRowRule::ColumnTiles;
        request.plan = plan(ShardingPlan::column_wise, 2);
        request.config.training.steps = Some(9);
        let refused = train::run(&request, Cpu::open, &mut |_| {});
        assert!(matches!(refused, Err(Error::OtherRowScope { .. })), "{refused:?}");
    }
}

/// Earlier versions wrote the plan to a checkpoint, but not the row scope.
#[test]
fn a_checkpoint_without_a_row_scope_uses_that_of_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let plan_of = |ranks| plan(ShardingPlan::column_wise, ranks);
    let mut request = request(&folder.path().join("run"), &dataset, plan_of(2));
    request.config.optimizer.row_scope = column_tiles(request.config.optimizer.sparse.kind);
    request.config.training.steps = Some(2);
    let checkpoint = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint.unwrap();
    let manifest = checkpoint.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let scope = value.as_object_mut().unwrap().remove("row_scope").unwrap();
    assert_eq!(scope["column_tiles"].as_array().unwrap().len(), 2, "{scope}");
    crate::samples::write_manifest(&manifest, &value);
    request.start = Start::Checkpoint(checkpoint);
    request.config.training.steps = Some(3);
    assert_eq!(train::run(&request, Cpu::open, &mut |_| {}).unwrap().step, 3);
    request.config.training.steps = Some(4);
    request.plan = plan_of(4);
    let refused = train::run(&request, Cpu::open, &mut |_| {});
    assert!(matches!(refused, Err(Error::OtherRowScope { .. })), "{refused:?}");
}

#[test]
fn a_run_on_column_tiles_reports_its_row_scope_first() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut said = Vec::new();
    for (number, kind) in Optimizer::ALL.into_iter().enumerate() {
        let run = folder.path().join(number.to_string());
        let mut request = request(&run, &dataset, plan(ShardingPlan::column_wise, 2));
        request.config.optimizer.sparse.kind = kind;
        request.config.optimizer.row_scope = column_tiles(kind);
        request.config.training.steps = Some(1);
        let mut is_start = true;
        train::run(&request, Cpu::open, &mut |event| match event {
            RunEvent::RowScope { optimizer, before: None, .. } if is_start => said.push(optimizer),
            RunEvent::Stepped { .. } => is_start = false,
            _ => {}
        })
        .unwrap();
    }
    assert_eq!(said, [Optimizer::RowwiseAdagrad, Optimizer::Lamb]);
}
