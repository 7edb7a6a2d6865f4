//! Writes the rows of a simulated program in the trace format of Kineto.

use serde_json::{Value, json};

use super::program::{Op, Program, STREAM_IDS};
use super::simulate::{DeviceRow, HostRow, Run};

const PID: i64 = 4242;

/// Returns the trace of one rank as JSON.
pub fn kineto(program: &Program, rank: usize, run: &Run) -> Value {
    let skew = program.ranks[rank].skew_ns;
    let mut events = Vec::new();
    for row in &run.host {
        events.extend(host(row));
        events.extend(program.has_sync_rows.then(|| sync(row, skew)).flatten());
    }
    events.extend(run.device.iter().map(|row| device(row, skew, program.ranks.len())));
    json!({
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": program.ranks.len(),
        },
        "deviceProperties": [{ "id": 0, "name": "Simulated", "computeMajor": 9, "numSms": 100 }],
        "traceEvents": events,
    })
}

fn micros(ns: i64) -> Value {
    json!(format!("{:.3}", ns as f64 / 1e3).parse::<f64>().expect("a number"))
}

fn slice(category: &str, name: &str, track: (i64, i64), span: (i64, i64), args: Value) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": track.0, "tid": track.1,
        "ts": micros(span.0), "dur": micros(span.1 - span.0), "args": args,
    })
}

/// Returns the name of an instruction's runtime call, or `None` for an instruction that runs on the
/// host only.
fn call(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Host { .. } => return None,
        Op::Kernel { .. } | Op::Collective { .. } => "cudaLaunchKernel",
        Op::CopyIn { .. } | Op::CopyOut { .. } => "cudaMemcpyAsync",
        Op::Record { .. } => "cudaEventRecord",
        Op::StreamWait { .. } => "cudaStreamWaitEvent",
        Op::EventQuery => "cudaEventQuery",
        Op::EventSync { .. } => "cudaEventSynchronize",
        Op::StreamSync { .. } => "cudaStreamSynchronize",
        Op::DeviceSync => "cudaDeviceSynchronize",
    })
}

fn host(row: &HostRow) -> Option<Value> {
    let track = (PID, PID + row.thread as i64);
    let span = (row.start, row.end);
    match (&row.what, call(&row.what)) {
        (Op::Host { name, .. }, _) => {
            name.map(|name| slice("cpu_op", name, track, span, json!({})))
        }
        (_, Some(name)) => {
            let args = json!({ "correlation": row.correlation });
            Some(slice("cuda_runtime", name, track, span, args))
        }
        _ => None,
    }
}

fn sync(row: &HostRow, skew: i64) -> Option<Value> {
    let stream = row.stream.map(|stream| STREAM_IDS[stream]);
    let kind = match row.what {
        Op::StreamWait { .. } => "Stream Wait Event",
        Op::StreamSync { .. } => "Stream Sync",
        Op::EventSync { .. } => "Event Sync",
        Op::DeviceSync => "Context Sync",
        _ => return None,
    };
    let mut args = json!({
        "cuda_sync_kind": kind, "correlation": row.correlation, "device": 0, "context": 1,
        "stream": stream.unwrap_or(4_294_967_295),
    });
    if let Some(recorded) = row.recorded {
        args["wait_on_cuda_event_record_corr_id"] = json!(recorded);
        args["wait_on_stream"] = json!(row.awaited_stream.map(|stream| STREAM_IDS[stream]));
        args["wait_on_cuda_event_id"] = json!(1);
    }
    let span = (row.start + skew, row.end + skew);
    Some(slice("cuda_sync", kind, (0, stream.unwrap_or(-1)), span, args))
}

fn device(row: &DeviceRow, skew: i64, ranks: usize) -> Value {
    let span = (row.start + skew, row.end + skew);
    let stream = STREAM_IDS[row.stream];
    let mut args = json!({
        "correlation": row.correlation, "device": 0, "context": 1, "stream": stream,
    });
    let (category, name) = match &row.what {
        Op::Kernel { name, .. } => ("kernel", *name),
        Op::CopyIn { .. } => ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
        Op::CopyOut { .. } => ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)"),
        Op::Collective { .. } => {
            args["Collective name"] = json!("allreduce");
            args["In msg nelems"] = json!(1_000_000);
            args["Out msg nelems"] = json!(1_000_000);
            args["Group size"] = json!(ranks);
            args["dtype"] = json!("Float");
            args["Process Group Name"] = json!("0");
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        }
        other => unreachable!("{other:?} is not of a device"),
    };
    slice(category, name, (0, stream), span, args)
}
