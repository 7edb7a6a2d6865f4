//! Unions and sweeps as Holistic Trace Analysis computes them, negative durations included.

use super::ViewRow;

/// A union's part: start and end, microseconds. The end may lie before the start.
pub(super) type UnionSpan = (i64, i64);

/// Rows merged where they overlap or touch. A row of negative duration behind all others is a part
/// of its own, and takes time away, as often as the row is in the table.
pub(super) fn merged(rows: impl Iterator<Item = ViewRow>) -> Vec<UnionSpan> {
    // Only copies of a negative duration add something to a union.
    let copies = |row: &ViewRow| if row.duration_us < 0 { row.copies as usize } else { 1 };
    let repeated = rows.flat_map(|row| std::iter::repeat_n(row, copies(&row)));
    let mut spans: Vec<UnionSpan> = repeated.map(|row| (row.start_us, row.end_us())).collect();
    spans.sort_by_key(|(start, _)| *start);
    let mut merged: Vec<UnionSpan> = Vec::new();
    let mut behind = None;
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if behind.is_none_or(|behind| start <= behind) => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
        behind = behind.max(Some(end));
    }
    merged
}

/// Total length.
pub(super) fn length(spans: &[UnionSpan]) -> i64 {
    spans.iter().map(|(start, end)| end - start).sum()
}

/// Time by the sum of the weights of the unions that are open, as `(sum, microseconds)` for every
/// stretch between two ends. Weights are powers of two.
pub(super) fn sweep(unions: &[(i64, &[UnionSpan])]) -> Vec<(i64, i64)> {
    let mut ends: Vec<(i64, i64)> = Vec::new();
    for (weight, spans) in unions {
        ends.extend(spans.iter().map(|(start, _)| (*start, *weight)));
        ends.extend(spans.iter().map(|(_, end)| (*end, -*weight)));
    }
    ends.sort_by_key(|(time, _)| *time);
    let mut open = 0;
    let mut stretches = Vec::with_capacity(ends.len());
    for pair in ends.windows(2) {
        open += pair[0].1;
        stretches.push((open, pair[1].0 - pair[0].0));
    }
    stretches
}
