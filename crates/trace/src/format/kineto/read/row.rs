//! Appends one parsed event to the columns of a part.

use super::event::{Id, KeptEvent, TextRange, Time, bit};
use super::key::Argument;
use super::number;
use super::part::{Edge, Named, TextPart, ThreadId, TrackName, WorkerTables};
use super::text::{self, Decoded};
use crate::store::{
    Allocation, Collective, Counter, Flow, FlowPhase, Instant, LaunchShape, Loss, PythonFrame,
    Slices, StringId, SyncWait, TrackId,
};

/// The destination of events: the worker's id tables, and the part being filled.
pub struct EventSink<'a> {
    pub tables: &'a mut WorkerTables,
    pub part: &'a mut TextPart,
}

/// A parsed event, the text from which it was read, and its offset in the file.
#[derive(Clone, Copy)]
pub struct EventSource<'a> {
    /// The text to which the event's ranges refer.
    pub text: &'a [u8],
    pub event: &'a KeptEvent,
    /// Offset of the event in the uncompressed file.
    pub offset: u64,
}

impl EventSink<'_> {
    /// Counts a loss at an offset of the file.
    pub fn lose(&mut self, loss: Loss, offset: u64, what: impl FnOnce() -> String) {
        self.part.losses.count(loss, || format!("byte {offset}: {}", what()));
    }

    fn decode(&mut self, content: &[u8], offset: u64) -> String {
        let Decoded { text, faults, invalid } = text::decode(content);
        let shown = |text: &str| text.chars().take(80).collect::<String>();
        if faults > 0 {
            self.lose(Loss::BrokenText, offset, || {
                format!("expected a JSON string, got {:?}", shown(&text))
            });
        }
        if invalid {
            self.lose(Loss::InvalidUtf8, offset, || {
                format!("expected UTF-8, got {:?}", shown(&text))
            });
        }
        text
    }

    #[inline(always)]
    fn text(&mut self, source: EventSource<'_>, content: TextRange) -> u32 {
        let bytes = content.slice(source.text);
        if content.plain || bytes.is_empty() {
            return self.tables.text(bytes, &mut self.part.used);
        }
        let decoded = self.decode(bytes, source.offset);
        self.tables.text(decoded.as_bytes(), &mut self.part.used)
    }

    #[inline(always)]
    fn category(&mut self, source: EventSource<'_>) -> u16 {
        let content = source.event.category;
        let bytes = content.slice(source.text);
        if content.plain || bytes.is_empty() {
            return self.tables.category(bytes, &mut self.part.used);
        }
        let decoded = self.decode(bytes, source.offset);
        self.tables.category(decoded.as_bytes(), &mut self.part.used)
    }

    #[inline(always)]
    fn track(&mut self, source: EventSource<'_>) -> u32 {
        if let (Id::Number(pid), Id::Number(tid)) = (source.event.process, source.event.thread) {
            return self.tables.numbered_track(pid, tid, &mut self.part.used);
        }
        let pid = self.key(source, source.event.process);
        let tid = self.key(source, source.event.thread);
        self.tables.track(pid, tid, &mut self.part.used)
    }

    fn key(&mut self, source: EventSource<'_>, id: Id) -> ThreadId {
        match id {
            Id::Missing => ThreadId::Text("".into()),
            Id::Number(number) => ThreadId::Number(number),
            Id::Text(content) | Id::Other(content) => {
                ThreadId::Text(self.decode(content.slice(source.text), source.offset).into())
            }
        }
    }
}

/// Appends an event to the part, according to its phase.
#[inline]
pub fn add(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    if source.event.repaired > 0 {
        sink.lose(Loss::BrokenText, source.offset, || {
            "expected an event in valid JSON, got unescaped quotes or a bare word".to_owned()
        });
    }
    let phase = source.event.phase.map_or(&b""[..], |phase| phase.slice(source.text));
    if let [letter @ ..128] = phase {
        sink.part.letters.0[usize::from(*letter)] += 1;
    } else {
        let phase = String::from_utf8_lossy(phase).into_owned();
        *sink.part.phases.entry(phase).or_default() += 1;
    }
    match phase {
        b"X" => complete(sink, source),
        b"s" => flow(sink, source, FlowPhase::Start),
        b"t" => flow(sink, source, FlowPhase::Step),
        b"f" => flow(sink, source, FlowPhase::End),
        b"M" => metadata(sink, source),
        b"i" | b"I" => instant(sink, source),
        b"C" => counter(sink, source),
        b"B" => begin(sink, source),
        b"E" => end(sink, source),
        other => sink.lose(Loss::UnknownPhase, source.offset, || {
            format!("expected a known phase, got {:?}", String::from_utf8_lossy(other))
        }),
    }
}

