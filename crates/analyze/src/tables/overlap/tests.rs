use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

/// A kernel name for each of the four classes, by the rules of Holistic Trace Analysis.
const NAMES: [&str; 4] = ["gemm", "ncclAllReduce", "Memcpy HtoD", "job_exe"];

fn trace(rows: &[(usize, i64, i64)]) -> Trace {
    let mut trace = Trace::default();
    for (class, start, end) in rows {
        trace.push(&NewSlice::new("kernel", NAMES[*class], (0, *class as i64), (*start, *end)));
    }
    trace
}

fn times(rows: &[(usize, i64, i64)]) -> Exclusive {
    let trace = trace(rows);
    Exclusive::new(&Scope::new(&trace, WindowRule::Hta, &Classifier::new(ClassRule::Hta)))
}

#[test]
fn every_set_of_classes_has_its_own_time() {
    // Class c runs in tick t if bit c of the Gray code of t is set, so all 15 non-empty sets occur.
    let mut rows = Vec::new();
    for tick in 1..16_i64 {
        let gray = (tick ^ (tick >> 1)) as usize;
        rows.extend((0..4).filter(|class| gray >> class & 1 == 1).map(|c| (c, tick, tick + 1)));
    }
    let times = times(&rows);
    assert_eq!(times.ns[1..], [1; 15]);
    assert_eq!(times.busy(), 15);
    assert_eq!(times.running(WorkClass::Memory), 8);
    assert_eq!(times.both(WorkClass::Compute, WorkClass::Communication), 4);
    assert_eq!(
        times.exposed(WorkClass::Memory, &[WorkClass::Compute, WorkClass::Communication]),
        2
    );
}

#[test]
fn several_streams_of_one_class_count_once() {
    let times = times(&[(0, 0, 10), (0, 5, 12), (1, 8, 8), (1, 11, 20)]);
    assert_eq!((times.ns[1], times.ns[2], times.ns[3]), (11, 8, 1));
}

#[test]
fn rows_name_their_classes() {
    let trace = trace(&[(0, 0, 10), (1, 4, 6), (2, 4, 5)]);
    let scope = Scope::new(&trace, WindowRule::Hta, &Classifier::new(ClassRule::Hta));
    let rows = compute_overlap(&scope);
    let text: Vec<String> = rows
        .iter()
        .filter(|row| row.exclusive_ns > 0)
        .map(|row| format!("{} {} {:?}", row.classes, row.exclusive_ns, row.busy_pct))
        .collect();
    assert_eq!(rows.len(), 15);
    assert_eq!(
        text,
        [
            "compute 8 Some(80.0)",
            "compute+communication 1 Some(10.0)",
            "compute+communication+memory 1 Some(10.0)",
        ]
    );
}
