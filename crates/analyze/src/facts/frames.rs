//! Builds the Python frames of each thread: which line ran when, and from where it was called.
//!
//! Profilers record frames as slices of their own, or until 2022 only the Python stack of each
//! operator (`Call stack`). A line that is known only from such stacks runs from the first to the
//! last of the consecutive operators that it called. The function of the line continues until its
//! next line.

#[cfg(test)]
mod tests;

use trace::store::{EventKind, StackLine, StringId, Trace, TrackId};

use crate::facts::interval::Interval;
use crate::facts::tree::{self, OperatorTree};

const NONE: u32 = u32::MAX;

/// A frame of Python, or a single line of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name such as `train.py(12): step`, or `train.py: step` if the line is unknown.
    pub name: StringId,
    /// Row of the frame in the trace; missing if only the stacks of operators name the frame.
    pub row: Option<u32>,
    /// Index of the calling frame.
    parent: u32,
}

/// A stretch of time in which one frame was the innermost of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStretch {
    /// Start of the stretch, in absolute nanoseconds.
    pub start: i64,
    /// End of the stretch, in absolute nanoseconds.
    pub end: i64,
    pub frame: u32,
}

/// All Python frames of a trace, and which of them was innermost at each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    frames: Vec<Frame>,
    /// Stretches of each track, sorted by start and without overlap.
    stretches: Vec<Vec<FrameStretch>>,
}

/// Builds the frames of a trace from recorded Python rows, or else from the stacks of operators.
///
/// # Cost
/// The cost is `O(n log n)` in the frames, or in the operators with a stack.
pub fn build_frames(trace: &Trace) -> Frames {
    let mut frames = Frames { frames: Vec::new(), stretches: vec![Vec::new(); trace.tracks.len()] };
    if !trace.slices.python.is_empty() {
        recorded(trace, &mut frames);
    } else if !trace.slices.call_stack.is_empty() {
        from_stacks(trace, &mut frames);
    }
    frames
}

impl Frames {
    /// Returns whether the trace has no Python frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns all Python frames of the trace, with callers before their callees.
    pub fn all(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the frame that called a given frame.
    pub fn caller(&self, frame: u32) -> Option<u32> {
        Some(self.frames[frame as usize].parent).filter(|parent| *parent != NONE)
    }

    /// Iterates over a frame and its callers, innermost frame first.
    pub fn stack(&self, frame: u32) -> impl Iterator<Item = Frame> {
        let stack = std::iter::successors(Some(frame), |frame| self.caller(*frame));
        stack.map(|frame| self.frames[frame as usize])
    }

    /// Returns the innermost Python frame of a thread at a given time.
    pub fn at(&self, track: TrackId, time: i64) -> Option<u32> {
        let stretches = self.stretches.get(track.0 as usize)?;
        let at = stretches.partition_point(|one| one.end <= time);
        stretches.get(at).filter(|one| one.start <= time).map(|one| one.frame)
    }

    /// Iterates over the stretches of a thread's innermost frames within a span, by start and
    /// clipped to the span.
    pub fn within(&self, track: TrackId, span: Interval) -> impl Iterator<Item = FrameStretch> {
        let all = self.stretches.get(track.0 as usize).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|one| one.end <= span.0);
        let some = all[first..].iter().take_while(move |one| one.start < span.1);
        some.map(move |one| FrameStretch {
            start: one.start.max(span.0),
            end: one.end.min(span.1),
            ..*one
        })
    }

    /// Returns the times, by thread, in which the innermost frame satisfies a predicate.
    pub fn spans(&self, takes: impl Fn(u32) -> bool) -> impl Iterator<Item = (TrackId, Interval)> {
        let tracks = (0u32..).map(TrackId).zip(&self.stretches);
        let all = tracks.flat_map(|(track, of)| of.iter().map(move |one| (track, one)));
        all.filter(move |(_, one)| takes(one.frame))
            .map(|(track, one)| (track, (one.start, one.end)))
    }

    /// Returns the time within a span in which any frame ran on a thread.
    pub fn length_within(&self, track: TrackId, span: Interval) -> i64 {
        self.within(track, span).map(|one| one.end - one.start).sum()
    }

    fn add(&mut self, frame: Frame) -> u32 {
        self.frames.push(frame);
        self.frames.len() as u32 - 1
    }
}

/// Adds frames that have rows of their own. A frame is innermost only while no inner frame runs.
fn recorded(trace: &Trace, found: &mut Frames) {
    let tree: OperatorTree = tree::build_python_tree(trace);
    for row in &tree.nodes {
        let parent = tree.parent(*row).and_then(|parent| tree.position(parent)).unwrap_or(NONE);
        let name = trace.slices.name[*row as usize];
        found.add(Frame { name, row: Some(*row), parent });
    }
    for thread in &tree.threads {
        let mut painter = Painter::default();
        for (row, frame) in tree.rows_of(thread).iter().zip(thread.first..) {
            let start = trace.slices.start(*row);
            painter.open(start, tree.end(*row).unwrap_or(start), frame);
        }
        found.stretches[thread.track.0 as usize] = painter.finish();
    }
}

