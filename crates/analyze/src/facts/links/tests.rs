use trace::store::NewSlice;

use super::*;

/// Builds the links of a trace with the given rows (category, correlation id).
fn links(rows: &[(&str, u64)]) -> Links {
    let mut trace = Trace::default();
    for (start, (category, id)) in (0..).zip(rows) {
        let slice = NewSlice::new(category, "x", (1, 1), (start, start + 1));
        trace.push(&NewSlice { correlation: Some(*id), ..slice });
    }
    Links::new(&trace)
}

/// Checks the links of the given rows twice, with ids that are close together and with ids that are
/// far apart.
fn check(rows: &[(&str, u64)], expected: &[Option<u32>]) {
    for factor in [1, 1 << 40] {
        let rows: Vec<_> = rows.iter().map(|(category, id)| (*category, id * factor)).collect();
        let links = links(&rows);
        let calls: Vec<_> = (0..rows.len() as u32).map(|row| links.call(row)).collect();
        assert_eq!(calls, expected);
        for call in 0..rows.len() as u32 {
            let mut work = (0..rows.len() as u32).filter(|row| links.call(*row) == Some(call));
            assert!(links.work(call).iter().copied().eq(work.by_ref()));
        }
    }
}

#[test]
fn a_call_may_launch_several_and_work_may_have_no_call() {
    let rows = [
        ("kernel", 5),
        ("cuda_runtime", 4),
        ("kernel", 4),
        ("cuda_runtime", 5),
        ("kernel", 5),
        ("gpu_memcpy", 9),
        ("kernel", 3),
        ("cpu_op", 3),
    ];
    check(&rows, &[Some(3), None, Some(1), None, Some(3), None, None, None]);
}

#[test]
fn the_runtime_call_is_taken_before_the_driver_call() {
    let rows = [("cuda_driver", 7), ("cuda_runtime", 7), ("cuda_driver", 7), ("kernel", 7)];
    check(&rows, &[None, None, None, Some(1)]);
    assert_eq!(links(&rows).contested(), [0; 0]);
}

#[test]
fn the_last_call_before_the_work_wins_for_a_shared_id() {
    for kind in ["cuda_runtime", "cuda_driver"] {
        let rows = [("kernel", 7), (kind, 7), ("kernel", 7), (kind, 7), (kind, 8), ("kernel", 7)];
        check(&rows, &[Some(1), None, Some(1), None, None, Some(3)]);
        assert_eq!(links(&rows).contested(), [0, 2, 5]);
    }
}

#[test]
fn id_zero_links_nothing() {
    check(&[("cuda_runtime", 0), ("kernel", 0)], &[None, None]);
    check(&[], &[]);
}
