use trace::store::NewSlice;

use super::*;
use crate::facts::tree;

fn event(trace: &mut Trace, time: i64, bytes: i64, allocated: i64, reserved: i64) {
    trace.allocations.push(Allocation {
        time,
        address: 0,
        bytes,
        total_allocated: allocated,
        total_reserved: reserved,
        device_type: 1,
        device: 0,
        track: trace.slices.track[0],
    });
}

#[test]
fn the_peak_names_its_operator_and_the_share_no_tensor_uses() {
    let mut trace = Trace::default();
    for (category, name, start, end) in [
        ("user_annotation", "forward", 0, 100),
        ("cpu_op", "aten::linear", 10, 50),
        ("cpu_op", "aten::empty", 20, 30),
        ("cpu_op", "aten::relu", 60, 70),
    ] {
        trace.push(&NewSlice::new(category, name, (1, 1), (start, end)));
    }
    event(&mut trace, 62, -100, 300, 1000);
    event(&mut trace, 15, 200, 200, 500);
    event(&mut trace, 25, 200, 400, 1000);
    event(&mut trace, 90, 100, 400, 1000);
    let tree = tree::build(&trace);
    let times: Vec<i64> = list_points(&trace).iter().map(|point| point.time_ns).collect();
    assert_eq!(times, [15, 25, 62, 90]);
    let peak = &find_peaks(&trace, &tree)[0];
    assert_eq!((peak.allocated_bytes_max, peak.time_ns), (400, 25));
    assert_eq!((peak.unused_pct, peak.device_pct), (Some(60.0), None));
    assert_eq!(peak.operator.as_deref(), Some("aten::empty"));
    assert_eq!(peak.outermost.as_deref(), Some("forward"));
    let rows = sum_by_operator(&trace, &tree);
    let operators: Vec<_> = rows.iter().map(|row| (&*row.operator, row.net_bytes)).collect();
    let expected =
        [("aten::empty", 200), ("aten::linear", 200), ("forward", 100), ("aten::relu", -100)];
    assert_eq!(operators, expected);
}

#[test]
fn without_totals_bytes_count_from_nothing() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "a", (1, 1), (0, 10)));
    for (time, bytes) in [(1, 50), (2, 70), (3, -50)] {
        event(&mut trace, time, bytes, 0, 0);
    }
    let peaks = find_peaks(&trace, &tree::build(&trace));
    assert_eq!((peaks[0].allocated_bytes_max, peaks[0].unused_pct), (120, None));
    assert_eq!(find_peaks(&Trace::default(), &tree::build(&Trace::default())), []);
}

#[test]
fn sums_stop_at_the_greatest_integer() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "aten::empty", (1, 1), (0, 100)));
    event(&mut trace, 1, i64::MAX, 0, i64::MIN);
    event(&mut trace, 2, i64::MAX, 0, i64::MIN);
    let tree = tree::build(&trace);
    assert_eq!(find_peaks(&trace, &tree)[0].allocated_bytes_max, i64::MAX);
    assert_eq!(sum_by_operator(&trace, &tree)[0].allocated_bytes, i64::MAX);
}
