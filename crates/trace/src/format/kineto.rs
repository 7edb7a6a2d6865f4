//! Recognizes Kineto's Chrome JSON, and writes the rows of rowmill's own runs in it (decision
//! 0006).
//!
//! Only this format converts integer nanoseconds to microseconds, which have exactly three
//! decimals.

mod argument;
mod exchange;
pub mod export;
pub(in crate::format) mod mark;
mod number;
pub mod read;
mod row;

use std::io::{self, Write};

use schema::Nanos;
use serde::Serialize;

use super::identity::{self, NumberedStep, OperationIdentity};
use super::json_keys::each_key;
use super::timeline::{ReadTimeline, Timeline, WriteTimeline};
use crate::record::{OpSpan, Recorder, RunInfo};
use argument::{KernelArguments, LaunchArguments, OperationArguments, StepArguments};
use row::{DEVICE, Flow, RowWriter, STREAM, Slice, Track};

/// Name of the launch rows. Holistic Trace Analysis recognizes launches by a fixed list of names,
/// and it fails on a trace without launches. The name `cudaLaunchKernelExC` is on the list, and no
/// CUDA behavior is tied to it (decision 0006).
const LAUNCH: &str = "cudaLaunchKernelExC";

/// Reads and writes Kineto's Chrome JSON in all its variants.
pub static TIMELINE: Timeline = Timeline {
    name: "Kineto",
    extensions: &[".json"],
    recognizes,
    read: ReadTimeline::Blocks(|blocks, threads| {
        read::read(blocks, threads).map_err(|problem| problem.reason)
    }),
    write: Some(&WRITER),
};

/// Writes Kineto JSON, which is also the format of files whose extension belongs to no format.
pub static WRITER: WriteTimeline = WriteTimeline {
    extensions: &[".json"],
    write: |out, merged, options, _| export::write(out, merged, options),
};

/// Top-level keys that only Kineto writes.
const KEYS: [&[u8]; 5] = [
    b"traceEvents",
    b"schemaVersion",
    b"deviceProperties",
    b"baseTimeNanoseconds",
    b"distributedInfo",
];
/// Largest number of top-level keys that are searched for one of [`KEYS`].
const SEEN: usize = 256;

/// Whether a text begins like Kineto's JSON: either as an object with one of its keys, or as a list
/// of events.
fn recognizes(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let (mut left, mut found) = (SEEN, false);
    match text.split_first() {
        Some((b'{', _)) => each_key(text, |key| {
            left -= 1;
            found = KEYS.contains(&key);
            !found && left > 0
        }),
        Some((b'[', items)) if items.trim_ascii_start().starts_with(b"{") => {
            each_key(items.trim_ascii_start(), |key| {
                found = key == b"ph";
                !found
            });
        }
        _ => {}
    }
    found
}

/// Writes all steps of a recording in Kineto's format.
///
/// # Errors
/// Returns the errors of writing to `out`.
pub fn write(recorder: &Recorder, out: &mut impl Write) -> io::Result<()> {
    write_header(recorder, out)?;
    let mut rows = RowWriter::new(out);
    let tracks = Tracks::new(recorder.info());
    write_track_names(&mut rows, recorder.info(), &tracks)?;
    for numbered in identity::number(recorder) {
        write_step(&mut rows, &tracks, &numbered)?;
        let spans = recorder.spans_of(numbered.step).iter().zip(&numbered.operations);
        for (span, identity) in spans {
            write_operation(&mut rows, &tracks, span, *identity)?;
            if span.has_kernel() {
                write_kernel(&mut rows, &tracks, recorder.info(), span, *identity)?;
            }
        }
    }
    exchange::write(&mut rows, recorder.exchanges())?;
    out.write_all(b"\n  ]\n}\n")
}

/// The two tracks of a file: the thread that runs the steps, and the thread pool as its device.
struct Tracks {
    main: Track,
    pool: Track,
}

impl Tracks {
    fn new(info: &RunInfo) -> Self {
        Self {
            main: Track { pid: info.pid, tid: info.main_tid },
            pool: Track { pid: DEVICE, tid: STREAM },
        }
    }
}

/// The entry of `deviceProperties` for the thread pool.
#[derive(Serialize)]
struct DeviceProperties<'a> {
    id: u32,
    name: &'a str,
    threads: usize,
}

