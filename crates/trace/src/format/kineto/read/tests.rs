//! Tests that the reader gives the same result for any chunk size and number of threads, and tests
//! each defect of real traces by name.

use std::io;

use super::{Blocks, NotKineto, read_in_chunks};
use crate::store::{EventKind, Loss, Trace, TrackKey};

/// A text that is delivered in blocks of a given size.
struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl Blocks for Pieces<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        let Some(piece) = self.0.next() else { return Ok(false) };
        block.extend_from_slice(piece);
        Ok(true)
    }
}

fn read_as(text: &[u8], block: usize, chunk: usize, threads: usize) -> Result<Trace, NotKineto> {
    read_in_chunks(&mut Pieces(text.chunks(block)), threads, chunk)
}

fn read(text: &str) -> Trace {
    let whole = super::read(&mut Pieces(text.as_bytes().chunks(1 << 20)), 1);
    for (block, chunk, threads) in [(1, 40, 2), (7, 1, 1), (100, 150, 3), (33, 300, 2)] {
        let other = read_as(text.as_bytes(), block, chunk, threads);
        assert_same(&other.unwrap(), whole.as_ref().unwrap());
    }
    whole.unwrap()
}

/// Formats all fields of a trace. Texts are compared by content instead of by id.
fn shown(trace: &Trace) -> Vec<String> {
    let texts: Vec<&str> = trace.strings.iter().collect();
    vec![
        format!("{texts:?} {:?} {:?}", trace.categories, trace.tracks),
        format!("{:?} {:?} {:?}", trace.phases, trace.losses, trace.header),
        format!("{} {:?}", trace.rank, trace.origin),
        format!("{:?}", trace.flows),
        format!("{:?} {:?} {:?}", trace.counters, trace.instants, trace.allocations),
        format!("{:?}", trace.slices),
    ]
}

fn assert_same(left: &Trace, right: &Trace) {
    for (left, right) in shown(left).iter().zip(&shown(right)) {
        if left != right {
            let at = left.bytes().zip(right.bytes()).take_while(|(l, r)| l == r).count();
            let around = |text: &str| {
                let text = &text.as_bytes()[at.saturating_sub(100)..];
                String::from_utf8_lossy(&text[..text.len().min(300)]).into_owned()
            };
            panic!("at {at}: {}\n\nnot {}", around(left), around(right));
        }
    }
}

fn refusal(text: &str) -> String {
    read_as(text.as_bytes(), 1 << 20, 1 << 20, 1).unwrap_err().reason
}

fn names(trace: &Trace) -> Vec<&str> {
    trace.rows().map(|row| trace.name(row)).collect()
}

/// Joins events into the text of a trace, one event per line.
fn document(events: &[&str]) -> String {
    format!(
        "{{\"schemaVersion\": 1, \"traceEvents\": [\n{}\n], \"traceName\": \"t\"}}",
        events.join(",\n")
    )
}

/// Formats a slice with the given name. The text `rest` is appended after the other keys of the
/// slice.
fn slice(name: &str, rest: &str) -> String {
    format!(
        r#"{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 2, "ts": 10, "dur": 5{rest}}}"#
    )
}

fn lost(trace: &Trace) -> Vec<(Loss, u64)> {
    trace.losses.iter().map(|(loss, count)| (loss, count.count)).collect()
}

