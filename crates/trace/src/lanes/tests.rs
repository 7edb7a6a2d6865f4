use super::{SliceLanes, assign};
use crate::store::{NewSlice, Trace};

fn lanes(spans: &[(i64, i64)]) -> (SliceLanes, Trace) {
    let mut trace = Trace::default();
    for span in spans {
        trace.push(&NewSlice::new("kernel", "k", (0, 7), *span));
    }
    (assign(&trace.slices, trace.tracks.len()), trace)
}

fn check(spans: &[(i64, i64)], expected: &[u32]) {
    let (lanes, trace) = lanes(spans);
    assert_eq!(lanes.lane, expected);
    let tracks = trace.tracks.len();
    let most = expected.iter().max().map_or(Vec::new(), |most| vec![most + 1; tracks]);
    assert_eq!(lanes.count, most);
}

#[test]
fn track_without_slices_has_no_lanes() {
    check(&[], &[]);
}

#[test]
fn nested_and_touching_slices_stay_on_their_track() {
    check(&[(0, 10), (0, 10), (2, 4), (4, 10), (10, 12), (10, 10)], &[0; 6]);
}

#[test]
fn slice_that_outlasts_its_parent_moves() {
    check(&[(0, 10), (5, 15), (10, 20)], &[0, 1, 0]);
}

#[test]
fn the_order_of_the_file_does_not_matter() {
    check(&[(10, 20), (5, 15), (0, 10)], &[0, 1, 0]);
}

#[test]
fn lanes_without_nesting_are_reused() {
    let stairs: Vec<_> = (0..40).map(|step| (step, step + 12)).collect();
    let (lanes, trace) = lanes(&stairs);
    assert_eq!(lanes.count, [12]);
    for first in 0..40 {
        for later in first + 1..40 {
            let overlap = trace.slices.start(later) < trace.slices.end(first);
            let same = lanes.lane[first as usize] == lanes.lane[later as usize];
            assert!(!(overlap && same), "rows {first} and {later}");
        }
    }
}