fn write_header(recorder: &Recorder, out: &mut impl Write) -> io::Result<()> {
    let info = recorder.info();
    let device = DeviceProperties { id: DEVICE, name: &info.device, threads: info.threads };
    writeln!(out, "{{\n  \"schemaVersion\": 1,")?;
    if let Some(id) = recorder.trace_id() {
        writeln!(out, "  \"trace_id\": {},", serde_json::to_string(id)?)?;
    }
    writeln!(out, "  \"deviceProperties\": {},", serde_json::to_string(&[device])?)?;
    // Some readers find the rank by a pattern that expects a space after the colon.
    writeln!(
        out,
        "  \"distributedInfo\": {{\"backend\": {}, \"rank\": {}, \"world_size\": {}}},",
        serde_json::to_string(&info.backend)?,
        info.rank,
        info.world_size
    )?;
    writeln!(out, "  \"record_shapes\": 1,\n  \"with_flops\": 1,")?;
    writeln!(out, "  \"host_name\": {},", serde_json::to_string(&info.host)?)?;
    writeln!(out, "  \"moved_ns\": {},", recorder.moved_ns())?;
    writeln!(out, "  \"displayTimeUnit\": \"ms\",")?;
    writeln!(out, "  \"baseTimeNanoseconds\": {},", info.base_time_ns)?;
    write!(out, "  \"traceEvents\": [")
}

fn write_track_names<W: Write>(
    rows: &mut RowWriter<'_, W>,
    info: &RunInfo,
    tracks: &Tracks,
) -> io::Result<()> {
    let main = format!("thread {} (rowmill rank {})", info.main_tid, info.rank);
    rows.name_process(tracks.main, "rowmill", "CPU", i64::from(info.pid))?;
    rows.name_thread(tracks.main, &main)?;
    // The device's process is displayed after all host processes, as in traces of GPUs.
    let pool = format!("pool {DEVICE}: {}", info.device);
    rows.name_process(tracks.pool, "rowmill", &pool, 5_000_000)?;
    rows.name_thread(tracks.pool, &format!("stream {STREAM}"))
}

fn write_step<W: Write>(
    rows: &mut RowWriter<'_, W>,
    tracks: &Tracks,
    numbered: &NumberedStep<'_>,
) -> io::Result<()> {
    let step = numbered.step;
    let arguments = StepArguments {
        external_id: numbered.record_function,
        record_function_id: numbered.record_function,
        busy_ns: step.busy.0,
    };
    let name = format!("ProfilerStep#{}", step.number);
    rows.slice(
        Slice {
            category: "user_annotation",
            name: &name,
            track: tracks.main,
            start: step.begin,
            end: step.end,
        },
        &arguments,
    )
}

fn write_operation<W: Write>(
    rows: &mut RowWriter<'_, W>,
    tracks: &Tracks,
    span: &OpSpan,
    identity: OperationIdentity,
) -> io::Result<()> {
    let name = format!("rowmill::{}", span.op.name());
    let operation = Slice {
        category: "cpu_op",
        name: &name,
        track: tracks.main,
        start: span.start,
        end: span.end,
    };
    rows.slice(operation, &OperationArguments::new(span, identity))?;
    if !span.has_kernel() {
        return Ok(());
    }
    let launch = Slice {
        category: "cuda_runtime",
        name: LAUNCH,
        track: tracks.main,
        start: span.start,
        // An asynchronous device may start after the operation has returned on the host. The launch
        // must nevertheless end before its operation does.
        end: span.kernel_start.min(Nanos(span.end.0 - 1)),
    };
    rows.slice(launch, &LaunchArguments::new(identity))?;
    rows.flow(flow(tracks.main, span.start, identity), row::End::Source)
}

fn write_kernel<W: Write>(
    rows: &mut RowWriter<'_, W>,
    tracks: &Tracks,
    info: &RunInfo,
    span: &OpSpan,
    identity: OperationIdentity,
) -> io::Result<()> {
    let name = kernel_name(span);
    let kernel = Slice {
        category: "kernel",
        name: &name,
        track: tracks.pool,
        start: span.kernel_start,
        end: span.kernel_end,
    };
    rows.slice(kernel, &KernelArguments::new(info, &span.op, identity))?;
    rows.flow(flow(tracks.pool, span.kernel_start, identity), row::End::Target)
}

/// Returns the name of a kernel row. The name of a collective contains `ncclKernel`, because
/// readers recognize communication only by this word.
fn kernel_name(span: &OpSpan) -> String {
    let name = span.op.name();
    match super::collective::describe(&span.op) {
        Some(_) => format!("rowmill_{name} (in place of ncclKernel)"),
        None => format!("rowmill_{name}"),
    }
}

fn flow(track: Track, at: Nanos, identity: OperationIdentity) -> Flow {
    Flow { track, at, id: identity.correlation }
}
