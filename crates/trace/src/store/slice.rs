//! Stores the slices of a trace, which are its events with a duration, by column.

use super::{
    Collective, LaunchShape, PythonFrame, Sparse, StringId, SyncWait, TrackId, TrackKey, reserve,
};

/// Value of a dense column for a missing correlation, external id or offset.
const NONE: u64 = u64::MAX;
/// Value of a dense column for a missing stream or device.
const NO_PLACE: i32 = i32::MIN;

/// The slices of a trace, by column. All dense columns have [`Slices::len`] entries, and the row of
/// a slice is its index in each of them.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Absolute time in nanoseconds.
    pub start: Vec<i64>,
    /// Duration in nanoseconds, at least 0.
    pub duration: Vec<i64>,
    pub name: Vec<StringId>,
    /// Index of the slice's category in [`Trace::categories`](super::Trace::categories).
    pub category: Vec<u8>,
    /// Index of the slice's track in [`Trace::tracks`](super::Trace::tracks).
    pub track: Vec<TrackId>,
    /// Offset of the event's text in the uncompressed file, or `u64::MAX` for an event that was
    /// never in a file.
    pub offset: Vec<u64>,
    /// Correlation ids, or `NONE` if missing. [`Slices::correlation`] reads this column.
    pub(crate) correlation: Vec<u64>,
    /// External ids, or `NONE` if missing. [`Slices::external_id`] reads this column.
    pub(crate) external_id: Vec<u64>,
    /// Stream numbers, or `NO_PLACE` if missing. [`Slices::stream`] reads this column.
    pub(crate) stream: Vec<i32>,
    /// Device ordinals, or `NO_PLACE` if missing. [`Slices::device`] reads this column.
    pub(crate) device: Vec<i32>,
    /// Number of bytes that a memory copy or memory set moves.
    pub bytes: Sparse<u64>,
    /// Bandwidth of memory copies and memory sets in GB/s, from `memory bandwidth (GB/s)`.
    pub bandwidth: Sparse<f64>,
    pub launch_shape: Sparse<LaunchShape>,
    /// The collective of a communication kernel or of a `record_param_comms` operator.
    pub collective: Sparse<Collective>,
    /// Argument `Sequence number`, which links forward operators to their backward operators.
    pub sequence: Sparse<i64>,
    pub forward_thread: Sparse<u64>,
    /// Argument `Record function id`, which links an event to a node of an execution trace.
    pub record_function: Sparse<u64>,
    pub event_index: Sparse<u64>,
    pub python: Sparse<PythonFrame>,
    /// Argument `Call stack` of operators, which PyTorch wrote until 2022.
    /// [`Trace::stack`](super::Trace::stack) returns the lines of the stack.
    pub call_stack: Sparse<StringId>,
    /// The stream or event for which a `cuda_sync` slice waited.
    pub sync: Sparse<SyncWait>,
    /// Argument `graph node id` of kernels that were replayed from a CUDA graph.
    pub graph_node: Sparse<u64>,
    /// Rows that the end of the recording cut off, which the file marks by `finished: false`.
    pub unfinished: Sparse<()>,
}

/// Process id and thread id of a track in a file.
pub type NumericTrack = (i64, i64);

/// Start and end of a slice in absolute nanoseconds.
pub type TimeSpan = (i64, i64);

/// A slice to be appended to a trace, whose texts are not interned yet.
#[derive(Clone, Debug)]
pub struct NewSlice<'a> {
    /// Name of the category as spelled in files.
    pub category: &'a str,
    pub name: &'a str,
    pub pid: TrackKey,
    pub tid: TrackKey,
    /// Absolute time in nanoseconds.
    pub start: i64,
    /// Duration of the new slice in nanoseconds.
    pub duration: i64,
    /// Correlation id, which links a runtime call to the device work that it launched.
    pub correlation: Option<u64>,
    pub external_id: Option<u64>,
    pub stream: Option<i32>,
    pub device: Option<i32>,
    /// Offset of the event's text in the uncompressed file.
    pub offset: Option<u64>,
}