#[test]
fn truncated_file_keeps_complete_events_and_counts_lost_bytes() {
    let whole =
        document(&[&slice("a", ""), &slice("b", ""), &slice("c", r#", "args": {"x": [1]}"#)]);
    let cut = &whole[..whole.find("\"x\"").unwrap()];
    let trace = read(cut);
    assert_eq!(names(&trace), ["a", "b"]);
    assert_eq!(lost(&trace), [(Loss::Truncated, 1)]);
    let first = &trace.losses.iter().next().unwrap().1.first[0];
    assert!(first.contains("bytes lost"), "{first}");
    for end in 0..whole.len() {
        let _ = read_as(&whole.as_bytes()[..end], 50, 60, 2);
    }
}

#[test]
fn unescaped_quotes_newlines_and_control_characters_in_names_are_repaired() {
    let trace = read(&document(&[
        &slice("say \"hi\" to", ""),
        &slice("two\nlines", ""),
        &slice("tab\tand\u{1}", ""),
        &slice("fine", ""),
    ]));
    assert_eq!(names(&trace), ["say \"hi\" to", "two\nlines", "tab\tand\u{1}", "fine"]);
    assert_eq!(trace.losses.count_of(Loss::BrokenEvent), 0);
    assert!(trace.losses.count_of(Loss::BrokenText) >= 3);
}

#[test]
fn backslashes_of_paths_are_kept() {
    let trace = read(&document(&[&slice(r"C:\Users\x", ""), &slice(r"C:\", ""), &slice("b", "")]));
    assert_eq!(names(&trace), [r"C:\Users\x", r"C:\", "b"]);
    assert_eq!(trace.losses.count_of(Loss::BrokenEvent), 0);
}

#[test]
fn invalid_utf8_is_replaced_and_counted() {
    let text = document(&[&slice("a?b", ""), &slice("c", "")]).replace('?', "\u{7f}");
    let mut bytes = text.into_bytes();
    bytes.iter_mut().filter(|byte| **byte == 0x7f).for_each(|byte| *byte = 0xff);
    let trace = read_as(&bytes, 10, 20, 2).unwrap();
    assert_eq!(names(&trace), ["a\u{fffd}b", "c"]);
    assert_eq!(lost(&trace), [(Loss::InvalidUtf8, 1)]);
}

#[test]
fn non_finite_numbers_are_accepted() {
    let shape = |value: &str| {
        let rest = format!(
            r#", "args": {{"grid": [1, 2, 3], "blocks per SM": {value}, "warps per SM": 2.5, "x": {value}}}"#
        );
        slice("k", &rest)
    };
    let values = ["NaN", "Infinity", "-Infinity", "inf", "\"NaN\"", "\"inf\"", "null"];
    let events: Vec<String> = values.iter().map(|value| shape(value)).collect();
    let trace = read(&document(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(lost(&trace), []);
    assert_eq!(trace.slices.launch_shape.len(), values.len());
    for (_, shape) in trace.slices.launch_shape.iter() {
        assert!(shape.blocks_per_sm.is_nan());
        assert_eq!((shape.grid, shape.warps_per_sm), ([1, 2, 3], 2.5));
    }
}

#[test]
fn times_as_texts_or_with_exponents_are_exact() {
    let event = |ts: &str, dur: &str| {
        format!(r#"{{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}"#)
    };
    let trace = read(&document(&[
        &event("\"1650000000000000.125\"", "\"1.5\""),
        &event("1.65e15", "2E0"),
        &event("1650000000000000.1239", "0.0004"),
    ]));
    let base = 1_650_000_000_000_000_000;
    assert_eq!(trace.slices.start, [base + 125, base, base + 124]);
    assert_eq!(trace.slices.duration, [1500, 2000, 0]);
    assert_eq!(lost(&trace), []);
}

#[test]
fn a_bare_list_of_events_is_a_trace() {
    for end in ["]", "", ",", "\n"] {
        let trace = read(&format!("[\n{},\n{}{end}", slice("a", ""), slice("b", "")));
        assert_eq!(names(&trace), ["a", "b"]);
        assert_eq!(lost(&trace), []);
    }
    assert!(read("[]").slices.is_empty());
}

#[test]
fn ids_beyond_i64_and_as_texts_are_kept() {
    let flow = |id: &str| {
        format!(r#"{{"ph": "s", "id": {id}, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g"}}"#)
    };
    let big = slice("a", r#", "args": {"correlation": 18446744073709551614, "External id": "77"}"#);
    let trace = read(&document(&[
        &big,
        &flow("18446744073709551615"),
        &flow("\"0x1f\""),
        &flow("\"42\""),
        &flow("\"some:thing\""),
        &flow("\"some:thing\""),
        &flow("-1"),
    ]));
    assert_eq!(trace.slices.correlation(0), Some(u64::MAX - 1));
    assert_eq!(trace.slices.external_id(0), Some(77));
    let ids: Vec<u64> = trace.flows.iter().map(|flow| flow.id).collect();
    assert_eq!((ids[0], ids[1], ids[2], ids[5]), (u64::MAX, 31, 42, u64::MAX));
    assert_eq!(ids[3], ids[4]);
    assert_eq!(lost(&trace), []);
}

#[test]
fn stream_that_is_an_address_is_ignored() {
    let trace = read(&document(&[
        &slice("hipLaunchKernel", r#", "args": {"stream": "0x0", "correlation": 1}"#),
        &slice("b", r#", "args": {"stream": "7", "device": 3}"#),
        &slice("c", r#", "args": {"stream": 99999999999}"#),
    ]));
    assert_eq!(trace.slices.stream(0), None);
    assert_eq!((trace.slices.stream(1), trace.slices.device(1)), (Some(7), Some(3)));
    assert_eq!(trace.slices.stream(2), None);
    assert_eq!(lost(&trace), [(Loss::BadNumber, 1)]);
}

#[test]
fn numbers_out_of_range_are_dropped_and_counted() {
    let args = |args: &str| slice("k", &format!(r#", "args": {{{args}}}"#));
    let memory = |kind: &str, device: &str| {
        format!(
            r#"{{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {{"Device Type": {kind}, "Device Id": {device}}}}}"#
        )
    };
    let trace = read(&document(&[
        &args(r#""grid": [4294967296, 2, 3], "block": [4294967295, 1, "x"]"#),
        &args(
            r#""grid": [1, 1, 1], "registers per thread": 4294967300, "shared memory": 8589934592"#,
        ),
        &args(r#""grid": null, "registers per thread": 4294967295, "shared memory": 7"#),
        &args(r#""Collective name": "allreduce", "Group size": 4294967298"#),
        &args(r#""Collective name": "allreduce", "Group size": 8"#),
        &memory("1", "4294967297"),
        &memory("4294967297", "-1"),
        &memory("0", "4294967295"),
    ]));
    let shapes: Vec<_> = trace.slices.launch_shape.iter().map(|(_, shape)| shape).collect();
    assert_eq!((shapes[0].grid, shapes[0].block), ([0, 2, 3], [u32::MAX, 1, 0]));
    assert_eq!((shapes[1].registers, shapes[1].shared_memory), (0, 0));
    assert_eq!((shapes[2].registers, shapes[2].shared_memory), (u32::MAX, 7));
    let sizes: Vec<_> = trace.slices.collective.iter().map(|(_, one)| one.group_size).collect();
    assert_eq!(sizes, [None, Some(8)]);
    let devices: Vec<_> = trace.allocations.iter().map(|a| (a.device_type, a.device)).collect();
    assert_eq!(devices, [(1, 0), (0, -1), (0, -1)]);
    assert_eq!(lost(&trace), [(Loss::BadNumber, 5)]);
}

#[test]
fn call_stacks_are_kept_innermost_first() {
    let with = |stack: &str| slice("aten::mm", &format!(r#","args":{{"Call stack":{stack}}}"#));
    let trace = read(&document(&[
        &with(r#""model.py(7): forward;train.py(3): step""#),
        &with(r#""""#),
        &slice("aten::mm", ""),
        &with(r#""model.py(7): forward;train.py(3): step""#),
        &with(r#""train.py(4): step""#),
    ]));
    let stack = |row: u32| {
        trace.stack(row).iter().map(|one| trace.strings.get(one.line)).collect::<Vec<_>>()
    };
    assert_eq!(trace.strings.get(trace.stack(0)[1].function), "train.py: step");
    assert_eq!(stack(0), ["model.py(7): forward", "train.py(3): step"]);
    assert_eq!((stack(1).len(), stack(2).len()), (0, 0));
    assert_eq!(stack(3), stack(0));
    assert_eq!(stack(4), ["train.py(4): step"]);
    assert_eq!(trace.slices.call_stack.len(), 3);
}

#[test]
fn base_time_applies_wherever_the_key_is() {
    let event = slice("a", "");
    let before = format!("{{\"baseTimeNanoseconds\": 1000, \"traceEvents\": [{event}]}}");
    let behind = format!("{{\"traceEvents\": [{event}], \"baseTimeNanoseconds\": 1000}}");
    for text in [before, behind] {
        let trace = read(&text);
        assert_eq!((trace.slices.start[0], trace.header.base_time_ns), (11_000, 1000));
    }
}

#[test]
fn times_out_of_range_are_counted() {
    let event = |ts: &str, dur: &str| {
        format!(r#"{{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}"#)
    };
    let trace = read(&document(&[
        &event("9223372036854775808", "1"),
        &event("1", "1e300"),
        &event("9223372036854775.807", "1"),
        &event("1", "-5"),
        &event("\"abc\"", "1"),
        &event("null", "1"),
        r#"{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1}"#,
    ]));
    assert_eq!(trace.slices.duration, [0]);
    assert_eq!(
        lost(&trace),
        [(Loss::NoTime, 2), (Loss::BadNumber, 4), (Loss::NegativeDuration, 1)]
    );
}

#[test]
fn times_are_limited_to_2_to_the_61_nanoseconds() {
    // 2^61 ns equal 2305843009213693.952 µs.
    let (inside, outside) = ("2305843009213693.951", "2305843009213693.952");
    let event = |ph: &str, ts: &str, dur: &str| {
        format!(
            r#"{{"ph": "{ph}", "name": "a", "pid": 1, "tid": 1, "id": 1, "ts": {ts}, "dur": {dur}}}"#
        )
    };
    let near = (1i64 << 61) - 1;
    let texts = [
        event("X", inside, inside),
        event("X", &format!("-{inside}"), "0"),
        event("X", outside, "0"),
        event("X", &format!("-{outside}"), "0"),
        event("X", "0", outside),
        event("X", "0", "-9223372036854775.808"),
        event("s", outside, "0"),
        event("i", "9223372036854775.807", "0"),
        event("B", outside, "0"),
    ];
    let events: Vec<&str> = texts.iter().map(String::as_str).collect();
    let trace = read(&document(&events));
    assert_eq!(trace.slices.start, [near, -near]);
    assert_eq!(trace.slices.duration, [near, 0]);
    assert_eq!(lost(&trace), [(Loss::BadNumber, 7)]);
}

#[test]
fn events_shifted_out_of_range_are_dropped() {
    let event = |ph: &str, ts: &str| {
        let name = if ph == "M" { "[memory]" } else { "a" };
        let ph = if ph == "M" { "i" } else { ph };
        format!(
            r#"{{"ph": "{ph}", "name": "{name}", "pid": 1, "tid": 1, "id": 1, "ts": {ts}, "dur": 1, "args": {{"stream": {ts}}}}}"#
        )
    };
    let far = "1305843009213694";
    let phases = ["X", "s", "i", "M", "C"];
    let texts: Vec<String> =
        phases.iter().flat_map(|ph| [event(ph, "1"), event(ph, far), event(ph, "7")]).collect();
    let base = 1_000_000_000_000_000_000i64;
    let list = texts.join(",");
    let trace = read(&format!("{{\"baseTimeNanoseconds\": {base}, \"traceEvents\": [{list}]}}"));
    assert_eq!(trace.slices.start, [base + 1000, base + 7000]);
    assert_eq!((trace.slices.stream(0), trace.slices.stream(1)), (Some(1), Some(7)));
    let marks = (trace.flows.len(), trace.instants.len(), trace.allocations.len());
    assert_eq!((marks, trace.counters.len()), ((2, 2, 2), 2));
    // Five events are out of range. The stream of the dropped slice does not fit an `i32`, which is
    // the sixth loss.
    assert_eq!(lost(&trace), [(Loss::BadNumber, 6)]);
    for base in [1i64 << 61, i64::MAX, i64::MIN] {
        let trace =
            read(&format!("{{\"baseTimeNanoseconds\": {base}, \"traceEvents\": [{list}]}}"));
        assert_eq!((trace.slices.start[0], trace.header.base_time_ns), (1000, 0));
        assert_eq!(trace.losses.count_of(Loss::BrokenHeader), 1);
    }
}

#[test]
fn missing_and_trailing_commas_are_accepted() {
    let text = r#"{"traceEvents": [
        {"ph": "X", "name": "a" "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"stream": 1 "device": 2,},}
        {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 1, "dur": 1}, , ],}"#;
    let trace = read(text);
    assert_eq!(names(&trace), ["a", "b"]);
    assert_eq!((trace.slices.stream(0), trace.slices.device(0)), (Some(1), Some(2)));
    assert_eq!(lost(&trace), []);
}

#[test]
fn garbage_inside_an_event_loses_only_that_event() {
    let good = slice("good", r#", "args": {"x": {"name": "inner", "id": [{"id": 1}]}}"#);
    for bad in [
        r#"{"ph": "X", "name": "bad, "pid": 1, "tid": 2, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "name": "bad", "pid": 1@, "tid": 2, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "name": "bad", "pid": 1, "args": {"x": [[1, 2], "y": 3}}"#,
        r#"{"ph": "X", "name": "bad", "pid": 1, "args": {"x": [{"name": 2}, "y": @3}}"#,
        r#"{"ph" "X"}"#,
        "garbage",
        "\0\0\0\0\0\0",
        r#"{"ph": "X", "name": "bad"#,
    ] {
        let trace = read(&document(&[&good, bad, &good, &good]));
        assert_eq!(names(&trace), ["good"; 3], "{bad}");
        assert_eq!(lost(&trace), [(Loss::BrokenEvent, 1)], "{bad}");
        assert_eq!(trace.header.rest["traceName"], "t", "{bad}");
        let last = read(&format!("{{\"traceEvents\": [{good},\n{bad}]}}"));
        assert_eq!(names(&last), ["good"], "{bad}");
        assert!(!last.losses.is_empty(), "{bad}");
    }
}

#[test]
fn begins_and_ends_are_paired_per_track() {
    let edge = |ph: &str, name: &str, tid: u32, ts: u32| {
        format!(r#"{{"ph": "{ph}", "name": "{name}", "pid": 1, "tid": {tid}, "ts": {ts}}}"#)
    };
    let events = [
        edge("B", "outer", 1, 10),
        edge("B", "other", 2, 11),
        edge("B", "inner", 1, 12),
        edge("E", "", 1, 15),
        edge("E", "", 1, 20),
        edge("E", "", 3, 21),
        edge("B", "open", 1, 22),
        edge("E", "", 2, 30),
        slice("x", ""),
    ];
    let trace = read(&document(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(names(&trace), ["outer", "other", "inner", "x"]);
    assert_eq!(trace.slices.duration, [10_000, 19_000, 3000, 5000]);
    assert_eq!(lost(&trace), [(Loss::Unpaired, 2)]);
}

#[test]
fn unknown_phases_are_counted_separately() {
    let trace =
        read(&document(&[r#"{"ph": "b", "ts": 1}"#, r#"{"ph": "long"}"#, r#"{"name": "none"}"#]));
    assert_eq!(lost(&trace), [(Loss::UnknownPhase, 3)]);
    assert_eq!(trace.phases.values().sum::<u64>(), 3);
}

#[test]
fn names_of_processes_reach_tracks_that_appear_later() {
    let name = |what: &str, key: &str, text: &str| {
        format!(
            r#"{{"ph": "M", "name": "{what}", "pid": 1, "tid": 0, "args": {{"{key}": "{text}"}}}}"#
        )
    };
    let trace = read(&document(&[
        &name("process_name", "name", "python"),
        &name("process_labels", "labels", "CPU"),
        &slice("a", ""),
        r#"{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}}"#,
    ]));
    let track = &trace.tracks[1];
    assert_eq!((track.process_name.as_str(), track.process_label.as_str()), ("python", "CPU"));
    assert_eq!((track.thread_name.as_str(), &track.tid), ("main", &TrackKey::Number(2)));
}

#[test]
fn other_content_is_rejected_with_a_description() {
    assert!(refusal("").contains("empty"));
    assert!(refusal("\u{89}PNG\r\n").contains("PNG"));
    assert!(refusal(r#"{"schema": "1.0.1", "nodes": []}"#).contains("nodes"));
    assert!(refusal(r#"{"schemaVersion": 1, "devicePro"#).contains("ends before traceEvents"));
    assert!(refusal("[1, 2, 3]").contains("without events"));
    assert!(refusal("null").contains("null"));
}

#[test]
fn events_are_found_after_a_broken_header() {
    let event = slice("a", "");
    let trace = read(&format!("{{\"x\": @, \"y\": 1, \"traceEvents\": [{event}], \"z\": 2}}"));
    assert_eq!(names(&trace), ["a"]);
    assert_eq!(trace.header.rest["z"], 2);
    assert_eq!(trace.losses.count_of(Loss::BrokenHeader), 1);
}

#[test]
fn ranks_of_groups_may_be_a_text() {
    let info = |ranks: &str| {
        format!(
            r#"{{"distributedInfo": {{"backend": "nccl", "rank": 3, "world_size": 4,
            "pg_config": [{{"pg_name": "0", "pg_desc": "d", "ranks": {ranks}}}]}}, "traceEvents": []}}"#
        )
    };
    for ranks in ["[0, 1, 2, 3]", "\"[0, 1, 2, 3]\""] {
        let trace = read(&info(ranks));
        assert_eq!(trace.rank, 3);
        assert_eq!(trace.header.distributed.unwrap().groups[0].ranks, [0, 1, 2, 3]);
    }
}

#[test]
fn issue_24_mtia_copies_and_waits_are_not_kernels() {
    let event = |name: &str, at: u32| {
        format!(
            r#"{{"ph":"X","cat":"mtia_ccp_events","name":"{name}","pid":17,"tid":3,"ts":{at},"dur":1}}"#
        )
    };
    let names = ["event_wait", "pe_exe", "dma_request", "event_wait", "event_record"];
    let events: Vec<String> = names.iter().zip(0..).map(|(name, at)| event(name, at)).collect();
    let trace = read(&document(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    let kinds: Vec<EventKind> = trace.rows().map(|row| trace.kind(row)).collect();
    assert_eq!(
        kinds,
        [EventKind::Sync, EventKind::Kernel, EventKind::Memcpy, EventKind::Sync, EventKind::Kernel]
    );
    // Only the kinds differ. The category's name in the file does not change.
    assert!(trace.categories.iter().all(|category| category.name == "mtia_ccp_events"));
}

#[test]
fn categories_beyond_255_share_one() {
    let events: Vec<String> = (0..300)
        .map(|i| {
            format!(r#"{{"ph":"X","cat":"c{i}","name":"n","pid":1,"tid":1,"ts":{i},"dur":1}}"#)
        })
        .collect();
    let trace = read(&document(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(trace.categories.len(), 256);
    assert_eq!(trace.categories[usize::from(trace.slices.category[299])].name, "other");
    assert_eq!(trace.losses.count_of(Loss::ManyCategories), 45);
}

#[test]
fn offsets_point_to_the_text_of_events() {
    let text = document(&[&slice("a", ""), &slice("b", "")]);
    let trace = read(&text);
    for row in trace.rows() {
        let at = trace.slices.offset[row as usize] as usize;
        assert!(text[at..].starts_with(&slice(trace.name(row), "")));
    }
}

#[test]
fn nested_objects_that_look_like_events_are_ignored() {
    let inner = r#", "args": {"list": [{"ph": "X", "name": "no"},
{"ph": "X", "name": "no", "ts": 1},
{"ph": "X", "name": "no", "pid": 1, "tid": 2, "ts": 10, "dur": 5}
]}"#;
    let events: Vec<String> = (0..20).map(|i| slice(&format!("n{i}"), inner)).collect();
    let trace = read(&document(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(trace.slices.len(), 20);
    assert_eq!(lost(&trace), []);
}

#[test]
fn chunk_boundaries_are_guessed_correctly() {
    let device = |id: u32| format!("{{\n      \"id\": {id}\n    }}");
    let event =
        "{\n    \"ph\": \"i\", \"name\": \"n\", \"ts\": 1, \"args\": {\n      \"x\": 1\n    }\n  }";
    let events = vec![event; 500].join(",\n  ");
    let devices = [device(0), device(1), device(2)].join(",\n    ");
    let text = format!(
        "{{\n  \"deviceProperties\": [\n    {devices}\n  ],\n  \"traceEvents\": [\n  {events}\n  ]\n}}"
    );
    let mut pieces = Pieces(text.as_bytes().chunks(1000));
    let mut source = super::source::ChunkSource::new(&mut pieces, 2000);
    let mut whole = Vec::new();
    while let Some(chunk) = source.next() {
        assert!(
            chunk.index == 0
                || chunk.head.starts_with(b"{\n    \"ph\"")
                || whole.len() + 200 > text.len()
        );
        assert!(chunk.head.len() < 200, "{}", chunk.head.len());
        whole.extend_from_slice(&chunk.head);
        whole.extend_from_slice(chunk.body());
    }
    assert_eq!(whole, text.as_bytes());
}

#[test]
fn arguments_of_another_type_do_not_affect_later_events() {
    let with = slice("b", r#", "args": {"stream": 7}"#);
    let trace = read(&document(&[&slice("a", r#", "args": 1"#), &with, &with]));
    assert_eq!((trace.slices.stream(0), trace.slices.stream(1)), (None, Some(7)));
    assert_eq!(lost(&trace), []);
}

#[test]
fn damaged_texts_give_the_same_result_in_any_chunks() {
    let nested = slice("n", r#", "args": {"x": [[1], ["a"]], "stream": 7, "y": {"name": "z"}}"#);
    let flow = r#"{"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 1.5, "cat": "ac2g"}"#;
    let good = document(&[&nested, flow, &slice("a", r#", "args": {"Ev Idx": 3}"#), &nested, flow]);
    let mut random = testkit::Random(1);
    for case in 0..600 {
        let mut bytes = good.clone().into_bytes();
        for _ in 0..=case % 4 {
            let at = random.below(bytes.len());
            bytes[at] = b"\"\\{}[],: x1\n\xff"[random.below(13)];
        }
        let whole = read_as(&bytes, 1 << 20, 1 << 20, 1);
        for (block, chunk, threads) in [(1, 30, 2), (64, 90, 3), (200, 1, 1)] {
            match (&whole, &read_as(&bytes, block, chunk, threads)) {
                (Ok(whole), Ok(other)) => assert_same(other, whole),
                (whole, other) => assert_eq!(whole.is_err(), other.is_err(), "{case}"),
            }
        }
    }
}

#[test]
fn superfluous_bracket_does_not_end_the_events() {
    let a = slice("a", "");
    let trace = read(&format!("{{\"traceEvents\": [{a}, {a}], {a}, {a}], \"traceName\": \"t\"}}"));
    assert_eq!(trace.slices.len(), 4);
    assert_eq!(trace.losses.count_of(Loss::BrokenHeader), 1);
}
