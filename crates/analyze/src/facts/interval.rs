//! Represents sets of times as sorted, disjoint, half-open intervals.

/// A half-open span `start..end` in nanoseconds.
pub type Interval = (i64, i64);

/// Returns the union of intervals as sorted intervals that neither overlap nor touch. Empty
/// intervals are dropped from the union.
///
/// # Cost
/// The cost is `O(n log n)`, or `O(n)` if the intervals are already sorted by start.
pub fn union(mut intervals: Vec<Interval>) -> Vec<Interval> {
    if !intervals.is_sorted_by_key(|(start, _)| *start) {
        intervals.sort_unstable();
    }
    let mut merged = Vec::new();
    for interval in intervals {
        add(&mut merged, interval);
    }
    merged
}

/// Adds an interval to a union. The interval must not start before any interval that was added
/// earlier. An empty interval leaves the union unchanged.
pub fn add(union: &mut Vec<Interval>, (start, end): Interval) {
    if start >= end {
        return;
    }
    match union.last_mut() {
        Some(last) if start <= last.1 => last.1 = last.1.max(end),
        _ => union.push((start, end)),
    }
}

/// Returns the total length of disjoint intervals.
pub fn length(disjoint: &[Interval]) -> i64 {
    disjoint.iter().map(|(start, end)| end - start).sum()
}

/// Returns how much of a span is covered by a union.
///
/// # Cost
/// The cost is `O(log n)` plus the number of intervals that overlap the span.
pub fn length_within(union: &[Interval], (start, end): Interval) -> i64 {
    let first = union.partition_point(|(_, to)| *to <= start);
    let inside = union[first..].iter().take_while(|(from, _)| *from < end);
    inside.map(|(from, to)| (*to).min(end) - (*from).max(start)).sum()
}

/// Returns the times that are in both unions.
pub fn intersection(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let (mut i, mut j) = (0, 0);
    let mut shared = Vec::new();
    while i < a.len() && j < b.len() {
        let (start, end) = (a[i].0.max(b[j].0), a[i].1.min(b[j].1));
        if start < end {
            shared.push((start, end));
        }
        if a[i].1 < b[j].1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    shared
}

/// Returns the times that are in the union `a` but not in the union `b`.
pub fn difference(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let mut rest = Vec::new();
    let mut j = 0;
    for &(mut start, end) in a {
        while j < b.len() && b[j].1 <= start {
            j += 1;
        }
        let mut at = j;
        while at < b.len() && b[at].0 < end {
            if start < b[at].0 {
                rest.push((start, b[at].0));
            }
            start = start.max(b[at].1);
            at += 1;
        }
        if start < end {
            rest.push((start, end));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_intervals_are_one_and_empty_ones_none() {
        let merged = union(vec![(5, 7), (0, 2), (2, 3), (9, 9), (6, 8)]);
        assert_eq!(merged, [(0, 3), (5, 8)]);
        assert_eq!(length(&merged), 6);
    }

    #[test]
    fn intersection_and_difference_partition_a_set() {
        let a = [(0, 10), (20, 30), (40, 50)];
        let b = [(5, 22), (24, 26), (45, 60)];
        assert_eq!(intersection(&a, &b), [(5, 10), (20, 22), (24, 26), (45, 50)]);
        assert_eq!(difference(&a, &b), [(0, 5), (22, 24), (26, 30), (40, 45)]);
    }
}
