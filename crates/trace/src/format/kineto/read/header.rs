//! Decodes the keys outside the list of events: devices, ranks and base time. Unknown entries are
//! kept unchanged.

use std::collections::BTreeMap;

use serde_json::Value;

use super::part::TextPart;
use super::row;
use crate::store::{DeviceProperties, Distributed, Loss, Losses, ProcessGroup, TraceHeader};

/// Reads the value of one key. A value that is not valid JSON is kept as a text.
pub fn value(text: &[u8], offset: u64, part: &mut TextPart) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|error| {
        let what = || format!("byte {offset}: expected a JSON value, got {error}");
        part.losses.count(Loss::BrokenHeader, what);
        Value::String(String::from_utf8_lossy(text).into_owned())
    })
}

/// Builds the header from its keys and values. Entries of an unexpected type stay in
/// [`TraceHeader::rest`].
pub(in crate::format) fn from_entries(
    mut rest: BTreeMap<String, Value>,
    losses: &mut Losses,
) -> TraceHeader {
    let mut header = TraceHeader::default();
    let mut odd = |key: &str, expected: &str| {
        losses.count(Loss::BrokenHeader, || format!("{key}: expected {expected}"));
    };
    if let Some(base) = rest.remove("baseTimeNanoseconds") {
        match integer(&base).filter(|base| row::is_in_range(*base)) {
            Some(base) => header.base_time_ns = base,
            None => {
                odd("baseTimeNanoseconds", "an integer below 2^61");
                rest.insert("baseTimeNanoseconds".to_owned(), base);
            }
        }
    }
    match rest.remove("deviceProperties") {
        Some(Value::Array(devices)) => header.devices = devices.iter().map(device).collect(),
        Some(other) => {
            odd("deviceProperties", "an array");
            rest.insert("deviceProperties".to_owned(), other);
        }
        None => {}
    }
    match rest.remove("distributedInfo") {
        Some(info @ Value::Object(_)) => header.distributed = Some(distributed(&info)),
        Some(other) => {
            odd("distributedInfo", "an object");
            rest.insert("distributedInfo".to_owned(), other);
        }
        None => {}
    }
    header.rest = rest;
    header
}

fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Reads a count, which may also be written as a text.
fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn small(value: &Value) -> Option<u32> {
    u32::try_from(count(value)?).ok()
}

fn device(value: &Value) -> DeviceProperties {
    let number = |key: &str| small(&value[key]).unwrap_or_default();
    DeviceProperties {
        id: integer(&value["id"]).unwrap_or_default(),
        name: text(value, "name"),
        memory_bytes: count(&value["totalGlobalMem"]).unwrap_or_default(),
        compute_capability: (number("computeMajor"), number("computeMinor")),
        sm_count: number("numSms"),
        threads_per_sm: number("maxThreadsPerMultiprocessor"),
        warp_size: number("warpSize"),
    }
}

fn distributed(info: &Value) -> Distributed {
    Distributed {
        backend: text(info, "backend"),
        rank: small(&info["rank"]),
        world_size: small(&info["world_size"]),
        groups: info["pg_config"]
            .as_array()
            .map_or_else(Vec::new, |groups| groups.iter().map(group).collect()),
    }
}

fn group(value: &Value) -> ProcessGroup {
    ProcessGroup {
        name: text(value, "pg_name"),
        description: text(value, "pg_desc"),
        ranks: ranks(&value["ranks"]),
    }
}

/// Reads the ranks of a process group. If the profiler was started on demand, the file stores the
/// ranks as the text of an array instead of an array.
fn ranks(value: &Value) -> Vec<u32> {
    match value {
        Value::Array(ranks) => ranks.iter().filter_map(small).collect(),
        Value::String(text) => {
            let parts = text.split(|c: char| !c.is_ascii_digit());
            parts.filter_map(|part| part.parse().ok()).collect()
        }
        _ => Vec::new(),
    }
}
