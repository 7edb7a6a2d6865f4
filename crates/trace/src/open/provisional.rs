//! Provisional: collects the blocks and reads them with a general JSON reader.

use std::collections::BTreeMap;

use serde_json::Value;

use super::blocks::Blocks;
use crate::store::{
    Allocation, Collective, Counter, Device, Distributed, Flow, FlowPhase, Instant, LaunchShape,
    NewSlice, ProcessGroup, PythonFrame, StringId, SyncWait, Trace, TrackKey,
};

/// The text is none of ours.
#[derive(Debug)]
pub struct NotKineto {
    /// Where and why.
    pub reason: String,
}

/// Reads one trace from its blocks.
pub fn read(blocks: &mut dyn Blocks, _threads: usize) -> Result<Trace, NotKineto> {
    let (mut text, mut block) = (Vec::new(), Vec::new());
    while blocks.next(&mut block).map_err(|e| NotKineto { reason: e.to_string() })? {
        text.extend_from_slice(&block);
    }
    parse(&text)
}

fn parse(text: &[u8]) -> Result<Trace, NotKineto> {
    let bad = |reason: String| NotKineto { reason };
    let root: Value = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
    let mut trace = Trace::default();
    trace.origin.text_bytes = text.len() as u64;
    let events = match root {
        Value::Array(events) => events,
        Value::Object(mut object) => {
            let events = object.remove("traceEvents");
            header(&mut trace, object.into_iter().collect());
            match events {
                Some(Value::Array(events)) => events,
                _ => return Err(bad("expected traceEvents".to_owned())),
            }
        }
        _ => return Err(bad("expected an object or an array".to_owned())),
    };
    for event in &events {
        add(&mut trace, event);
    }
    let base = trace.header.base_time_ns;
    trace.slices.start.iter_mut().for_each(|start| *start += base);
    trace.flows.iter_mut().for_each(|flow| flow.time += base);
    Ok(trace)
}

fn header(trace: &mut Trace, mut rest: BTreeMap<String, Value>) {
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
    let small = |v: &Value, key: &str| v[key].as_u64().unwrap_or_default();
    if let Some(base) = rest.remove("baseTimeNanoseconds") {
        trace.header.base_time_ns = base.as_i64().unwrap_or_default();
    }
    if let Some(Value::Array(devices)) = rest.remove("deviceProperties") {
        trace.header.devices = devices
            .iter()
            .map(|d| Device {
                id: d["id"].as_i64().unwrap_or_default(),
                name: text(d, "name"),
                memory_bytes: small(d, "totalGlobalMem"),
                compute_capability: (
                    small(d, "computeMajor") as u32,
                    small(d, "computeMinor") as u32,
                ),
                sm_count: small(d, "numSms") as u32,
                threads_per_sm: small(d, "maxThreadsPerMultiprocessor") as u32,
                warp_size: small(d, "warpSize") as u32,
            })
            .collect();
    }
    if let Some(d) = rest.remove("distributedInfo") {
        trace.rank = small(&d, "rank") as u32;
        trace.header.distributed = Some(Distributed {
            backend: text(&d, "backend"),
            rank: d["rank"].as_u64().map(|r| r as u32),
            world_size: d["world_size"].as_u64().map(|r| r as u32),
            groups: d["pg_config"]
                .as_array()
                .map(|groups| {
                    groups
                        .iter()
                        .map(|g| ProcessGroup {
                            name: text(g, "pg_name"),
                            description: text(g, "pg_desc"),
                            ranks: g["ranks"]
                                .as_array()
                                .map(|r| {
                                    r.iter().filter_map(Value::as_u64).map(|r| r as u32).collect()
                                })
                                .unwrap_or_default(),
                        })
                        .collect()
                })
                .unwrap_or_default(),
        });
    }
    trace.header.rest = rest;
}

fn nanos(value: &Value) -> Option<i64> {
    let text = match value {
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.clone(),
        _ => return None,
    };
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let part = format!("{part:0<3}");
    let whole: i64 = whole.parse().ok()?;
    let part: i64 = part[..3].parse().ok()?;
    Some(whole * 1000 + part)
}

fn key(value: &Value) -> TrackKey {
    match value {
        Value::Number(n) => TrackKey::Number(n.as_i64().unwrap_or(-1)),
        Value::String(s) => TrackKey::Text(s.clone()),
        _ => TrackKey::Text(String::new()),
    }
}