impl<'a> NewSlice<'a> {
    /// Creates a slice without arguments on the track of a process id and a thread id.
    pub fn new(category: &'a str, name: &'a str, track: NumericTrack, span: TimeSpan) -> Self {
        let (pid, tid) = track;
        let (start, end) = span;
        Self {
            category,
            name,
            pid: TrackKey::Number(pid),
            tid: TrackKey::Number(tid),
            start,
            duration: end - start,
            correlation: None,
            external_id: None,
            stream: None,
            device: None,
            offset: None,
        }
    }
}

impl Slices {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.start.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    /// Returns the start of a row in absolute nanoseconds.
    pub fn start(&self, row: u32) -> i64 {
        self.start[row as usize]
    }

    /// Returns the end of a row in absolute nanoseconds.
    pub fn end(&self, row: u32) -> i64 {
        self.start[row as usize] + self.duration[row as usize]
    }

    /// Returns the correlation id, which a runtime call shares with the device work it launched.
    pub fn correlation(&self, row: u32) -> Option<u64> {
        Some(self.correlation[row as usize]).filter(|id| *id != NONE)
    }

    /// Returns the argument `External id` of a row.
    pub fn external_id(&self, row: u32) -> Option<u64> {
        Some(self.external_id[row as usize]).filter(|id| *id != NONE)
    }

    /// Returns the argument `stream` of a row, which is −1 only if the file states −1.
    pub fn stream(&self, row: u32) -> Option<i32> {
        Some(self.stream[row as usize]).filter(|stream| *stream != NO_PLACE)
    }

    /// Returns the argument `device` of a row.
    pub fn device(&self, row: u32) -> Option<i32> {
        Some(self.device[row as usize]).filter(|device| *device != NO_PLACE)
    }

    pub(crate) fn push(
        &mut self,
        category: u8,
        name: StringId,
        track: TrackId,
        slice: &NewSlice<'_>,
    ) -> u32 {
        let row = self.len() as u32;
        self.start.push(slice.start);
        self.duration.push(slice.duration);
        self.name.push(name);
        self.category.push(category);
        self.track.push(track);
        self.offset.push(slice.offset.unwrap_or(NONE));
        self.correlation.push(slice.correlation.unwrap_or(NONE));
        self.external_id.push(slice.external_id.unwrap_or(NONE));
        self.stream.push(slice.stream.unwrap_or(NO_PLACE));
        self.device.push(slice.device.unwrap_or(NO_PLACE));
        row
    }

    /// Appends the ids of a row. The caller appends the values of the row's other columns.
    #[inline]
    pub(crate) fn push_ids(&mut self, correlation: Option<u64>, external_id: Option<u64>) {
        self.correlation.push(correlation.unwrap_or(NONE));
        self.external_id.push(external_id.unwrap_or(NONE));
    }

    /// Appends the stream and device of a row. The caller appends the values of the row's other
    /// columns.
    #[inline]
    pub(crate) fn push_place(&mut self, stream: Option<i32>, device: Option<i32>) {
        self.stream.push(stream.unwrap_or(NO_PLACE));
        self.device.push(device.unwrap_or(NO_PLACE));
    }

    /// Moves the rows of a later part of the file to the end of the columns.
    pub(crate) fn append(&mut self, later: &mut Self) {
        let first_row = self.len() as u32;
        append(&mut self.start, &mut later.start);
        append(&mut self.duration, &mut later.duration);
        append(&mut self.name, &mut later.name);
        append(&mut self.category, &mut later.category);
        append(&mut self.track, &mut later.track);
        append(&mut self.offset, &mut later.offset);
        append(&mut self.correlation, &mut later.correlation);
        append(&mut self.external_id, &mut later.external_id);
        append(&mut self.stream, &mut later.stream);
        append(&mut self.device, &mut later.device);
        self.bytes.append(&mut later.bytes, first_row);
        self.bandwidth.append(&mut later.bandwidth, first_row);
        self.launch_shape.append(&mut later.launch_shape, first_row);
        self.collective.append(&mut later.collective, first_row);
        self.sequence.append(&mut later.sequence, first_row);
        self.forward_thread.append(&mut later.forward_thread, first_row);
        self.record_function.append(&mut later.record_function, first_row);
        self.event_index.append(&mut later.event_index, first_row);
        self.python.append(&mut later.python, first_row);
        self.call_stack.append(&mut later.call_stack, first_row);
        self.sync.append(&mut later.sync, first_row);
        self.graph_node.append(&mut later.graph_node, first_row);
        self.unfinished.append(&mut later.unfinished, first_row);
    }

