use trace::store::Trace;

use super::build_frames;
use crate::facts::interval::Interval;

/// Checks the innermost line of the only thread at all times, given as (start, end, line).
fn check(events: &str, expected: &[(i64, i64, &str)]) -> Trace {
    let text = format!("{{\"traceEvents\": [{events}]}}");
    let trace = trace::open::parse(text.as_bytes()).unwrap();
    let frames = build_frames(&trace);
    let track = trace.slices.track[0];
    let found: Vec<_> = frames
        .within(track, (0, 1_000_000))
        .map(|one| {
            let name = trace.strings.get(frames.all()[one.frame as usize].name);
            (one.start / 1000, one.end / 1000, name)
        })
        .collect();
    assert_eq!(found, expected);
    trace
}

fn operator((start, end): Interval, stack: &str) -> String {
    format!(
        "{{\"ph\":\"X\",\"cat\":\"Operator\",\"name\":\"aten::mm\",\"pid\":1,\"tid\":1,\"ts\":{start},\
         \"dur\":{},\"args\":{{\"Call stack\":\"{stack}\"}}}}",
        end - start
    )
}

#[test]
fn lines_that_operators_have_in_common_run_between_them() {
    let events = [
        operator((10, 20), "model.py(7): forward;train.py(3): step"),
        operator((30, 40), "model.py(7): forward;train.py(3): step"),
        operator((60, 70), "loss.py(9): loss;train.py(3): step"),
    ];
    let trace = check(
        &events.join(","),
        &[
            (10, 40, "model.py(7): forward"),
            (40, 60, "train.py(3): step"),
            (60, 70, "loss.py(9): loss"),
        ],
    );
    let stack = trace.stack(2).iter().map(|one| trace.strings.get(one.line)).collect::<Vec<_>>();
    assert_eq!(stack, ["loss.py(9): loss", "train.py(3): step"]);
}

#[test]
fn a_function_runs_between_two_of_its_lines() {
    let events = [
        operator((10, 20), "train.py(3): step"),
        operator((50, 60), "model.py(7): forward;train.py(4): step"),
        operator((80, 90), "other.py(1): main"),
    ];
    let expected = [
        (10, 20, "train.py(3): step"),
        (20, 50, "train.py: step"),
        (50, 60, "model.py(7): forward"),
        (80, 90, "other.py(1): main"),
    ];
    check(&events.join(","), &expected);
}

#[test]
fn an_operator_inside_another_one_has_its_own_lines() {
    let events = [
        operator((10, 90), "profiler.py(6): __enter__;loader.py(5): __next__;train.py(3): step"),
        operator((40, 50), "cifar.py(8): read;loader.py(5): __next__;train.py(3): step"),
    ];
    let expected = [
        (10, 40, "profiler.py(6): __enter__"),
        (40, 50, "cifar.py(8): read"),
        (50, 90, "loader.py(5): __next__"),
    ];
    check(&events.join(","), &expected);
}

#[test]
fn recorded_frames_are_cut_where_an_inner_one_runs() {
    let frame = |id: u32, parent: &str, (start, end): Interval, name: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"python_function\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\
             \"ts\":{start},\"dur\":{},\"args\":{{\"Python id\":{id},\"Python parent id\":{parent}}}}}",
            end - start
        )
    };
    let events = [
        frame(1, "null", (10, 90), "train.py(3): step"),
        frame(2, "1", (20, 60), "model.py(7): forward"),
        frame(3, "2", (30, 40), "<built-in method mm>"),
        frame(4, "null", (95, 99), "train.py(9): log"),
    ];
    let expected = [
        (10, 20, "train.py(3): step"),
        (20, 30, "model.py(7): forward"),
        (30, 40, "<built-in method mm>"),
        (40, 60, "model.py(7): forward"),
        (60, 90, "train.py(3): step"),
        (95, 99, "train.py(9): log"),
    ];
    let trace = check(&events.join(","), &expected);
    let frames = build_frames(&trace);
    let innermost = frames.at(trace.slices.track[0], 35_000).unwrap();
    assert_eq!(
        frames.stack(innermost).map(|frame| frame.row).collect::<Vec<_>>(),
        [Some(2), Some(1), Some(0)]
    );
    assert_eq!(frames.length_within(trace.slices.track[0], (50_000, 97_000)), 42_000);
}

#[test]
fn a_function_that_goes_back_was_called_anew() {
    let events = [
        operator((10, 20), "io.py(9): read;train.py(3): step"),
        operator((50, 60), "io.py(7): read;train.py(3): step"),
        operator((80, 90), "train.py(2): step"),
    ];
    let expected = [
        (10, 20, "io.py(9): read"),
        (20, 50, "train.py(3): step"),
        (50, 60, "io.py(7): read"),
        // The stack of no operator contains a line between 60 and 80, so only the function is
        // known.
        (60, 80, "train.py: step"),
        (80, 90, "train.py(2): step"),
    ];
    check(&events.join(","), &expected);
}
