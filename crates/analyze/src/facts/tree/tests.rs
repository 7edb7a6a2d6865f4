use trace::store::{NewSlice, Trace};

use super::*;

/// Builds a trace with the rows (category, name, start, end) on one thread.
fn trace(rows: &[(&str, &str, i64, i64)]) -> Trace {
    let mut trace = Trace::default();
    for (category, name, start, end) in rows {
        trace.push(&NewSlice::new(category, name, (1, 1), (*start, *end)));
    }
    trace
}

/// Draws the tree as text, with one name per node and a dot per level.
fn drawn(trace: &Trace, tree: &OperatorTree) -> String {
    let line =
        |row: &u32| format!("{}{}", ".".repeat(tree.depth(*row) as usize - 1), trace.name(*row));
    tree.nodes.iter().map(line).collect::<Vec<_>>().join(" ")
}

#[test]
fn rows_that_start_together_nest_by_their_order_not_by_their_length() {
    let mut trace = trace(&[("cpu_op", "parent", 10, 12), ("cpu_op", "child", 10, 12)]);
    trace.slices.event_index.push(0, 7);
    trace.slices.event_index.push(1, 8);
    assert_eq!(drawn(&trace, &build(&trace)), "parent .child");
    let mut swapped = trace.clone();
    swapped.slices.event_index.iter_mut().for_each(|(row, index)| *index = 9 - u64::from(row));
    assert_eq!(drawn(&swapped, &build(&swapped)), "child .parent");
}

#[test]
fn an_operator_goes_before_a_call_of_the_same_instant() {
    let trace = trace(&[("cuda_runtime", "call", 5, 6), ("cpu_op", "operator", 5, 9)]);
    assert_eq!(drawn(&trace, &build(&trace)), "operator .call");
}

#[test]
fn an_empty_row_stays_in_the_operator_that_ends_there() {
    let rows = [
        ("cpu_op", "a", 0, 10),
        ("cuda_runtime", "past", 8, 10),
        ("cuda_runtime", "empty", 10, 10),
        ("cpu_op", "b", 11, 20),
        ("cpu_op", "c", 20, 22),
    ];
    let trace = trace(&rows);
    assert_eq!(drawn(&trace, &build(&trace)), "a .past .empty b c");
}

#[test]
fn a_child_past_its_parent_is_clipped_and_counted() {
    let trace = trace(&[("cpu_op", "a", 0, 10), ("cpu_op", "b", 5, 12), ("cpu_op", "c", 11, 14)]);
    let tree = build(&trace);
    assert_eq!(drawn(&trace, &tree), "a .b c");
    assert_eq!(tree.clipped, [Clip { row: 1, parent: 0, excess_ns: 2 }]);
    assert_eq!(tree.end(1), Some(10));
}

#[test]
fn the_innermost_row_at_a_time_is_found() {
    let rows = [
        ("user_annotation", "step", 0, 100),
        ("cpu_op", "a", 10, 50),
        ("cpu_op", "b", 20, 30),
        ("kernel", "no host row", 20, 30),
        ("cpu_op", "c", 60, 60),
    ];
    let trace = trace(&rows);
    let tree = build(&trace);
    let track = trace.slices.track[0];
    let at = |time| tree.deepest_at(track, time).map(|row| trace.name(row));
    let found = [-1, 0, 10, 29, 30, 50, 60, 99, 100].map(at);
    let expected = ["", "step", "a", "b", "a", "step", "step", "step", ""];
    assert_eq!(found.map(Option::unwrap_or_default), expected);
    assert_eq!(tree.ancestors(2).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(tree.children(0).collect::<Vec<_>>(), [1, 4]);
    assert_eq!(tree.subtree(1), [1, 2]);
    assert_eq!(tree.top_operators(&trace), [1, 4]);
    assert!(!tree.contains(3) && tree.depth(3) == 0 && tree.subtree(3).is_empty());
}

#[test]
fn threads_are_separate_and_an_empty_trace_has_no_tree() {
    let mut two = trace(&[("cpu_op", "a", 0, 10)]);
    two.push(&NewSlice::new("cpu_op", "b", (1, 2), (2, 4)));
    let tree = build(&two);
    assert_eq!(tree.roots().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(tree.threads.len(), 2);
    assert_eq!(tree.roots_of(&tree.threads[1]).collect::<Vec<_>>(), [1]);
    let empty = build(&Trace::default());
    assert_eq!(empty.roots().count(), 0);
    assert_eq!(empty.deepest_at(TrackId(0), 5), None);
}

#[test]
fn python_frames_nest_by_their_ids() {
    let rows = [
        ("python_function", "main", 0, 100),
        ("python_function", "late", 50, 60),
        ("python_function", "early", 10, 40),
        ("python_function", "inner", 12, 45),
        ("python_function", "lost", 70, 80),
    ];
    let mut trace = trace(&rows);
    let frames = [(1, None), (4, Some(1)), (2, Some(1)), (3, Some(2)), (9, Some(77))];
    for (row, (id, parent)) in frames.into_iter().enumerate() {
        let frame = trace::store::PythonFrame { id, parent, module: None };
        trace.slices.python.push(row as u32, frame);
    }
    let tree = build_python_tree(&trace);
    assert_eq!(drawn(&trace, &tree), "main .early ..inner .late lost");
    assert_eq!(tree.clipped.len(), 1);
}
