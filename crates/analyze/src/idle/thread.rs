//! What a thread did in a stretch of time: at each moment the innermost row that ran.

use trace::store::{StringId, Trace, TrackId};

use crate::interval::Interval;
use crate::tree::{self, Tree};

/// What occurs in the names of rows that fetch the next batch.
const INPUT: [&str; 5] = ["DataLoader", "DataPipe", "dataloader.py", "load_batch", "copy_batch"];
const STEP: &str = "ProfilerStep#";

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    Sync,
    Input,
    Call,
    Work,
    Untraced,
}

/// The host's threads.
pub(super) struct Host<'a> {
    trace: &'a Trace,
    tree: &'a Tree,
    python: Tree,
    /// Per name.
    traits: Vec<Traits>,
}

#[derive(Clone, Copy, Default)]
struct Traits {
    is_input: bool,
    is_step: bool,
    is_sync: bool,
}

/// A row that has begun and not ended.
#[derive(Clone, Copy)]
struct Open {
    end: i64,
    activity: Activity,
    /// The outermost row around that fetches the next batch.
    input: Option<StringId>,
    /// The innermost operator, frame of Python or range of the user; of input its outermost row.
    owner: Option<StringId>,
}

impl<'a> Host<'a> {
    pub(super) fn new(trace: &'a Trace, tree: &'a Tree) -> Self {
        let traits = |name: &str| Traits {
            is_input: INPUT.iter().any(|part| name.contains(part)),
            is_step: name.starts_with(STEP),
            is_sync: name.contains("Synchronize"),
        };
        let traits = trace.strings.iter().map(traits).collect();
        let python =
            if trace.slices.python.is_empty() { Tree::default() } else { tree::of_python(trace) };
        Self { trace, tree, python, traits }
    }

    /// The innermost operator or range of the user around a row; the row itself if there is none.
    pub(super) fn owner(&self, row: u32) -> Option<StringId> {
        self.open(self.tree, row).last().and_then(|open| open.owner)
    }

    /// Cuts `span` into stretches of one activity and one owner, in order.
    pub(super) fn each(
        &self,
        track: TrackId,
        span: Interval,
        mut visit: impl FnMut(Interval, Activity, Option<StringId>),
    ) {
        self.walk(self.tree, track, span, |piece, top| {
            let activity = top.map_or(Activity::Untraced, |top| top.activity);
            let owner = top.and_then(|top| top.owner);
            if activity != Activity::Untraced {
                return visit(piece, activity, owner);
            }
            self.walk(&self.python, track, piece, |piece, frame| match frame {
                Some(frame) => visit(piece, frame.activity, frame.owner),
                None => visit(piece, activity, owner),
            });
        });
    }

    fn walk(
        &self,
        tree: &Tree,
        track: TrackId,
        (from, to): Interval,
        mut visit: impl FnMut(Interval, Option<&Open>),
    ) {
        let start = |row: &u32| self.trace.slices.start(*row);
        let rows = tree.thread(track).map_or(&[][..], |thread| tree.rows_of(thread));
        let mut rows = rows[rows.partition_point(|row| start(row) <= from)..].iter();
        let innermost = tree.deepest_at(track, from);
        let mut stack = innermost.map_or_else(Vec::new, |row| self.open(tree, row));
        let mut cursor = from;
        let mut emit = |until: i64, top: Option<&Open>| {
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
            emit(limit, stack.last());
            let Some(row) = next else { return };
            let open = self.opened(tree, *row, stack.last());
            stack.push(open);
        }
    }

    /// A row and those around it, outermost first.
    fn open(&self, tree: &Tree, row: u32) -> Vec<Open> {
        let mut rows: Vec<u32> = tree.ancestors(row).collect();
        rows.reverse();
        rows.push(row);
        let mut stack: Vec<Open> = Vec::new();
        for row in rows {
            let open = self.opened(tree, row, stack.last());
            stack.push(open);
        }
        stack
    }

    fn opened(&self, tree: &Tree, row: u32, around: Option<&Open>) -> Open {
        let name = self.trace.slices.name[row as usize];
        let traits = self.traits[name.0 as usize];
        let is_call = self.trace.kind(row).is_call();
        let inherited = around.and_then(|around| around.owner);
        let input = around.and_then(|around| around.input).or(traits.is_input.then_some(name));
        let own = if is_call || traits.is_step { inherited } else { Some(name) };
        let activity = if is_call && traits.is_sync {
            Activity::Sync
        } else if input.is_some() {
            Activity::Input
        } else if is_call {
            Activity::Call
        } else if tree::is_label(self.trace, row) {
            Activity::Untraced
        } else {
            Activity::Work
        };
        let end = tree.end(row).unwrap_or_else(|| self.trace.slices.end(row));
        let owner = input.or(own).or(is_call.then_some(name));
        Open { end, activity, input, owner }
    }
}
