//! Finds what a thread did in a stretch of time: at each moment the innermost row that ran.

use trace::store::{StringId, Trace, TrackId};

use crate::facts::calls;
use crate::facts::frames::Frames;
use crate::facts::interval::Interval;
use crate::facts::tree::{self, OperatorTree};

/// Parts of the names of rows in which a loader fetches the next batch.
const LOADERS: [&str; 3] = ["DataLoader", "DataPipe", "dataloader.py"];
/// Parts of the names of ranges around loader calls, which also copy the batch to the device.
const RANGES: [&str; 2] = ["load_batch", "copy_batch"];

/// Returns a test by name for rows that fetch the next batch: rows of loaders, or, if no loader
/// call was recorded, ranges around them.
pub(crate) fn is_input(trace: &Trace) -> impl Fn(&str) -> bool + use<> {
    let has_loader = trace.strings.iter().any(|name| name.contains("(DataLoader)"));
    move |name| {
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        has(&LOADERS) || (!has_loader && has(&RANGES))
    }
}
const STEP: &str = "ProfilerStep#";

/// Activity of a host thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    Sync,
    Input,
    Call,
    Work,
    Untraced,
}

/// The host threads of a trace, with the input and owner of each row precomputed.
pub(super) struct HostThreads<'a> {
    trace: &'a Trace,
    tree: &'a OperatorTree,
    /// One entry per node of `tree`.
    row_contexts: Vec<RowContext>,
    frames: &'a Frames,
    frame_contexts: Vec<RowContext>,
    traits: Vec<Traits>,
}

/// Properties that follow from a name alone. They are computed once per name, because names repeat.
#[derive(Clone, Copy, Default)]
struct Traits {
    is_input: bool,
    is_step: bool,
    is_sync: bool,
}

/// The input loading and the owner that a row belongs to.
#[derive(Clone, Copy, Default)]
struct RowContext {
    /// The outermost row around it that fetches the next batch.
    input: Option<StringId>,
    /// The innermost operator, Python frame or user range. For input, its outermost row.
    owner: Option<StringId>,
}

/// A row that has begun and not ended.
#[derive(Clone, Copy)]
struct OpenRow {
    end: i64,
    activity: Activity,
    owner: Option<StringId>,
}

impl<'a> HostThreads<'a> {
    pub(super) fn new(trace: &'a Trace, tree: &'a OperatorTree, frames: &'a Frames) -> Self {
        let is_input = is_input(trace);
        let traits = |name: &str| Traits {
            is_input: is_input(name),
            is_step: name.starts_with(STEP),
            is_sync: calls::is_synchronization(name),
        };
        let traits: Vec<Traits> = trace.strings.iter().map(traits).collect();
        let row_contexts = contexts_of_rows(trace, tree, &traits);
        let frame_contexts = contexts_of_frames(frames, &traits);
        Self { trace, tree, row_contexts, frames, frame_contexts, traits }
    }

    /// Returns the innermost operator or user range around a row, or the row itself if there is
    /// none.
    pub(super) fn owner(&self, row: u32) -> Option<StringId> {
        let place = self.tree.position(row);
        let context = place.map(|place| self.row_contexts[place as usize]);
        context.unwrap_or_else(|| context_of_row(self.trace, &self.traits, row, None)).owner
    }

    /// Cuts `span` into stretches of one activity and one owner, in order.
    pub(super) fn each(
        &self,
        track: TrackId,
        span: Interval,
        mut visit: impl FnMut(Interval, Activity, Option<StringId>),
    ) {
        self.walk(track, span, |piece, top| {
            let activity = top.map_or(Activity::Untraced, |top| top.activity);
            let owner = top.and_then(|top| top.owner);
            if activity != Activity::Untraced {
                return visit(piece, activity, owner);
            }
            let mut from = piece.0;
            for inner in self.frames.within(track, piece) {
                if from < inner.start {
                    visit((from, inner.start), activity, owner);
                }
                let context = self.frame_contexts[inner.frame as usize];
                let activity =
                    if context.input.is_some() { Activity::Input } else { Activity::Work };
                visit((inner.start, inner.end), activity, context.owner);
                from = inner.end;
            }
            if from < piece.1 {
                visit((from, piece.1), activity, owner);
            }
        });
    }

