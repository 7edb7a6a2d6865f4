use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::tree;
use crate::facts::window::WindowRule;

/// One row of the fixture as (category, name, start, end, correlation id, external id, graph node).
type Row = (&'static str, &'static str, i64, i64, u64, u64, u64);

fn check(rows: &[Row], expected: &[(&str, OwnerMethod, &str)]) {
    let mut trace = Trace::default();
    for &(category, name, start, end, correlation, external, node) in rows {
        let track = if category.contains("gpu") || category == "kernel" { (0, 7) } else { (90, 1) };
        let mut slice = NewSlice::new(category, name, track, (start, end));
        slice.correlation = Some(correlation).filter(|id| *id != 0);
        slice.external_id = Some(external).filter(|id| *id != 0);
        let row = trace.push(&slice);
        if node != 0 {
            trace.slices.graph_node.push(row, node);
        }
    }
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let attribution = attribute_device_work(&scope, &tree::build(&trace));
    let found = scope.device_rows.iter().enumerate().map(|(place, row)| {
        let owner = attribution.owner(place).map_or("", |owner| trace.name(owner));
        (trace.name(*row), attribution.methods[place], owner)
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn the_innermost_operator_around_the_call_owns_the_work() {
    check(
        &[
            ("cpu_op", "outer", 0, 100, 0, 1, 0),
            ("cpu_op", "inner", 10, 50, 0, 2, 0),
            ("cuda_runtime", "launch", 20, 30, 5, 0, 0),
            ("cuda_runtime", "launch", 60, 65, 6, 0, 0),
            ("kernel", "a", 200, 210, 5, 0, 0),
            ("kernel", "b", 210, 220, 6, 0, 0),
        ],
        &[("a", OwnerMethod::Correlation, "inner"), ("b", OwnerMethod::Correlation, "outer")],
    );
}

#[test]
fn external_ids_that_are_correlation_ids_are_ignored() {
    let rows = |external| {
        [("cpu_op", "operator", 0, 10, 0, 5, 0), ("kernel", "a", 20, 30, 5, external, 0)]
    };
    check(&rows(5), &[("a", OwnerMethod::Orphan, "")]);
    let lost = ("kernel", "b", 30, 40, 9, 5, 0);
    let [operator, same] = rows(5);
    check(
        &[operator, same, lost],
        &[("a", OwnerMethod::ExternalId, "operator"), ("b", OwnerMethod::ExternalId, "operator")],
    );
}

#[test]
fn work_without_an_operator_belongs_to_a_graph_node_or_an_annotation() {
    check(
        &[
            ("user_annotation", "forward", 0, 100, 0, 0, 0),
            ("cpu_op", "capture", 10, 20, 0, 1, 0),
            ("cuda_runtime", "launch", 12, 14, 5, 0, 0),
            ("cuda_runtime", "launch", 30, 35, 6, 0, 0),
            ("cuda_runtime", "launch", 130, 135, 7, 0, 0),
            ("kernel", "a", 200, 210, 5, 0, 77),
            ("kernel", "b", 210, 220, 6, 0, 0),
            ("kernel", "c", 220, 230, 7, 0, 0),
            ("kernel", "d", 230, 240, 8, 0, 77),
            ("gpu_user_annotation", "wide", 240, 300, 0, 0, 0),
            ("gpu_user_annotation", "narrow", 240, 260, 0, 0, 0),
            ("kernel", "e", 241, 250, 9, 0, 0),
            ("kernel", "f", 270, 280, 9, 0, 0),
            ("kernel", "g", 300, 310, 9, 0, 0),
        ],
        &[
            ("a", OwnerMethod::Correlation, "capture"),
            ("b", OwnerMethod::Annotation, "forward"),
            ("c", OwnerMethod::Call, ""),
            ("d", OwnerMethod::GraphNode, "capture"),
            ("e", OwnerMethod::Annotation, "narrow"),
            ("f", OwnerMethod::Annotation, "wide"),
            ("g", OwnerMethod::Orphan, ""),
        ],
    );
}
