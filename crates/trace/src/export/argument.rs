//! Produces the arguments of a slice under Kineto's keys, from the columns or from the original
//! text.
//!
//! This module decides which arguments a slice has and which of them are ids. Each format decides
//! how a value is encoded.

use super::original::ArgumentPairs;
use crate::merge::{IdKind, MergedPart};
use crate::store::{Allocation, Collective, LaunchShape, StringId};

/// The value of an argument, in the types that appear in Kineto's files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgumentValue<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    /// A single-precision number, which is printed with fewer digits than a double.
    Single(f32),
    Text(&'a str),
    /// The x, y and z sizes of a grid or a block.
    Three([u32; 3]),
    /// The flag `false`. Columns never store a flag that is true.
    False,
    /// Any JSON value, whose text was already checked.
    Json(&'a str),
}

/// Cursors into the sparse columns. Rows are visited in order, so each lookup continues where the
/// previous one ended.
#[derive(Clone, Debug, Default)]
pub struct ColumnPlaces {
    bytes: usize,
    bandwidth: usize,
    launch_shape: usize,
    collective: usize,
    sequence: usize,
    forward_thread: usize,
    record_function: usize,
    event_index: usize,
    python: usize,
    call_stack: usize,
    sync: usize,
    graph_node: usize,
    unfinished: usize,
}

/// Passes the arguments that are stored in columns to `out`. Ids are made unique over all parts.
pub fn visit_columns<'a>(
    part: &'a MergedPart<'_>,
    row: u32,
    places: &mut ColumnPlaces,
    out: &mut impl FnMut(&'static str, ArgumentValue<'a>),
) {
    let slices = &part.trace.slices;
    let id = |kind, id| ArgumentValue::Unsigned(part.id(kind, id));
    if let Some(external) = slices.external_id(row) {
        out("External id", id(IdKind::External, external));
    }
    if let Some(function) = slices.record_function.get_near(row, &mut places.record_function) {
        out("Record function id", id(IdKind::RecordFunction, *function));
    }
    if let Some(sequence) = slices.sequence.get_near(row, &mut places.sequence) {
        out("Sequence number", ArgumentValue::Signed(sequence_number(part, *sequence)));
    }
    if let Some(thread) = slices.forward_thread.get_near(row, &mut places.forward_thread) {
        out("Fwd thread id", ArgumentValue::Unsigned(*thread));
    }
    if let Some(index) = slices.event_index.get_near(row, &mut places.event_index) {
        out("Ev Idx", id(IdKind::EventIndex, *index));
    }
    if let Some(frame) = slices.python.get_near(row, &mut places.python) {
        out("Python id", id(IdKind::Python, frame.id));
        let mut other = |key, other: Option<u64>| {
            other.into_iter().for_each(|other| out(key, id(IdKind::Python, other)));
        };
        other("Python parent id", frame.parent);
        other("Python module id", frame.module);
    }
    if let Some(stack) = slices.call_stack.get_near(row, &mut places.call_stack) {
        out("Call stack", ArgumentValue::Text(part.trace.strings.get(*stack)));
    }
    visit_device(part, row, places, out);
    if let Some(collective) = slices.collective.get_near(row, &mut places.collective) {
        visit_collective(part, collective, out);
    }
    if slices.unfinished.get_near(row, &mut places.unfinished).is_some() {
        out("finished", ArgumentValue::False);
    }
}

fn visit_device<'a>(
    part: &'a MergedPart<'_>,
    row: u32,
    places: &mut ColumnPlaces,
    out: &mut impl FnMut(&'static str, ArgumentValue<'a>),
) {
    let slices = &part.trace.slices;
    let id = |kind, id| ArgumentValue::Unsigned(part.id(kind, id));
    if let Some(device) = slices.device(row) {
        out("device", ArgumentValue::Signed(part.device(i64::from(device))));
    }
    if let Some(stream) = slices.stream(row) {
        out("stream", ArgumentValue::Signed(i64::from(stream)));
    }
    if let Some(correlation) = slices.correlation(row) {
        out("correlation", id(IdKind::Correlation, correlation));
    }
    if let Some(bytes) = slices.bytes.get_near(row, &mut places.bytes) {
        out("bytes", ArgumentValue::Unsigned(*bytes));
    }
    if let Some(bandwidth) = slices.bandwidth.get_near(row, &mut places.bandwidth) {
        out("memory bandwidth (GB/s)", ArgumentValue::Float(*bandwidth));
    }
    if let Some(node) = slices.graph_node.get_near(row, &mut places.graph_node) {
        out("graph node id", id(IdKind::GraphNode, *node));
    }
    if let Some(shape) = slices.launch_shape.get_near(row, &mut places.launch_shape) {
        visit_launch(shape, out);
    }
    if let Some(wait) = slices.sync.get_near(row, &mut places.sync) {
        out("cuda_sync_kind", ArgumentValue::Text(part.trace.name(row)));
        if let Some(stream) = wait.stream {
            out("wait_on_stream", ArgumentValue::Signed(stream));
        }
        if let Some(record) = wait.record_correlation {
            out("wait_on_cuda_event_record_corr_id", id(IdKind::Correlation, record));
        }
        if let Some(event) = wait.event {
            out("wait_on_cuda_event_id", id(IdKind::DeviceEvent, event));
        }
    }
}