/// Whether a time or duration is below 2^61 ns (73 years). Ends and differences of times below this
/// limit fit an `i64`.
#[inline(always)]
pub fn is_in_range(nanos: i64) -> bool {
    nanos.unsigned_abs() < 1 << 61
}

/// Returns the time of an event. If the time is missing or out of range, a loss is counted.
#[inline(always)]
fn moment(sink: &mut EventSink<'_>, source: EventSource<'_>, time: Time, key: &str) -> Option<i64> {
    match time {
        Time::Nanos(nanos) if is_in_range(nanos) => Some(nanos),
        Time::Nanos(nanos) => {
            let what = || format!("expected {key} within 2^61 ns of 0, got {nanos} ns");
            sink.lose(Loss::BadNumber, source.offset, what);
            None
        }
        Time::Missing => {
            sink.lose(Loss::NoTime, source.offset, || format!("expected {key}, got none"));
            None
        }
        Time::Bad => {
            let what = || format!("expected {key} in microseconds, got other text");
            sink.lose(Loss::BadNumber, source.offset, what);
            None
        }
    }
}

#[inline]
fn complete(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let Some(start) = moment(sink, source, source.event.time, "ts") else { return };
    let Some(duration) = moment(sink, source, source.event.duration, "dur") else { return };
    if duration < 0 {
        sink.lose(Loss::NegativeDuration, source.offset, || {
            format!("expected a duration of 0 or more, got {duration} ns")
        });
    }
    slice(sink, source, start, duration.max(0));
}

#[inline]
fn slice(
    sink: &mut EventSink<'_>,
    source: EventSource<'_>,
    start: i64,
    duration: i64,
) -> (u32, u32) {
    let category = sink.category(source);
    let name = sink.text(source, source.event.name);
    let track = sink.track(source);
    let event = source.event;
    sink.part.slice_categories.push(category);
    // PyTorch wrote the key `external id` in lower case in 2021.
    let external =
        event.unsigned(Argument::ExternalId).or_else(|| event.unsigned(Argument::ExternalIdOf2021));
    let slices = &mut sink.part.slices;
    let row = slices.len() as u32;
    slices.start.push(start);
    slices.duration.push(duration);
    slices.name.push(StringId(name));
    slices.track.push(TrackId(track));
    slices.offset.push(source.offset);
    slices.push_ids(event.unsigned(Argument::Correlation), external);
    slices.push_place(small(event, Argument::Stream), small(event, Argument::Device));
    let mut bad = event.bad_integers(u64::MAX)
        + oversized(event, Argument::Stream)
        + oversized(event, Argument::Device);
    if event.has_any(SPARSE) {
        arguments(sink, source, row);
        bad += too_large(event);
    }
    if bad > 0 {
        count_bad(sink, source, bad);
    }
    (row, track)
}

fn count_bad(sink: &mut EventSink<'_>, source: EventSource<'_>, bad: u32) {
    sink.lose(Loss::BadNumber, source.offset, || {
        format!("expected integer arguments, got {bad} that are not integers or too large")
    });
}

fn small(event: &KeptEvent, argument: Argument) -> Option<i32> {
    i32::try_from(event.signed(argument)?).ok()
}

fn oversized(event: &KeptEvent, argument: Argument) -> u32 {
    // CUPTI writes "no stream" and "no device" as −1 in a `u32`, so that value is not counted.
    let odd = |value: i64| i32::try_from(value).is_err() && value != i64::from(u32::MAX);
    u32::from(event.signed(argument).is_some_and(odd))
}

/// Counts the arguments that should fit a `u32` but do not.
fn too_large(event: &KeptEvent) -> u32 {
    let odd = |argument| event.unsigned(argument).is_some_and(|value| value > u64::from(u32::MAX));
    let arguments = [Argument::Registers, Argument::SharedMemory, Argument::GroupSize];
    arguments.into_iter().map(|argument| u32::from(odd(argument))).sum()
}

fn short(event: &KeptEvent, argument: Argument) -> Option<u32> {
    u32::try_from(event.unsigned(argument)?).ok()
}