    fn walk(
        &self,
        track: TrackId,
        (from, to): Interval,
        mut visit: impl FnMut(Interval, Option<&OpenRow>),
    ) {
        if from >= to {
            return;
        }
        let tree = self.tree;
        let start = |row: &u32| self.trace.slices.start(*row);
        let rows = tree.thread(track).map_or(&[][..], |thread| tree.rows_of(thread));
        let mut rows = rows[rows.partition_point(|row| start(row) <= from)..].iter();
        // The open rows that began in the span. Rows that were open before it are found through
        // `before`.
        let mut stack: Vec<OpenRow> = Vec::new();
        let mut before = tree.deepest_at(track, from);
        let mut cursor = from;
        let mut emit = |until: i64, top: Option<&OpenRow>| {
            if cursor < until {
                visit((cursor, until), top);
                cursor = until;
            }
        };
        loop {
            let next = rows.next().filter(|row| start(row) < to);
            let limit = next.map_or(to, start);
            while let Some(top) = stack.pop_if(|top| top.end <= limit) {
                emit(top.end, Some(&top));
            }
            let mut top = stack.last().copied();
            while let Some(row) = before.filter(|_| stack.is_empty()) {
                let open = self.open(row);
                if open.end > limit {
                    top = Some(open);
                    break;
                }
                emit(open.end, Some(&open));
                before = tree.parent(row);
            }
            emit(limit, top.as_ref());
            let Some(row) = next else { return };
            stack.push(self.open(*row));
        }
    }

    fn open(&self, row: u32) -> OpenRow {
        let place = self.tree.position(row);
        let context =
            place.map_or_else(RowContext::default, |place| self.row_contexts[place as usize]);
        let traits = self.traits[self.trace.slices.name[row as usize].0 as usize];
        let is_call = self.trace.kind(row).is_call();
        let activity = if is_call && traits.is_sync {
            Activity::Sync
        } else if context.input.is_some() {
            Activity::Input
        } else if is_call {
            Activity::Call
        } else if tree::is_label(self.trace, row) {
            Activity::Untraced
        } else {
            Activity::Work
        };
        let end = self.tree.end(row).unwrap_or_else(|| self.trace.slices.end(row));
        OpenRow { end, activity, owner: context.owner }
    }
}

/// Contexts of all nodes of a tree. Parents come before their children.
fn contexts_of_rows(trace: &Trace, tree: &OperatorTree, traits: &[Traits]) -> Vec<RowContext> {
    let mut contexts: Vec<RowContext> = Vec::with_capacity(tree.nodes.len());
    for row in &tree.nodes {
        let parent = tree.parent(*row).and_then(|parent| tree.position(parent));
        let around = parent.map(|parent| contexts[parent as usize]);
        contexts.push(context_of_row(trace, traits, *row, around));
    }
    contexts
}

/// Contexts of all frames. A caller comes before the frames it called.
fn contexts_of_frames(frames: &Frames, traits: &[Traits]) -> Vec<RowContext> {
    let mut contexts: Vec<RowContext> = Vec::with_capacity(frames.all().len());
    for (frame, at) in frames.all().iter().zip(0..) {
        let around = frames.caller(at).map(|caller| contexts[caller as usize]).unwrap_or_default();
        let is_input = traits[frame.name.0 as usize].is_input;
        let input = around.input.or(is_input.then_some(frame.name));
        contexts.push(RowContext { input, owner: input.or(Some(frame.name)) });
    }
    contexts
}

/// Returns the context of a row, from its name and its parent's context.
fn context_of_row(
    trace: &Trace,
    traits: &[Traits],
    row: u32,
    around: Option<RowContext>,
) -> RowContext {
    let name = trace.slices.name[row as usize];
    let traits = traits[name.0 as usize];
    let is_call = trace.kind(row).is_call();
    let RowContext { input, owner } = around.unwrap_or_default();
    let input = input.or(traits.is_input.then_some(name));
    let own = if is_call || traits.is_step { owner } else { Some(name) };
    RowContext { input, owner: input.or(own).or(is_call.then_some(name)) }
}
