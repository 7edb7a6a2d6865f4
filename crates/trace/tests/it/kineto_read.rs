//! Compares the reader of Kineto JSON with a slow one, on every Kineto file of the fixtures and on
//! random events.

mod oracle;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::Read;
use std::path::{Path, PathBuf};

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};
use serde_json::{Map, Value, json};
use trace::open::{self, ReadRequest};
use trace::store::{Category, EventKind, Slices, StackLine, Trace};

/// Lists all files below a folder in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found.into_iter().flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] }).collect()
}

/// Returns the unpacked JSON texts of a file.
fn texts(path: &Path) -> Vec<String> {
    let name = path.to_string_lossy();
    let mut bytes = std::fs::read(path).unwrap();
    if name.ends_with("gz") {
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).unwrap();
        bytes = unpacked;
    }
    if !name.ends_with(".tar.gz") && !name.ends_with(".tgz") {
        return String::from_utf8(bytes).into_iter().collect();
    }
    let mut found = Vec::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut text = String::new();
        if entry.unwrap().read_to_string(&mut text).is_ok() {
            found.push(text);
        }
    }
    found
}

/// Compares two traces column by column.
fn assert_same(read: &Trace, expected: &Trace) {
    let texts = |trace: &Trace| trace.strings.iter().map(str::to_owned).collect::<Vec<_>>();
    // The reader interns the lines of the call stacks after the texts of the file.
    let expected = &with_extras_last(expected);
    let mut expected_texts = texts(expected);
    let stacks = stacks(expected, &mut expected_texts);
    same("strings", &texts(read), &expected_texts);
    same("stacks", &shown_stacks(read), &stacks);
    same("categories", &read.categories, &expected.categories);
    same("tracks", &read.tracks, &expected.tracks);
    same("flows", &read.flows, &expected.flows);
    same("counters", &shown(&read.counters), &shown(&expected.counters));
    same("instants", &read.instants, &expected.instants);
    same("allocations", &read.allocations, &expected.allocations);
    assert_eq!(read.phases, expected.phases);
    assert_eq!(
        (read.rank, read.header.base_time_ns),
        (expected.rank, expected.header.base_time_ns)
    );
    let (read, expected) = (&read.slices, &expected.slices);
    same("start", &read.start, &expected.start);
    same("duration", &read.duration, &expected.duration);
    same("name", &read.name, &expected.name);
    same("category", &read.category, &expected.category);
    same("track", &read.track, &expected.track);
    for (what, column) in columns() {
        same(what, &column(read), &column(expected));
    }
}

/// Returns the lines of each call stack with their functions, by row. New texts are appended to
/// `texts`, each line before its function.
fn stacks(trace: &Trace, texts: &mut Vec<String>) -> Vec<String> {
    let mut known: BTreeSet<String> = texts.iter().cloned().collect();
    let mut shown = Vec::new();
    for (row, stack) in trace.slices.call_stack.iter() {
        let mut lines = Vec::new();
        for line in trace.strings.get(*stack).split(';').map(str::trim) {
            // The function is the line without the number in its first brackets, as in
            // `train.py(12): step`.
            let brackets =
                line.find('(').and_then(|from| Some((from, from + line[from..].find(')')?)));
            let function = brackets.map_or(line.to_owned(), |(from, to)| {
                format!("{}{}", &line[..from], &line[to + 1..])
            });
            if !line.is_empty() {
                lines.push((line.to_owned(), function));
            }
        }
        let new = lines.iter().flat_map(|(line, function)| [line, function]);
        texts.extend(new.filter(|text| known.insert((*text).clone())).cloned());
        shown.push(format!("{row}: {lines:?}"));
    }
    shown
}

fn shown_stacks(trace: &Trace) -> Vec<String> {
    let line = |line: &StackLine| {
        (trace.strings.get(line.line).to_owned(), trace.strings.get(line.function).to_owned())
    };
    let lines = |row| trace.stack(row).iter().map(line).collect::<Vec<_>>();
    trace.slices.call_stack.iter().map(|(row, _)| format!("{row}: {:?}", lines(row))).collect()
}