fn add(trace: &mut Trace, event: &Value) {
    let phase = event["ph"].as_str().unwrap_or_default();
    *trace.phases.entry(phase.to_owned()).or_default() += 1;
    let name = event["name"].as_str().unwrap_or_default();
    let (pid, tid) = (key(&event["pid"]), key(&event["tid"]));
    let args = &event["args"];
    let id = |k: &str| args[k].as_u64().or_else(|| args[k].as_str().and_then(|t| t.parse().ok()));
    let time = nanos(&event["ts"]);
    match phase {
        "X" => {
            let (Some(start), Some(duration)) = (time, nanos(&event["dur"])) else { return };
            let row = trace.push(&NewSlice {
                category: event["cat"].as_str().unwrap_or_default(),
                name,
                pid,
                tid,
                start,
                duration: duration.max(0),
                correlation: id("correlation"),
                external_id: id("External id").or_else(|| id("external id")),
                stream: args["stream"].as_i64().and_then(|s| i32::try_from(s).ok()),
                device: args["device"].as_i64().map(|s| s as i32),
                offset: None,
            });
            arguments(trace, row, args);
        }
        "s" | "t" | "f" => {
            let category = trace.category(event["cat"].as_str().unwrap_or_default());
            let track = trace.track_id(pid, tid);
            let phase = match phase {
                "s" => FlowPhase::Start,
                "t" => FlowPhase::Step,
                _ => FlowPhase::End,
            };
            trace.flows.push(Flow {
                phase,
                category,
                id: event["id"].as_u64().unwrap_or_default(),
                track,
                time: time.unwrap_or_default(),
            });
        }
        "i" | "I" => {
            let track = trace.track_id(pid, tid);
            if name == "[memory]" {
                let int = |k: &str| args[k].as_i64().unwrap_or_default();
                trace.allocations.push(Allocation {
                    time: time.unwrap_or_default(),
                    address: args["Addr"].as_u64().unwrap_or_default(),
                    bytes: int("Bytes"),
                    total_allocated: int("Total Allocated"),
                    total_reserved: int("Total Reserved"),
                    device_type: int("Device Type") as i32,
                    device: int("Device Id") as i32,
                    track,
                });
                return;
            }
            let category = trace.category(event["cat"].as_str().unwrap_or_default());
            let name = trace.strings.intern(name);
            trace.instants.push(Instant { name, category, track, time: time.unwrap_or_default() });
        }
        "C" => {
            let track = trace.track_id(pid, tid);
            let name = trace.strings.intern(name);
            for (series, value) in args.as_object().into_iter().flatten() {
                let series = trace.strings.intern(series);
                trace.counters.push(Counter {
                    name,
                    series,
                    track,
                    time: time.unwrap_or_default(),
                    value: value.as_f64().unwrap_or(f64::NAN),
                });
            }
        }
        "M" => {
            let track = trace.track_id(pid.clone(), tid);
            let text = |k: &str| args[k].as_str().unwrap_or_default().to_owned();
            match name {
                "thread_name" => trace.tracks[track.0 as usize].thread_name = text("name"),
                "process_name" => trace
                    .tracks
                    .iter_mut()
                    .filter(|t| t.pid == pid)
                    .for_each(|t| t.process_name = text("name")),
                "process_labels" => trace
                    .tracks
                    .iter_mut()
                    .filter(|t| t.pid == pid)
                    .for_each(|t| t.process_label = text("labels")),
                _ => {}
            }
        }
        _ => {}
    }
}

fn arguments(trace: &mut Trace, row: u32, args: &Value) {
    let id = |k: &str| args[k].as_u64().or_else(|| args[k].as_str().and_then(|t| t.parse().ok()));
    let three = |k: &str| [0, 1, 2].map(|i| args[k][i].as_u64().unwrap_or_default() as u32);
    let float = |k: &str| args[k].as_f64().unwrap_or(f64::NAN) as f32;
    let slices = &mut trace.slices;
    if let Some(bytes) = id("bytes") {
        slices.bytes.push(row, bytes);
    }
    if let Some(bandwidth) = args["memory bandwidth (GB/s)"].as_f64() {
        slices.bandwidth.push(row, bandwidth);
    }
    if args.get("grid").is_some() {
        slices.launch_shape.push(
            row,
            LaunchShape {
                grid: three("grid"),
                block: three("block"),
                registers: id("registers per thread").unwrap_or_default() as u32,
                shared_memory: id("shared memory").unwrap_or_default() as u32,
                blocks_per_sm: float("blocks per SM"),
                warps_per_sm: float("warps per SM"),
                occupancy_pct: float("est. achieved occupancy %"),
            },
        );
    }
    if let Some(sequence) = args["Sequence number"].as_i64() {
        slices.sequence.push(row, sequence);
    }
    if let Some(thread) = id("Fwd thread id") {
        slices.forward_thread.push(row, thread);
    }
    if let Some(function) = id("Record function id") {
        slices.record_function.push(row, function);
    }
    if let Some(index) = id("Ev Idx") {
        slices.event_index.push(row, index);
    }
    if let Some(python) = id("Python id") {
        slices.python.push(
            row,
            PythonFrame {
                id: python,
                parent: id("Python parent id"),
                module: id("Python module id"),
            },
        );
    }
    if args.get("cuda_sync_kind").is_some() {
        slices.sync.push(
            row,
            SyncWait {
                stream: args["wait_on_stream"].as_i64(),
                record_correlation: id("wait_on_cuda_event_record_corr_id"),
                event: id("wait_on_cuda_event_id"),
            },
        );
    }
    if let Some(node) = id("graph node id") {
        slices.graph_node.push(row, node);
    }
    if args["finished"] == Value::Bool(false) {
        slices.unfinished.push(row, ());
    }
    if args.get("Collective name").is_some() {
        let strings = &mut trace.strings;
        let mut text =
            |k: &str| -> StringId { strings.intern(args[k].as_str().unwrap_or_default()) };
        let collective = Collective {
            name: text("Collective name"),
            dtype: text("dtype"),
            elements_in: id("In msg nelems"),
            elements_out: id("Out msg nelems"),
            splits_in: text("In split size"),
            splits_out: text("Out split size"),
            group_size: id("Group size").map(|n| n as u32),
            group: text("Process Group Name"),
            group_description: text("Process Group Description"),
            group_ranks: text("Process Group Ranks"),
            sequence: id("Seq"),
        };
        trace.slices.collective.push(row, collective);
    }
}