/// Builds the stretches of a thread from the starts and ends of its frames.
#[derive(Default)]
struct Painter {
    stretches: Vec<FrameStretch>,
    /// Open frames, each as (end, index).
    open: Vec<(i64, u32)>,
    painted: i64,
}

impl Painter {
    fn open(&mut self, start: i64, end: i64, frame: u32) {
        self.close(start);
        if let Some((_, around)) = self.open.last().copied() {
            self.paint(start, around);
        }
        self.painted = if self.open.is_empty() { start } else { self.painted.max(start) };
        self.open.push((end, frame));
    }

    /// Closes the frames that end by `until`.
    fn close(&mut self, until: i64) {
        while let Some((end, frame)) = self.open.pop_if(|(end, _)| *end <= until) {
            self.paint(end, frame);
        }
    }

    fn paint(&mut self, until: i64, frame: u32) {
        if self.painted < until {
            self.stretches.push(FrameStretch { start: self.painted, end: until, frame });
            self.painted = until;
        }
    }

    fn finish(mut self) -> Vec<FrameStretch> {
        self.close(i64::MAX);
        self.stretches
    }
}

/// Builds frames from the Python stacks of operators. A line that is on the stacks of two
/// consecutive operators ran all the time between the two. Any other line ran from the first to the
/// last operator whose stack contains it. Between two lines of one function, the function itself
/// ran.
fn from_stacks(trace: &Trace, found: &mut Frames) {
    let is_host =
        |row: &u32| matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation);
    let mut by_track: Vec<Vec<u32>> = vec![Vec::new(); trace.tracks.len()];
    for (row, _) in trace.slices.call_stack.iter().filter(|(row, _)| is_host(row)) {
        by_track[trace.slices.track[row as usize].0 as usize].push(row);
    }
    for (track, mut rows) in by_track.into_iter().enumerate() {
        rows.sort_by_key(|row| {
            (trace.slices.start(*row), std::cmp::Reverse(trace.slices.end(*row)))
        });
        found.stretches[track] = lines(trace, &rows, found);
    }
}

/// An open line: its frame index, its text and function, and the end of the last operator whose
/// stack contains it.
struct FrameLine {
    frame: u32,
    of: StackLine,
    until: i64,
}

fn lines(trace: &Trace, rows: &[u32], found: &mut Frames) -> Vec<FrameStretch> {
    let mut stretches: Vec<FrameStretch> = Vec::new();
    // The lines that are open at this operator, outermost first.
    let mut open: Vec<FrameLine> = Vec::new();
    let mut painted = i64::MIN;
    let mut paint = |frame: Option<u32>, until: i64| {
        if let Some(frame) = frame.filter(|_| painted < until) {
            let stretch = FrameStretch { start: painted, end: until, frame };
            let is_same =
                |last: &&mut FrameStretch| (last.frame, last.end) == (stretch.frame, stretch.start);
            match stretches.last_mut().filter(is_same) {
                Some(last) => last.end = until,
                None => stretches.push(stretch),
            }
        }
        painted = painted.max(until);
    };
    let innermost = |open: &[FrameLine]| open.last().map(|line| line.frame);
    for &row in rows {
        let (start, end) = (trace.slices.start(row), trace.slices.end(row));
        let lines = trace.stack(row).iter().rev();
        let common =
            open.iter().zip(lines.clone()).take_while(|(line, new)| line.of == **new).count();
        // The line that was closed last, if another line of the same function may follow it.
        let mut left: Option<StackLine> = None;
        // Lines that are not on this stack ended with their last operator, unless that operator is
        // still open around this one.
        while open.len() > common && open.last().is_some_and(|line| line.until <= start) {
            paint(innermost(&open), open[open.len() - 1].until);
            left = open.pop().filter(|_| open.len() == common).map(|line| line.of);
        }
        // The stacks do not show when a function moved to its next line. A smaller line number
        // means that the function was called again.
        let next = lines.clone().nth(common).filter(|next| {
            let goes_on = |left: StackLine| {
                left.function == next.function
                    && (common == 0 || number(trace, left) < number(trace, **next))
            };
            open.len() == common && left.is_some_and(goes_on)
        });
        let between = next.map(|next| {
            let parent = innermost(&open).unwrap_or(NONE);
            found.add(Frame { name: next.function, row: None, parent })
        });
        paint(between.or(innermost(&open)), start);
        open.truncate(common);
        for of in lines.skip(common) {
            let parent = innermost(&open).unwrap_or(NONE);
            let frame = found.add(Frame { name: of.line, row: None, parent });
            open.push(FrameLine { frame, of: *of, until: end });
        }
        open.iter_mut().for_each(|line| line.until = line.until.max(end));
    }
    while let Some(until) = open.last().map(|line| line.until) {
        paint(innermost(&open), until);
        open.pop();
    }
    stretches
}

/// Parses the line number of a name such as `train.py(12): step`; 0 if it has none.
fn number(trace: &Trace, line: StackLine) -> u32 {
    let text = trace.strings.get(line.line).split_once('(').map_or("", |(_, rest)| rest);
    text.split_once(')').and_then(|(number, _)| number.parse().ok()).unwrap_or_default()
}