/// Orders the categories by their first use in the file. The separate categories of MTIA's copies
/// and waits come last, as the reader adds them at the end.
fn with_extras_last(trace: &Trace) -> Trace {
    const MIXED: &str = "mtia_ccp_events";
    let kinds = [("dma_request", EventKind::Memcpy), ("event_wait", EventKind::Sync)];
    let mut trace = trace.clone();
    let is_extra =
        |category: &Category| category.name == MIXED && category.kind != EventKind::Kernel;
    let mut sorted: Vec<Category> =
        trace.categories.iter().filter(|category| !is_extra(category)).cloned().collect();
    for (name, kind) in kinds {
        let is_one = |row: u32| {
            let category = &trace.categories[usize::from(trace.slices.category[row as usize])];
            category.name == MIXED && trace.name(row) == name
        };
        if trace.rows().any(is_one) {
            sorted.push(Category { name: MIXED.to_owned(), kind });
        }
    }
    let place = |of: &Category| sorted.iter().position(|other| other == of);
    let places: Vec<usize> = trace.categories.iter().map(|of| place(of).unwrap()).collect();
    for row in 0..trace.slices.len() {
        let new = places[usize::from(trace.slices.category[row])];
        trace.slices.category[row] = new as u8;
        if sorted[new].name == MIXED {
            let kind = kinds.iter().find(|(name, _)| *name == trace.name(row as u32));
            assert_eq!(
                sorted[new].kind,
                kind.map_or(EventKind::Kernel, |(_, kind)| *kind),
                "row {row}"
            );
        }
    }
    let moved = |category: &mut u8| *category = places[usize::from(*category)] as u8;
    trace.flows.iter_mut().for_each(|flow| moved(&mut flow.category));
    trace.instants.iter_mut().for_each(|instant| moved(&mut instant.category));
    trace.categories = sorted;
    trace
}

fn shown<T: Debug>(items: &[T]) -> Vec<String> {
    items.iter().map(|item| format!("{item:?}")).collect()
}

fn sparse<'a, T: Debug + 'a>(items: impl Iterator<Item = (u32, &'a T)>) -> Vec<String> {
    items.map(|(row, item)| format!("{row}: {item:?}")).collect()
}

type Column = fn(&Slices) -> Vec<String>;

fn columns() -> [(&'static str, Column); 17] {
    fn each(slices: &Slices, one: impl Fn(u32) -> String) -> Vec<String> {
        (0..slices.len() as u32).map(one).collect()
    }
    [
        ("correlation", |s| each(s, |row| format!("{:?}", s.correlation(row)))),
        ("external_id", |s| each(s, |row| format!("{:?}", s.external_id(row)))),
        ("stream", |s| each(s, |row| format!("{:?}", s.stream(row)))),
        ("device", |s| each(s, |row| format!("{:?}", s.device(row)))),
        ("bytes", |s| sparse(s.bytes.iter())),
        ("bandwidth", |s| sparse(s.bandwidth.iter())),
        ("launch_shape", |s| sparse(s.launch_shape.iter())),
        ("collective", |s| sparse(s.collective.iter())),
        ("sequence", |s| sparse(s.sequence.iter())),
        ("forward_thread", |s| sparse(s.forward_thread.iter())),
        ("record_function", |s| sparse(s.record_function.iter())),
        ("event_index", |s| sparse(s.event_index.iter())),
        ("python", |s| sparse(s.python.iter())),
        ("sync", |s| sparse(s.sync.iter())),
        ("call_stack", |s| sparse(s.call_stack.iter())),
        ("graph_node", |s| sparse(s.graph_node.iter())),
        ("unfinished", |s| sparse(s.unfinished.iter())),
    ]
}

fn same<T: PartialEq + Debug>(what: &str, read: &[T], expected: &[T]) {
    if let Some(at) = (0..read.len().min(expected.len())).find(|at| read[*at] != expected[*at]) {
        assert_eq!(read[at], expected[at], "{what}[{at}]");
    }
    assert_eq!(read.len(), expected.len(), "{what}");
}

#[test]
fn every_fixture_matches_the_slow_reader() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let mut traces = 0;
    for path in files(&folder) {
        for text in texts(&path).iter().filter(|text| text.contains("\"traceEvents\"")) {
            traces += 1;
            let trace = open::parse(text.as_bytes()).unwrap();
            assert_same(&trace, &oracle::read(text));
            for offset in &trace.slices.offset {
                assert_eq!(text.as_bytes()[*offset as usize], b'{', "{}", path.display());
            }
            let lost: Vec<_> = trace.losses.iter().collect();
            println!("{} {} slices {lost:?}", path.display(), trace.slices.len());
        }
    }
    assert!(traces >= 18, "{traces}");
}

#[test]
fn result_does_not_depend_on_the_number_of_threads() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    for file in ["trace_diff/test.json.gz", "nccl/nccl_data.json.gz"] {
        let text = texts(&folder.join(file)).remove(0);
        let expected = oracle::read(&text);
        for threads in 1..=3 {
            let request = ReadRequest { paths: vec![folder.join(file)], threads };
            let job = open::read(&request).unwrap();
            assert_same(&job.traces[0], &expected);
        }
    }
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u32>().prop_map(|n| Value::from(n.to_string())),
        (0..10_000_000u64).prop_map(|n| Value::from(n as f64 / 1000.0)),
        Just(Value::Null),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z:_]{0,40}",
        "[ -~]{0,30}",
        ".{0,12}",
        Just("void at::native::kernel<{lambda(int)#1}>(int, float*)".to_owned()),
    ]
}

