//! Finds what a thread did in a stretch of time, by the innermost row that ran at each moment.

use trace::store::{StringId, Trace, TrackId};

use crate::facts::calls;
use crate::facts::frames::Frames;
use crate::facts::interval::Interval;
use crate::facts::tree::{self, OperatorTree};

/// Parts of the names of rows in which a data loader fetches the next batch.
const LOADERS: [&str; 3] = ["DataLoader", "DataPipe", "dataloader.py"];
/// Parts of the names of annotations around calls of a loader, which also copy the batch to the
/// device.
const RANGES: [&str; 2] = ["load_batch", "copy_batch"];

/// Returns a test by name for rows that fetch the next batch. Rows that fetch are those of loaders
/// or, if no loader call was recorded, the annotations around such calls.
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

/// The host threads of a trace, with the input and owner of each row computed in advance.
pub(super) struct HostThreads<'a> {
    trace: &'a Trace,
    tree: &'a OperatorTree,
    /// Context of each row of the tree, with one entry per node of `tree`.
    row_contexts: Vec<RowContext>,
    frames: &'a Frames,
    frame_contexts: Vec<RowContext>,
    traits: Vec<Traits>,
}

/// Properties of a row that follow from its name alone. The properties are computed once per name,
/// because names repeat.
#[derive(Clone, Copy, Default)]
struct Traits {
    is_input: bool,
    is_step: bool,
    is_sync: bool,
}

/// The input loading and the owner to which a row belongs.
#[derive(Clone, Copy, Default)]
struct RowContext {
    /// The outermost row around this one that fetches the next batch.
    input: Option<StringId>,
    /// The innermost operator, Python frame or user annotation around the row. For a row that
    /// fetches a batch, it is the outermost row that fetches.
    owner: Option<StringId>,
}

/// A row that has begun but has not ended yet.
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

    /// Returns the innermost operator or user annotation around a row, or the row itself if there
    /// is none.
    pub(super) fn owner(&self, row: u32) -> Option<StringId> {
        let place = self.tree.position(row);
        let context = place.map(|place| self.row_contexts[place as usize]);
        context.unwrap_or_else(|| context_of_row(self.trace, &self.traits, row, None)).owner
    }

    /// Cuts `span` into consecutive stretches that each have one activity and one owner.
    pub(super) fn each(
        &self,
        track: TrackId,
        span: Interval,
        mut visit: impl FnMut(Interval, Activity, Option<StringId>),
    ) {
        self.walk(track, span, |piece, top| {
            let activity = top.map_or(Activity::Untraced, |top| top.activity);
            let owner = top.and_then(|top| top.owner);
            // Operators and calls are more specific than Python frames, so frames are only
            // consulted where neither ran.
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
        // The open rows that began inside the span. Rows that were already open at its start are
        // found through `before`.
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

/// Returns the contexts of all nodes of a tree. Parents come before their children, so the context
/// of a parent is already known.
fn contexts_of_rows(trace: &Trace, tree: &OperatorTree, traits: &[Traits]) -> Vec<RowContext> {
    let mut contexts: Vec<RowContext> = Vec::with_capacity(tree.nodes.len());
    for row in &tree.nodes {
        let parent = tree.parent(*row).and_then(|parent| tree.position(parent));
        let around = parent.map(|parent| contexts[parent as usize]);
        contexts.push(context_of_row(trace, traits, *row, around));
    }
    contexts
}

/// Returns the contexts of all Python frames. A caller comes before the frames that it called, so
/// its context is already known.
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

/// Returns the context of a row, which follows from its name and the context of its parent.
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