/// Mask of the arguments whose columns are sparse.
const SPARSE: u64 = !(bit(Argument::Correlation)
    | bit(Argument::ExternalId)
    | bit(Argument::ExternalIdOf2021)
    | bit(Argument::Stream)
    | bit(Argument::Device));

fn arguments(sink: &mut EventSink<'_>, source: EventSource<'_>, row: u32) {
    let event = source.event;
    let slices = &mut sink.part.slices;
    operator_arguments(event, slices, row);
    device_arguments(source, slices, row);
    if let Some(id) = event.unsigned(Argument::PythonId) {
        let parent = event.unsigned(Argument::PythonParent);
        let module = event.unsigned(Argument::PythonModule);
        slices.python.push(row, PythonFrame { id, parent, module });
    }
    if event.has(Argument::SyncKind) {
        let wait = SyncWait {
            stream: event.signed(Argument::SyncStream),
            record_correlation: event.unsigned(Argument::SyncCorrelation),
            event: event.unsigned(Argument::SyncEvent),
        };
        slices.sync.push(row, wait);
    }
    if event.has(Argument::CallStack) {
        let content = event.content(Argument::CallStack);
        // Since 2022, most files have this key without a value.
        if content.start < content.end {
            let text = StringId(sink.text(source, content));
            sink.part.slices.call_stack.push(row, text);
        }
    }
    if event.has(Argument::CollectiveName) {
        let collective = collective(sink, source);
        sink.part.slices.collective.push(row, collective);
    }
}

fn operator_arguments(event: &KeptEvent, slices: &mut Slices, row: u32) {
    if let Some(sequence) = event.signed(Argument::Sequence) {
        slices.sequence.push(row, sequence);
    }
    if let Some(thread) = event.unsigned(Argument::ForwardThread) {
        slices.forward_thread.push(row, thread);
    }
    if let Some(function) = event.unsigned(Argument::RecordFunction) {
        slices.record_function.push(row, function);
    }
    if let Some(index) = event.unsigned(Argument::EventIndex) {
        slices.event_index.push(row, index);
    }
    if event.has(Argument::Finished) && event.unfinished {
        slices.unfinished.push(row, ());
    }
}

fn device_arguments(source: EventSource<'_>, slices: &mut Slices, row: u32) {
    let event = source.event;
    if let Some(bytes) = event.unsigned(Argument::Bytes) {
        slices.bytes.push(row, bytes);
    }
    if let Some(bandwidth) = float(source, Argument::Bandwidth) {
        slices.bandwidth.push(row, bandwidth);
    }
    if let Some(node) = event.unsigned(Argument::GraphNode) {
        slices.graph_node.push(row, node);
    }
    if event.has(Argument::Grid) {
        let real = |argument| float(source, argument).unwrap_or(f64::NAN) as f32;
        let count = |argument| short(event, argument).unwrap_or_default();
        let shape = LaunchShape {
            grid: event.triple(Argument::Grid),
            block: event.triple(Argument::Block),
            registers: count(Argument::Registers),
            shared_memory: count(Argument::SharedMemory),
            blocks_per_sm: real(Argument::BlocksPerSm),
            warps_per_sm: real(Argument::WarpsPerSm),
            occupancy_pct: real(Argument::Occupancy),
        };
        slices.launch_shape.push(row, shape);
    }
}

fn float(source: EventSource<'_>, argument: Argument) -> Option<f64> {
    let content = source.event.content(argument);
    match number::short_float(source.text, content.start) {
        Some((value, end)) if end == content.end => Some(value),
        _ => str::from_utf8(content.slice(source.text)).ok().and_then(number::float),
    }
}

fn collective(sink: &mut EventSink<'_>, source: EventSource<'_>) -> Collective {
    let event = source.event;
    let mut text = |argument| StringId(sink.text(source, event.content(argument)));
    Collective {
        name: text(Argument::CollectiveName),
        dtype: text(Argument::DataType),
        elements_in: event.unsigned(Argument::ElementsIn),
        elements_out: event.unsigned(Argument::ElementsOut),
        splits_in: text(Argument::SplitsIn),
        splits_out: text(Argument::SplitsOut),
        group_size: short(event, Argument::GroupSize),
        group: text(Argument::Group),
        group_description: text(Argument::GroupDescription),
        group_ranks: text(Argument::GroupRanks),
        sequence: event.unsigned(Argument::CollectiveSequence),
    }
}

