//! Reads Kineto JSON slowly, with a general JSON parser. One event is read after the other, and
//! keys are not predicted.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use serde_json::value::RawValue;
use trace::store::{
    Allocation, Collective, Counter, Flow, FlowPhase, Instant, LaunchShape, NewSlice, PythonFrame,
    SyncWait, Trace, TrackKey,
};

type Raw<'a> = BTreeMap<String, &'a RawValue>;

/// Reads a well-formed text. The header of the result contains only the base time and the rank.
pub fn read(text: &str) -> Trace {
    let mut trace = Trace::default();
    let events: Vec<&RawValue> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).unwrap()
    } else {
        let root: Raw<'_> = serde_json::from_str(text).unwrap();
        if let Some(base) = root.get("baseTimeNanoseconds") {
            trace.header.base_time_ns = base.get().parse().unwrap();
        }
        if let Some(info) = root.get("distributedInfo") {
            let info: Value = serde_json::from_str(info.get()).unwrap();
            trace.rank = info["rank"].as_u64().unwrap_or_default() as u32;
        }
        serde_json::from_str(root["traceEvents"].get()).unwrap()
    };
    let mut open: HashMap<(TrackKey, TrackKey), Vec<u32>> = HashMap::new();
    let mut processes: Vec<(TrackKey, &str, String)> = Vec::new();
    for raw in events {
        let event = Event::new(raw);
        *trace.phases.entry(event.text("ph")).or_default() += 1;
        match event.text("ph").as_str() {
            "X" => slice(&mut trace, &event, event.nanos("dur")),
            "B" => {
                slice(&mut trace, &event, Some(0));
                let row = trace.slices.len() as u32 - 1;
                open.entry((event.key("pid"), event.key("tid"))).or_default().push(row);
            }
            "E" => {
                trace.track_id(event.key("pid"), event.key("tid"));
                let key = (event.key("pid"), event.key("tid"));
                let row = open.get_mut(&key).unwrap().pop().unwrap() as usize;
                trace.slices.duration[row] = event.nanos("ts").unwrap() - trace.slices.start[row];
            }
            "s" => flow(&mut trace, &event, FlowPhase::Start),
            "t" => flow(&mut trace, &event, FlowPhase::Step),
            "f" => flow(&mut trace, &event, FlowPhase::End),
            "i" | "I" => instant(&mut trace, &event),
            "C" => counters(&mut trace, &event),
            "M" => {
                let track = trace.track_id(event.key("pid"), event.key("tid"));
                let text = |key: &str| event.args[key].as_str().unwrap_or_default().to_owned();
                match event.text("name").as_str() {
                    "thread_name" => trace.tracks[track.0 as usize].thread_name = text("name"),
                    "process_name" => processes.push((event.key("pid"), "name", text("name"))),
                    "process_labels" => processes.push((event.key("pid"), "label", text("labels"))),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    for (pid, what, text) in processes {
        for track in trace.tracks.iter_mut().filter(|track| track.pid == pid) {
            let named = match what {
                "name" => &mut track.process_name,
                _ => &mut track.process_label,
            };
            named.clone_from(&text);
        }
    }
    let base = trace.header.base_time_ns;
    trace.slices.start.iter_mut().for_each(|time| *time += base);
    trace.flows.iter_mut().for_each(|flow| flow.time += base);
    trace.counters.iter_mut().for_each(|counter| counter.time += base);
    trace.instants.iter_mut().for_each(|instant| instant.time += base);
    trace.allocations.iter_mut().for_each(|allocation| allocation.time += base);
    trace
}

struct Event<'a> {
    raw: Raw<'a>,
    args: Value,
}

impl<'a> Event<'a> {
    fn new(raw: &'a RawValue) -> Self {
        let raw: Raw<'a> = serde_json::from_str(raw.get()).unwrap();
        let args =
            raw.get("args").map_or(Value::Null, |args| serde_json::from_str(args.get()).unwrap());
        Self { raw, args }
    }

    fn value(&self, key: &str) -> Value {
        self.raw.get(key).map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
    }

    fn text(&self, key: &str) -> String {
        self.value(key).as_str().unwrap_or_default().to_owned()
    }

    fn key(&self, key: &str) -> TrackKey {
        match self.value(key) {
            Value::Number(number) => match number.as_i64() {
                Some(number) => TrackKey::Number(number),
                None => TrackKey::Text(self.raw[key].get().to_owned()),
            },
            Value::String(text) => TrackKey::Text(text),
            _ => TrackKey::Text(String::new()),
        }
    }

    /// Computes nanoseconds from the digits of the text, without floats.
    fn nanos(&self, key: &str) -> Option<i64> {
        let text = self.raw.get(key)?.get().trim_matches('"');
        let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{part:0<4}");
        let kept: i128 = format!("{whole}{}", &digits[..3]).parse().ok()?;
        let up = i128::from(digits.as_bytes()[3] >= b'5');
        i64::try_from(sign * (kept + up)).ok()
    }

    fn id(&self, key: &str) -> Option<u64> {
        let value = &self.args[key];
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    }

    fn int(&self, key: &str) -> i64 {
        self.args[key].as_i64().unwrap_or_default()
    }

    fn place(&self, key: &str) -> Option<i32> {
        self.args[key].as_i64().and_then(|place| i32::try_from(place).ok())
    }
}

fn slice(trace: &mut Trace, event: &Event<'_>, duration: Option<i64>) {
    let (Some(start), Some(duration)) = (event.nanos("ts"), duration) else { return };
    let row = trace.push(&NewSlice {
        category: &event.text("cat"),
        name: &event.text("name"),
        pid: event.key("pid"),
        tid: event.key("tid"),
        start,
        duration: duration.max(0),
        correlation: event.id("correlation"),
        external_id: event.id("External id").or_else(|| event.id("external id")),
        stream: event.place("stream"),
        device: event.place("device"),
        offset: None,
    });
    let slices = &mut trace.slices;
    if let Some(bytes) = event.id("bytes") {
        slices.bytes.push(row, bytes);
    }
    if let Some(bandwidth) = event.args["memory bandwidth (GB/s)"].as_f64() {
        slices.bandwidth.push(row, bandwidth);
    }
    if let Some(sequence) = event.args["Sequence number"].as_i64() {
        slices.sequence.push(row, sequence);
    }
    if let Some(thread) = event.id("Fwd thread id") {
        slices.forward_thread.push(row, thread);
    }
    if let Some(function) = event.id("Record function id") {
        slices.record_function.push(row, function);
    }
    if let Some(index) = event.id("Ev Idx") {
        slices.event_index.push(row, index);
    }
    let stack = event.args.get("Call stack").and_then(Value::as_str);
    if let Some(stack) = stack.filter(|stack| !stack.is_empty()) {
        slices.call_stack.push(row, trace.strings.intern(stack));
    }
    if let Some(node) = event.id("graph node id") {
        slices.graph_node.push(row, node);
    }
    if event.args["finished"] == Value::Bool(false) {
        slices.unfinished.push(row, ());
    }
    groups(trace, event, row);
}

fn groups(trace: &mut Trace, event: &Event<'_>, row: u32) {
    let slices = &mut trace.slices;
    if event.args.get("grid").is_some() {
        let small = |value: Option<u64>| value.and_then(|v| u32::try_from(v).ok()).unwrap_or(0);
        let three = |key: &str| [0, 1, 2].map(|i| small(event.args[key][i].as_u64()));
        let float = |key: &str| event.args[key].as_f64().unwrap_or(f64::NAN) as f32;
        let shape = LaunchShape {
            grid: three("grid"),
            block: three("block"),
            registers: small(event.id("registers per thread")),
            shared_memory: small(event.id("shared memory")),
            blocks_per_sm: float("blocks per SM"),
            warps_per_sm: float("warps per SM"),
            occupancy_pct: float("est. achieved occupancy %"),
        };
        slices.launch_shape.push(row, shape);
    }
    if let Some(id) = event.id("Python id") {
        let (parent, module) = (event.id("Python parent id"), event.id("Python module id"));
        slices.python.push(row, PythonFrame { id, parent, module });
    }
    if event.args.get("cuda_sync_kind").is_some() {
        let wait = SyncWait {
            stream: event.args["wait_on_stream"].as_i64(),
            record_correlation: event.id("wait_on_cuda_event_record_corr_id"),
            event: event.id("wait_on_cuda_event_id"),
        };
        slices.sync.push(row, wait);
    }
    if event.args.get("Collective name").is_some() {
        let strings = &mut trace.strings;
        let mut text = |key: &str| strings.intern(event.args[key].as_str().unwrap_or_default());
        let collective = Collective {
            name: text("Collective name"),
            dtype: text("dtype"),
            elements_in: event.id("In msg nelems"),
            elements_out: event.id("Out msg nelems"),
            splits_in: text("In split size"),
            splits_out: text("Out split size"),
            group_size: event.id("Group size").and_then(|size| u32::try_from(size).ok()),
            group: text("Process Group Name"),
            group_description: text("Process Group Description"),
            group_ranks: text("Process Group Ranks"),
            sequence: event.id("Seq"),
        };
        trace.slices.collective.push(row, collective);
    }
}

fn flow(trace: &mut Trace, event: &Event<'_>, phase: FlowPhase) {
    let (Some(time), Some(id)) = (event.nanos("ts"), event.value("id").as_u64()) else { return };
    let category = trace.category(&event.text("cat"));
    let track = trace.track_id(event.key("pid"), event.key("tid"));
    trace.flows.push(Flow { phase, category, id, track, time });
}

fn instant(trace: &mut Trace, event: &Event<'_>) {
    let Some(time) = event.nanos("ts") else { return };
    let track = trace.track_id(event.key("pid"), event.key("tid"));
    if event.text("name") == "[memory]" {
        trace.allocations.push(Allocation {
            time,
            address: event.args["Addr"].as_u64().unwrap_or_default(),
            bytes: event.int("Bytes"),
            total_allocated: event.int("Total Allocated"),
            total_reserved: event.int("Total Reserved"),
            device_type: event.int("Device Type") as i32,
            device: event.int("Device Id") as i32,
            track,
        });
        return;
    }
    let category = trace.category(&event.text("cat"));
    let name = trace.strings.intern(&event.text("name"));
    trace.instants.push(Instant { name, category, track, time });
}

fn counters(trace: &mut Trace, event: &Event<'_>) {
    let Some(time) = event.nanos("ts") else { return };
    let track = trace.track_id(event.key("pid"), event.key("tid"));
    let name = trace.strings.intern(&event.text("name"));
    for (series, value) in event.args.as_object().into_iter().flatten() {
        let series = trace.strings.intern(series);
        let value = value.as_f64().unwrap_or(f64::NAN);
        trace.counters.push(Counter { name, series, track, time, value });
    }
}
