//! Stores the arguments of events in the columns of a trace. The keys of arguments are those of
//! Kineto.

use super::annotation::AnnotationValue;
use crate::format::kineto::read::key::{ARGUMENTS, Argument, KeyStep, argument_step};
use crate::store::{Collective, LaunchShape, PythonFrame, Slices, StringId, Strings, SyncWait};

/// Returns the argument for a key, or `None` if no column stores it.
pub fn find_argument(key: &str) -> Option<Argument> {
    match argument_step(key.as_bytes()) {
        KeyStep::Keep(argument) => Some(argument),
        _ => None,
    }
}

/// The arguments of one event, indexed by [`Argument`].
#[derive(Clone, Debug)]
pub struct PacketArguments<'a>([AnnotationValue<'a>; ARGUMENTS]);

impl<'a> PacketArguments<'a> {
    /// Creates a set without any arguments.
    pub fn new() -> Self {
        Self([AnnotationValue::Nothing; ARGUMENTS])
    }

    /// Sets the value of an argument.
    pub fn set(&mut self, argument: Argument, value: AnnotationValue<'a>) {
        self.0[argument as usize] = value;
    }

    fn get(&self, argument: Argument) -> AnnotationValue<'a> {
        self.0[argument as usize]
    }

    fn has(&self, argument: Argument) -> bool {
        self.get(argument) != AnnotationValue::Nothing
    }

    /// Returns an argument that is a non-negative integer, which may be written as a text.
    pub fn unsigned(&self, argument: Argument) -> Option<u64> {
        match self.get(argument) {
            AnnotationValue::Unsigned(value) => Some(value),
            AnnotationValue::Signed(value) => u64::try_from(value).ok(),
            AnnotationValue::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Returns an argument that is an integer, which may be written as a text.
    pub fn signed(&self, argument: Argument) -> Option<i64> {
        match self.get(argument) {
            AnnotationValue::Unsigned(value) => i64::try_from(value).ok(),
            AnnotationValue::Signed(value) => Some(value),
            AnnotationValue::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Returns an argument that is an integer of at most 32 bits.
    pub fn small(&self, argument: Argument) -> Option<i32> {
        i32::try_from(self.signed(argument)?).ok()
    }

    fn float(&self, argument: Argument) -> Option<f64> {
        match self.get(argument) {
            AnnotationValue::Unsigned(value) => Some(value as f64),
            AnnotationValue::Signed(value) => Some(value as f64),
            AnnotationValue::Double(value) => Some(value),
            AnnotationValue::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    fn triple(&self, argument: Argument) -> [u32; 3] {
        match self.get(argument) {
            AnnotationValue::Three(values) => values,
            AnnotationValue::Json(text) | AnnotationValue::Text(text) => {
                serde_json::from_str(text).unwrap_or_default()
            }
            _ => [0; 3],
        }
    }

    fn text(&self, argument: Argument) -> &'a str {
        match self.get(argument) {
            AnnotationValue::Text(text) | AnnotationValue::Json(text) => text,
            _ => "",
        }
    }
}

/// Appends the values of sparse columns for the last row.
pub fn push(slices: &mut Slices, strings: &mut Strings, found: &PacketArguments<'_>) {
    let row = slices.len() as u32 - 1;
    if let Some(sequence) = found.signed(Argument::Sequence) {
        slices.sequence.push(row, sequence);
    }
    if let Some(thread) = found.unsigned(Argument::ForwardThread) {
        slices.forward_thread.push(row, thread);
    }
    if let Some(function) = found.unsigned(Argument::RecordFunction) {
        slices.record_function.push(row, function);
    }
    if let Some(index) = found.unsigned(Argument::EventIndex) {
        slices.event_index.push(row, index);
    }
    if found.get(Argument::Finished) == AnnotationValue::Bool(false) {
        slices.unfinished.push(row, ());
    }
    if let Some(id) = found.unsigned(Argument::PythonId) {
        let parent = found.unsigned(Argument::PythonParent);
        let module = found.unsigned(Argument::PythonModule);
        slices.python.push(row, PythonFrame { id, parent, module });
    }
    let stack = found.text(Argument::CallStack);
    if !stack.is_empty() {
        slices.call_stack.push(row, strings.intern(stack));
    }
    if found.has(Argument::CollectiveName) {
        slices.collective.push(row, collective(found, strings));
    }
    push_device(slices, row, found);
}

fn push_device(slices: &mut Slices, row: u32, found: &PacketArguments<'_>) {
    if let Some(bytes) = found.unsigned(Argument::Bytes) {
        slices.bytes.push(row, bytes);
    }
    if let Some(bandwidth) = found.float(Argument::Bandwidth) {
        slices.bandwidth.push(row, bandwidth);
    }
    if let Some(node) = found.unsigned(Argument::GraphNode) {
        slices.graph_node.push(row, node);
    }
    if found.has(Argument::SyncKind) {
        let wait = SyncWait {
            stream: found.signed(Argument::SyncStream),
            record_correlation: found.unsigned(Argument::SyncCorrelation),
            event: found.unsigned(Argument::SyncEvent),
        };
        slices.sync.push(row, wait);
    }
    if found.has(Argument::Grid) {
        let real = |argument| found.float(argument).unwrap_or(f64::NAN) as f32;
        let count = |argument| short(found, argument).unwrap_or_default();
        let shape = LaunchShape {
            grid: found.triple(Argument::Grid),
            block: found.triple(Argument::Block),
            registers: count(Argument::Registers),
            shared_memory: count(Argument::SharedMemory),
            blocks_per_sm: real(Argument::BlocksPerSm),
            warps_per_sm: real(Argument::WarpsPerSm),
            occupancy_pct: real(Argument::Occupancy),
        };
        slices.launch_shape.push(row, shape);
    }
}

fn short(found: &PacketArguments<'_>, argument: Argument) -> Option<u32> {
    u32::try_from(found.unsigned(argument)?).ok()
}

fn collective(found: &PacketArguments<'_>, strings: &mut Strings) -> Collective {
    let mut text = |argument| match found.text(argument) {
        "" => StringId::default(),
        text => strings.intern(text),
    };
    Collective {
        name: text(Argument::CollectiveName),
        dtype: text(Argument::DataType),
        elements_in: found.unsigned(Argument::ElementsIn),
        elements_out: found.unsigned(Argument::ElementsOut),
        splits_in: text(Argument::SplitsIn),
        splits_out: text(Argument::SplitsOut),
        group_size: short(found, Argument::GroupSize),
        group: text(Argument::Group),
        group_description: text(Argument::GroupDescription),
        group_ranks: text(Argument::GroupRanks),
        sequence: found.unsigned(Argument::CollectiveSequence),
    }
}