    /// Reserves memory for all rows of the trace, of which the columns hold the share `share`.
    pub(crate) fn reserve(&mut self, share: f64) {
        reserve::extrapolate(&mut self.start, share);
        reserve::extrapolate(&mut self.duration, share);
        reserve::extrapolate(&mut self.name, share);
        reserve::extrapolate(&mut self.category, share);
        reserve::extrapolate(&mut self.track, share);
        reserve::extrapolate(&mut self.offset, share);
        reserve::extrapolate(&mut self.correlation, share);
        reserve::extrapolate(&mut self.external_id, share);
        reserve::extrapolate(&mut self.stream, share);
        reserve::extrapolate(&mut self.device, share);
        self.bytes.reserve(share);
        self.bandwidth.reserve(share);
        self.launch_shape.reserve(share);
        self.collective.reserve(share);
        self.sequence.reserve(share);
        self.forward_thread.reserve(share);
        self.record_function.reserve(share);
        self.event_index.reserve(share);
        self.python.reserve(share);
        self.call_stack.reserve(share);
        self.sync.reserve(share);
        self.graph_node.reserve(share);
        self.unfinished.reserve(share);
    }

    /// Reorders the rows: row `n` becomes the row that was at `places[n]`.
    pub(crate) fn reorder(&mut self, places: &[u32]) {
        reorder(&mut self.start, places);
        reorder(&mut self.duration, places);
        reorder(&mut self.name, places);
        reorder(&mut self.category, places);
        reorder(&mut self.track, places);
        reorder(&mut self.offset, places);
        reorder(&mut self.correlation, places);
        reorder(&mut self.external_id, places);
        reorder(&mut self.stream, places);
        reorder(&mut self.device, places);
        let mut rows = vec![0; places.len()];
        // Sparse columns store row numbers, so they need the inverse of `places`: old row to new
        // row.
        places.iter().zip(0..).for_each(|(place, row)| rows[*place as usize] = row);
        self.bytes.renumber(&rows);
        self.bandwidth.renumber(&rows);
        self.launch_shape.renumber(&rows);
        self.collective.renumber(&rows);
        self.sequence.renumber(&rows);
        self.forward_thread.renumber(&rows);
        self.record_function.renumber(&rows);
        self.event_index.renumber(&rows);
        self.python.renumber(&rows);
        self.call_stack.renumber(&rows);
        self.sync.renumber(&rows);
        self.graph_node.renumber(&rows);
        self.unfinished.renumber(&rows);
    }

    /// Removes the given rows, which must be in ascending order.
    pub(crate) fn remove(&mut self, rows: &[u32]) {
        remove(&mut self.start, rows);
        remove(&mut self.duration, rows);
        remove(&mut self.name, rows);
        remove(&mut self.category, rows);
        remove(&mut self.track, rows);
        remove(&mut self.offset, rows);
        remove(&mut self.correlation, rows);
        remove(&mut self.external_id, rows);
        remove(&mut self.stream, rows);
        remove(&mut self.device, rows);
        self.bytes.remove(rows);
        self.bandwidth.remove(rows);
        self.launch_shape.remove(rows);
        self.collective.remove(rows);
        self.sequence.remove(rows);
        self.forward_thread.remove(rows);
        self.record_function.remove(rows);
        self.event_index.remove(rows);
        self.python.remove(rows);
        self.call_stack.remove(rows);
        self.sync.remove(rows);
        self.graph_node.remove(rows);
        self.unfinished.remove(rows);
    }
}

fn reorder<T: Copy>(column: &mut Vec<T>, places: &[u32]) {
    *column = places.iter().map(|place| column[*place as usize]).collect();
}

fn append<T>(column: &mut Vec<T>, later: &mut Vec<T>) {
    // The first part of a file becomes the column without a copy.
    if column.is_empty() {
        std::mem::swap(column, later);
    } else {
        column.append(later);
    }
}

fn remove<T>(column: &mut Vec<T>, rows: &[u32]) {
    let (mut row, mut removed) = (0, rows.iter().peekable());
    column.retain(|_| {
        let gone = removed.next_if_eq(&&row).is_some();
        row += 1;
        !gone
    });
}
