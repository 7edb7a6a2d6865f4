//! Writes the part of a file that precedes its events.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::time::WrittenClock;
use crate::format::kineto::mark;
use crate::merge::{Merged, MergedPart};
use crate::store::{DeviceProperties, Distributed};

/// Keys of the header that are written separately.
const OWN: [&str; 4] = ["schemaVersion", "baseTimeNanoseconds", "traceEvents", "displayTimeUnit"];

/// Opens the JSON object, writes the header, and opens the list of events.
pub fn write(
    out: &mut (impl Write + ?Sized),
    merged: &Merged<'_>,
    clock: WrittenClock,
) -> io::Result<()> {
    let (mut keys, unit) = match merged.parts.as_slice() {
        [part] => single_header(part),
        parts => merged_header(parts),
    };
    OWN.iter().for_each(|key| drop(keys.remove(*key)));
    if let Some(cut) = mark::marks(&merged.parts) {
        keys.insert(mark::KEY.to_owned(), cut);
    }
    writeln!(out, "{{\n  \"schemaVersion\": 1,")?;
    for (key, value) in keys {
        writeln!(out, "  {}: {},", Value::String(key), spaced(&value))?;
    }
    writeln!(out, "  \"displayTimeUnit\": {unit},")?;
    if clock.base_ns != 0 {
        writeln!(out, "  \"baseTimeNanoseconds\": {},", clock.base_ns)?;
    }
    write!(out, "  \"traceEvents\": [")
}

/// Returns the header's keys and the display unit of a file with one part.
pub(in crate::format) fn single_header(part: &MergedPart<'_>) -> (Map<String, Value>, Value) {
    let header = &part.trace.header;
    let mut keys = Map::new();
    if !header.devices.is_empty() {
        let devices = header.devices.iter().map(|device| properties(device, device.id));
        keys.insert("deviceProperties".to_owned(), devices.collect());
    }
    if let Some(distributed) = &header.distributed {
        let rank = distributed.rank;
        keys.insert("distributedInfo".to_owned(), info(distributed, rank));
    }
    // Entries that the reader kept unchanged are more precise than the values decoded from them.
    keys.extend(header.rest.iter().map(|(key, value)| (key.clone(), value.clone())));
    let unit = header.rest.get("displayTimeUnit").cloned();
    (keys, unit.unwrap_or_else(|| json!("ms")))
}

fn merged_header(parts: &[MergedPart<'_>]) -> (Map<String, Value>, Value) {
    let mut keys = Map::new();
    let devices = parts.iter().flat_map(|part| {
        part.trace.header.devices.iter().map(|device| properties(device, part.device(device.id)))
    });
    keys.insert("deviceProperties".to_owned(), devices.collect());
    let distributed = parts.iter().find_map(|part| part.trace.header.distributed.as_ref());
    if let Some(distributed) = distributed {
        keys.insert("distributedInfo".to_owned(), info(distributed, None));
    }
    let ranks = parts.iter().map(|part| {
        json!({
            "merged": part.trace.rank,
            "origin": part.trace.origin.to_string(),
            "clock_ahead_ns": part.ahead_ns,
        })
    });
    keys.insert("ranks".to_owned(), ranks.collect());
    (keys, json!("ms"))
}

fn properties(device: &DeviceProperties, id: i64) -> Value {
    let (major, minor) = device.compute_capability;
    json!({
        "id": id,
        "name": device.name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": major,
        "computeMinor": minor,
        "maxThreadsPerMultiprocessor": device.threads_per_sm,
        "warpSize": device.warp_size,
        "numSms": device.sm_count,
    })
}

fn info(distributed: &Distributed, rank: Option<u32>) -> Value {
    let group = |group: &crate::store::ProcessGroup| {
        json!({
            "pg_name": group.name,
            "pg_desc": group.description,
            "pg_size": group.ranks.len(),
            "ranks": group.ranks,
        })
    };
    let groups: Vec<_> = distributed.groups.iter().map(group).collect();
    let mut info = json!({ "backend": distributed.backend });
    if let Some(rank) = rank {
        info["rank"] = json!(rank);
    }
    if let Some(world_size) = distributed.world_size {
        info["world_size"] = json!(world_size);
    }
    if !groups.is_empty() {
        info["pg_count"] = json!(groups.len());
        info["pg_config"] = Value::Array(groups);
    }
    info
}

/// Formats JSON with a space after each colon. Some readers find the rank by a pattern that expects
/// the space.
fn spaced(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::String(key.clone()), spaced(value))
            };
            format!("{{{}}}", keys.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