#[inline]
fn flow(sink: &mut EventSink<'_>, source: EventSource<'_>, phase: FlowPhase) {
    let Some(time) = moment(sink, source, source.event.time, "ts") else { return };
    let Some(id) = flow_id(source) else {
        sink.lose(Loss::BadNumber, source.offset, || "expected the id of a flow, got none".into());
        return;
    };
    let category = sink.category(source);
    let track = TrackId(sink.track(source));
    sink.part.flow_categories.push(category);
    sink.part.flows.push(Flow { phase, category: 0, id, track, time });
}

/// Converts the id of a flow to a number. A text becomes the hexadecimal or decimal number it
/// spells, or else its hash. A hash suffices, because ids are only compared for equality.
#[inline]
fn flow_id(source: EventSource<'_>) -> Option<u64> {
    match source.event.id {
        Id::Number(number) => Some(number as u64),
        Id::Missing => None,
        Id::Text(content) | Id::Other(content) => {
            let bytes = content.slice(source.text);
            let text = str::from_utf8(bytes).unwrap_or_default();
            let number = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            };
            Some(number.unwrap_or_else(|| hash(bytes)))
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn instant(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let event = source.event;
    let Some(time) = moment(sink, source, event.time, "ts") else { return };
    if event.name.slice(source.text) == b"[memory]" {
        allocation(sink, source, time);
        return;
    }
    let track = TrackId(sink.track(source));
    let category = sink.category(source);
    let name = StringId(sink.text(source, event.name));
    sink.part.instant_categories.push(category);
    sink.part.instants.push(Instant { name, category: 0, track, time });
}

fn allocation(sink: &mut EventSink<'_>, source: EventSource<'_>, time: i64) {
    let event = source.event;
    let track = TrackId(sink.track(source));
    let number = |argument| event.signed(argument).unwrap_or_default();
    // "No device" may be written as −1 in a `u32`.
    let none = event.signed(Argument::DeviceId) == Some(i64::from(u32::MAX));
    let device = if none { -1 } else { small(event, Argument::DeviceId).unwrap_or_default() };
    sink.part.allocations.push(Allocation {
        time,
        address: event.unsigned(Argument::Address).unwrap_or_default(),
        bytes: number(Argument::AllocationBytes),
        total_allocated: number(Argument::TotalAllocated),
        total_reserved: number(Argument::TotalReserved),
        device_type: small(event, Argument::DeviceType).unwrap_or_default(),
        device,
        track,
    });
    let bad = oversized(event, Argument::DeviceType) + oversized(event, Argument::DeviceId);
    if bad > 0 {
        count_bad(sink, source, bad);
    }
}

/// Appends a counter. Counters are rare and their keys are data, so a simple reader reads their
/// arguments again.
fn counter(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let Some(time) = moment(sink, source, source.event.time, "ts") else { return };
    let track = TrackId(sink.track(source));
    let name = StringId(sink.text(source, source.event.name));
    if source.event.arguments == 0 {
        return;
    }
    let mut at = source.event.arguments;
    while let Some((key, value, end)) = super::member::next(source.text, at) {
        at = end;
        let plain = super::scan::is_plain(key.slice(source.text));
        let series = StringId(sink.text(source, TextRange { plain, ..key }));
        let text = str::from_utf8(value).unwrap_or_default().trim_matches('"');
        let value = number::float(text).unwrap_or(f64::NAN);
        sink.part.counters.push(Counter { name, series, track, time, value });
    }
}

fn metadata(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let event = source.event;
    let track = sink.track(source);
    let (what, argument) = match event.name.slice(source.text) {
        b"thread_name" => (Named::Thread, Argument::Name),
        b"process_name" => (Named::Process, Argument::Name),
        b"process_labels" => (Named::ProcessLabel, Argument::Labels),
        _ => return,
    };
    let content = event.content(argument).slice(source.text);
    let text = sink.decode(content, source.offset).into();
    sink.part.labels.push(TrackName { what, track, text });
}

fn begin(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let Some(time) = moment(sink, source, source.event.time, "ts") else { return };
    let (row, track) = slice(sink, source, time, 0);
    sink.part.edges.push(Edge { row: Some(row), track, time, offset: source.offset });
}

fn end(sink: &mut EventSink<'_>, source: EventSource<'_>) {
    let Some(time) = moment(sink, source, source.event.time, "ts") else { return };
    let track = sink.track(source);
    sink.part.edges.push(Edge { row: None, track, time, offset: source.offset });
}