fn nested() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![number(), text().prop_map(Value::from), any::<bool>().prop_map(Value::from)];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const INTEGERS: [&str; 14] = [
    "correlation",
    "External id",
    "external id",
    "bytes",
    "registers per thread",
    "Sequence number",
    "Fwd thread id",
    "Record function id",
    "Ev Idx",
    "Python id",
    "Python parent id",
    "graph node id",
    "In msg nelems",
    "Seq",
];
const TEXTS: [&str; 5] = ["Collective name", "dtype", "In split size", "name", "labels"];

/// Generates an argument. Texts as numbers are generated only for unsigned arguments, because the
/// slow reader does not accept them for others.
fn argument() -> impl Strategy<Value = (String, Value)> {
    let integer = (prop::sample::select(&INTEGERS[..]), number()).prop_map(|(key, value)| {
        let value = if key == "Sequence number" && value.is_string() { json!(1) } else { value };
        (key.to_owned(), value)
    });
    let place = prop::sample::select(&["stream", "device", "wait_on_stream"][..]);
    prop_oneof![
        4 => integer,
        1 => (place, any::<i64>()).prop_map(|(key, value)| (key.to_owned(), json!(value >> 30))),
        2 => (prop::sample::select(&TEXTS[..]), text()).prop_map(|(k, v)| (k.to_owned(), v.into())),
        1 => prop::array::uniform3(any::<u32>()).prop_map(|grid| ("grid".to_owned(), json!(grid))),
        1 => any::<f32>().prop_map(|value| ("blocks per SM".to_owned(), json!(value))),
        1 => any::<bool>().prop_map(|value| ("finished".to_owned(), json!(value))),
        1 => text().prop_map(|kind| ("cuda_sync_kind".to_owned(), kind.into())),
        3 => ("[A-Z][a-z ]{0,60}", nested()),
    ]
}

fn event() -> impl Strategy<Value = Value> {
    let phase = prop::sample::select(&["X", "X", "X", "s", "f", "i", "M", "C", "N", "xx"][..]);
    let key = || prop_oneof![(-1..4i64).prop_map(Value::from), text().prop_map(Value::from)];
    let time = (0..4_000_000_000_000u64, 0..3).prop_map(|(time, form)| match form {
        0 => json!(time),
        1 => json!(time as f64 / 1000.0),
        _ => json!(format!("{}.{:03}", time / 1000, time % 1000)),
    });
    let args = prop::collection::btree_map("[a-z]{1,3}", any::<u16>(), 0..3);
    let head = (phase, prop::sample::select(&["cpu_op", "kernel", "é"][..]), text());
    let rest = (key(), key(), time.clone(), time, prop::collection::vec(argument(), 0..8), args);
    (head, rest).prop_map(|((ph, cat, name), (pid, tid, ts, dur, arguments, counts))| {
        let args: Map<String, Value> = if ph == "C" {
            counts.into_iter().map(|(key, value)| (key, value.into())).collect()
        } else {
            arguments.into_iter().collect()
        };
        let mut event =
            json!({"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "id": 7});
        if ph == "X" {
            event["dur"] = dur;
        }
        event["args"] = Value::Object(args);
        event
    })
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]
    #[test]
    fn random_events_match_the_slow_reader(
        events in prop::collection::vec(event(), 0..40), pretty in any::<bool>(),
    ) {
        let base = 1_700_000_000_000_000_000i64;
        let root = json!({"traceEvents": events, "baseTimeNanoseconds": base});
        let compact = serde_json::to_string(&root).unwrap();
        let text = if pretty { serde_json::to_string_pretty(&root).unwrap() } else { compact };
        assert_same(&open::parse(text.as_bytes()).unwrap(), &oracle::read(&text));
    }
}
