use trace::open;
use trace::store::{Covered, Trace};

use super::{judge, missing};

/// One row of the fixture as (category, name, thread or stream, start, duration, correlation id).
type Row = (&'static str, &'static str, u32, i64, i64, u64);

fn row((category, name, tid, start, duration, id): Row) -> String {
    let pid = if matches!(category, "kernel" | "gpu_memset") { 0 } else { 90 };
    format!(
        r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{pid},"tid":{tid},"ts":{start},"dur":{duration},"args":{{"correlation":{id}}}}}"#
    )
}

fn object(rows: &[Row]) -> String {
    let rows: Vec<String> = rows.iter().copied().map(row).collect();
    format!("{{\"schemaVersion\": 1, \"traceEvents\": [{}", rows.join(",\n"))
}

/// Returns the time until which a text is covered, in microseconds of the text, or `None` if it
/// yields no figures.
fn covered(text: &str) -> Option<Option<i64>> {
    let mut trace: Trace = open::parse(text.as_bytes()).unwrap();
    judge(&mut trace);
    assert_eq!(missing([&trace]).is_some(), trace.cut.is_some());
    Some(match trace.cut?.covered? {
        Covered::Until(end) => Some(end / 1000),
        Covered::Nothing => None,
    })
}

const SPAN: Row = ("user_annotation", "step", 1, 0, 1000, 0);

fn launch(start: i64, id: u64) -> Row {
    ("cuda_runtime", "cudaLaunchKernel", 1, start, 5, id)
}

fn kernel(start: i64, id: u64) -> Row {
    ("kernel", "gemm", 7, start, 50, id)
}

#[test]
fn the_covered_part_ends_at_the_first_lost_launch() {
    // The fixture has all launches first, then the device rows, of which the third and fourth are
    // lost.
    let rows = [
        SPAN,
        launch(100, 1),
        launch(300, 2),
        launch(600, 3),
        launch(800, 4),
        kernel(110, 1),
        kernel(310, 2),
    ];
    assert_eq!(covered(&object(&rows)), Some(Some(600)));
    // Without the second to fourth device rows, less than half of the recording is covered.
    assert_eq!(covered(&object(&rows[..6])), Some(None));
    // Without launches, missing device rows cannot be detected.
    assert_eq!(covered(&object(&[SPAN, kernel(110, 1), kernel(310, 2)])), Some(None));
}

#[test]
fn launches_that_never_have_rows_are_allowed_for() {
    let memset: Row = ("cuda_runtime", "cudaMemsetAsync", 1, 200, 5, 9);
    let rows = [SPAN, launch(100, 1), kernel(110, 1), memset, launch(900, 2), kernel(910, 2)];
    assert_eq!(covered(&object(&rows)), Some(Some(900)));
    let begin: Row = ("cuda_runtime", "cudaStreamBeginCapture", 1, 890, 2, 20);
    let end: Row = ("cuda_runtime", "cudaStreamEndCapture", 1, 990, 2, 21);
    let captured = [SPAN, launch(100, 1), kernel(110, 1), begin, launch(900, 2), end];
    assert_eq!(covered(&object(&captured)), Some(Some(990)));
}

#[test]
fn a_thread_whose_calls_are_in_a_lost_buffer_ends_the_covered_part() {
    let names = ["aten::mm", "aten::add", "aten::mul", "aten::relu"];
    let mut operators = vec![SPAN];
    let mut second = Vec::new();
    for (at, name) in (0_i64..).zip(names) {
        // Half of the steps run on thread 1, and the other half run earlier on thread 2.
        operators.push(("cpu_op", name, 1, 600 + 50 * at, 20, 0));
        operators.push(("cpu_op", name, 2, 100 + 50 * at, 20, 0));
        let id = at as u64 + 1;
        second.push(launch(605 + 50 * at, id));
        second.push(kernel(610 + 50 * at, id));
    }
    let rows = [&operators[..], &second].concat();
    assert_eq!(covered(&object(&rows)), Some(None));
}

#[test]
fn a_bare_list_may_stay_open_unless_launches_lost_their_rows() {
    let list = |rows: &[Row]| {
        let rows: Vec<String> = rows.iter().copied().map(row).collect();
        format!("[{}", rows.join(",\n"))
    };
    let whole = [SPAN, launch(100, 1), kernel(110, 1), launch(900, 2), kernel(910, 2)];
    assert_eq!(covered(&list(&whole)), None);
    assert_eq!(covered(&list(&whole[..4])), Some(Some(900)));
    assert_eq!(covered(&format!("{}]}}", object(&whole))), None);
    // The cut lies after the events, so only keys of the header are missing.
    assert_eq!(covered(&format!("{}], \"traceName", object(&whole))), Some(Some(1000)));
}

#[test]
fn a_graph_whose_rows_may_go_on_ends_the_covered_part() {
    let graph: Row = ("cuda_runtime", "cudaGraphLaunch", 1, 700, 5, 3);
    let nodes = [kernel(710, 3), kernel(770, 3)];
    let rows = [&[SPAN, launch(100, 1), kernel(110, 1), graph][..], &nodes].concat();
    let later = [&rows[..], &[launch(950, 4), kernel(960, 4)]].concat();
    assert_eq!(covered(&object(&rows)), Some(Some(700)));
    assert_eq!(covered(&object(&later)), Some(Some(950)));
}