fn visit_launch<'a>(shape: &LaunchShape, out: &mut impl FnMut(&'static str, ArgumentValue<'a>)) {
    out("registers per thread", ArgumentValue::Unsigned(u64::from(shape.registers)));
    out("shared memory", ArgumentValue::Unsigned(u64::from(shape.shared_memory)));
    let numbers = [
        ("blocks per SM", shape.blocks_per_sm),
        ("warps per SM", shape.warps_per_sm),
        ("est. achieved occupancy %", shape.occupancy_pct),
    ];
    for (key, number) in numbers.into_iter().filter(|(_, number)| number.is_finite()) {
        out(key, ArgumentValue::Single(number));
    }
    out("grid", ArgumentValue::Three(shape.grid));
    out("block", ArgumentValue::Three(shape.block));
}

fn visit_collective<'a>(
    part: &'a MergedPart<'_>,
    collective: &Collective,
    out: &mut impl FnMut(&'static str, ArgumentValue<'a>),
) {
    let texts = [
        ("Collective name", collective.name),
        ("dtype", collective.dtype),
        ("In split size", collective.splits_in),
        ("Out split size", collective.splits_out),
        ("Process Group Name", collective.group),
        ("Process Group Description", collective.group_description),
        ("Process Group Ranks", collective.group_ranks),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| *text != StringId::default()) {
        out(key, ArgumentValue::Text(part.trace.strings.get(text)));
    }
    let numbers = [
        ("In msg nelems", collective.elements_in),
        ("Out msg nelems", collective.elements_out),
        ("Group size", collective.group_size.map(u64::from)),
        ("Seq", collective.sequence),
    ];
    for (key, number) in numbers {
        number.into_iter().for_each(|number| out(key, ArgumentValue::Unsigned(number)));
    }
}

/// Passes the arguments of an allocation to `out`.
pub fn visit_allocation<'a>(
    part: &MergedPart<'_>,
    allocation: &Allocation,
    out: &mut impl FnMut(&'static str, ArgumentValue<'a>),
) {
    out("Addr", ArgumentValue::Unsigned(allocation.address));
    out("Bytes", ArgumentValue::Signed(allocation.bytes));
    out("Total Allocated", ArgumentValue::Signed(allocation.total_allocated));
    out("Total Reserved", ArgumentValue::Signed(allocation.total_reserved));
    out("Device Type", ArgumentValue::Signed(i64::from(allocation.device_type)));
    let device = i64::from(allocation.device);
    // The host's ordinal is −1 on every rank, so only devices get a unique ordinal.
    let is_host = allocation.device_type == 0;
    out("Device Id", ArgumentValue::Signed(if is_host { device } else { part.device(device) }));
}

fn sequence_number(part: &MergedPart<'_>, sequence: i64) -> i64 {
    match u64::try_from(sequence) {
        Ok(number) => part.id(IdKind::Sequence, number) as i64,
        Err(_) => sequence,
    }
}

/// Passes all arguments of a slice's original text to `out`. Ids are made unique over all parts.
pub fn visit_original<'a>(
    part: &MergedPart<'_>,
    pairs: &'a ArgumentPairs<'_>,
    out: &mut impl FnMut(&'a str, ArgumentValue<'a>),
) {
    for (key, text) in &pairs.0 {
        let renamed = if part.is_one_of_several() { rename(part, key, text.get()) } else { None };
        out(key, renamed.unwrap_or(ArgumentValue::Json(text.get())));
    }
}

/// Makes the value of a key unique over all parts if the key holds an id. Returns `None` for other
/// keys.
fn rename(part: &MergedPart<'_>, key: &str, text: &str) -> Option<ArgumentValue<'static>> {
    let kind = match key {
        "correlation" | "wait_on_cuda_event_record_corr_id" => IdKind::Correlation,
        "External id" | "external id" => IdKind::External,
        "Record function id" => IdKind::RecordFunction,
        "Ev Idx" => IdKind::EventIndex,
        "Sequence number" => IdKind::Sequence,
        "Python id" | "Python parent id" | "Python module id" => IdKind::Python,
        "wait_on_cuda_event_id" => IdKind::DeviceEvent,
        "graph node id" => IdKind::GraphNode,
        "device" => {
            let device = text.trim_matches('"').parse().ok()?;
            return Some(ArgumentValue::Signed(part.device(device)));
        }
        _ => return None,
    };
    let id = text.trim_matches('"').parse().ok()?;
    Some(ArgumentValue::Unsigned(part.id(kind, id)))
}
