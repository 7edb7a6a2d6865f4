//! Finds owners of device work whose launch call is unknown or ran outside all operators.

use trace::store::{EventKind, Trace};

use super::method::{NONE, OwnerMethod};

/// The methods and owners found so far, each with one entry per device row.
type RowOwner<'a> = (&'a mut [OwnerMethod], &'a mut [u32]);

fn is_open(method: OwnerMethod) -> bool {
    matches!(method, OwnerMethod::Call | OwnerMethod::Orphan)
}

/// Attributes device rows to the operator that has the same external id as the row.
pub(super) fn by_external_id(trace: &Trace, rows: &[u32], (methods, owners): RowOwner<'_>) {
    let slices = &trace.slices;
    let is_own = |row: &u32| slices.external_id(*row) != slices.correlation(*row);
    let has_id = |row: &u32| slices.external_id(*row).is_some_and(|id| id != 0);
    // Up to 2023 the profiler wrote the correlation id as the external id, so the id names no
    // operator.
    if !methods.iter().any(|method| is_open(*method))
        || !rows.iter().any(|row| has_id(row) && is_own(row))
    {
        return;
    }
    let operators = trace.rows().filter(|row| trace.kind(*row) == EventKind::Operator);
    let mut by_id: Vec<(u64, u32)> = operators
        .filter_map(|row| Some((slices.external_id(row).filter(|id| *id != 0)?, row)))
        .collect();
    by_id.sort_unstable();
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| has_id(row)) {
        let id = slices.external_id(*row).unwrap_or_default();
        let found = by_id.binary_search_by_key(&id, |(id, _)| *id);
        if let (true, Ok(found)) = (is_open(methods[at]), found) {
            (methods[at], owners[at]) = (OwnerMethod::ExternalId, by_id[found].1);
        }
    }
}

/// Attributes a device row to the owner of other work of the same graph node, if the launch of that
/// work is known.
pub(super) fn by_graph_node(trace: &Trace, rows: &[u32], (methods, owners): RowOwner<'_>) {
    let node = |row: u32| trace.slices.graph_node.get(row).copied();
    if trace.slices.graph_node.is_empty() {
        return;
    }
    let is_known =
        |at: &usize| matches!(methods[*at], OwnerMethod::Correlation | OwnerMethod::ExternalId);
    let places = (0..rows.len()).filter(is_known);
    let mut by_node: Vec<(u64, u32)> =
        places.filter_map(|at| Some((node(rows[at])?, owners[at]))).collect();
    by_node.sort_unstable();
    for (at, row) in rows.iter().enumerate() {
        let Some(node) = node(*row).filter(|_| methods[at] == OwnerMethod::Orphan) else {
            continue;
        };
        let found = by_node.partition_point(|(other, _)| *other < node);
        if let Some((_, owner)) = by_node.get(found).filter(|(other, _)| *other == node) {
            (methods[at], owners[at]) = (OwnerMethod::GraphNode, *owner);
        }
    }
}

/// Attributes device rows to the innermost annotation that was open on their stream when they
/// began.
pub(super) fn by_span_on_stream(trace: &Trace, rows: &[u32], (methods, owners): RowOwner<'_>) {
    let slices = &trace.slices;
    let is_span = |row: &u32| trace.kind(*row) == EventKind::DeviceAnnotation;
    let track = |row: u32| slices.track[row as usize];
    // Sort longer rows first, so that the innermost annotation is opened last. The place `NONE`
    // marks an annotation.
    let order = |row: u32, place| (track(row), slices.start(row), -slices.end(row), place, row);
    let spans = trace.rows().filter(is_span).map(|row| order(row, NONE));
    let mut events: Vec<_> = spans.collect();
    if events.is_empty() {
        return;
    }
    let open_rows = rows.iter().enumerate().filter(|(at, _)| is_open(methods[*at]));
    events.extend(open_rows.map(|(at, row)| order(*row, at as u32)));
    events.sort_unstable();
    let mut open: Vec<(u32, i64)> = Vec::new();
    let mut last = None;
    for (track, start, end, place, row) in events {
        if last != Some(track) {
            open.clear();
            last = Some(track);
        }
        while open.last().is_some_and(|(_, end)| *end <= start) {
            open.pop();
        }
        if place == NONE {
            open.push((row, -end));
        } else if let Some((span, _)) = open.last() {
            (methods[place as usize], owners[place as usize]) = (OwnerMethod::Annotation, *span);
        }
    }
}
