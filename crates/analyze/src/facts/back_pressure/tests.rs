use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

const KERNEL_NS: i64 = 100_000;
const CALL_NS: i64 = 5_000;
const BACK_NS: i64 = 7_000;

/// Builds a host that launches kernels without a pause into a queue of `depth` places. A call that
/// finds the queue full returns shortly after a place becomes free.
fn trace(count: usize, depth: usize) -> Trace {
    let mut trace = Trace::default();
    let (mut now, mut ends) = (0, Vec::<i64>::new());
    for at in 0..count {
        let start = now;
        let room = at.checked_sub(depth).map_or(i64::MIN, |before| ends[before]);
        let end = if room > start + CALL_NS { room + BACK_NS } else { start + CALL_NS };
        let begin = ends.last().copied().unwrap_or(0).max(end);
        ends.push(begin + KERNEL_NS);
        for (category, name, track, span) in [
            ("cuda_runtime", "cudaLaunchKernel", (9, 9), (start, end)),
            ("kernel", "gemm", (0, 7), (begin, begin + KERNEL_NS)),
        ] {
            let slice = NewSlice::new(category, name, track, span);
            trace.push(&NewSlice { correlation: Some(at as u64 + 1), ..slice });
        }
        now = end;
    }
    trace
}

fn found(trace: &Trace) -> Pressure {
    find_back_pressure(
        &Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category)),
        &[],
    )
}

#[test]
fn calls_that_wait_for_room_agree_on_a_distance() {
    let trace = trace(200, 40);
    let found = found(&trace);
    assert_eq!(found.limits, [QueueLimit { device: 0, distance: 40, agreeing: 158 }]);
    let wait = &found.waits[0];
    assert_eq!((wait.distance, wait.typical_ns), (40, CALL_NS));
}

#[test]
fn a_long_queue_without_a_stretched_call_is_no_limit() {
    let found = found(&trace(200, 1000));
    assert_eq!((found.waits.len(), found.limits.len()), (0, 0));
}
