//! Lists the begin and end events of a thread in the order of time.

use analyze::calls;
use analyze::tree::{self, TreeThread};
use analyze::window;
use trace::store::EventKind;

use super::reader::RankReader;

/// An event on a thread: the begin or end of a row, or a whole runtime call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadEvent {
    pub kind: ThreadEventKind,
    pub row: u32,
    /// Absolute nanoseconds. Start and end differ only for calls.
    pub start: i64,
    pub end: i64,
}

/// The kind of a [`ThreadEvent`], which decides the action written for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadEventKind {
    BeginLabel,
    EndLabel,
    BeginOperator,
    EndOperator,
    Call,
}

/// A row that has begun and not yet ended.
struct OpenRow {
    row: u32,
    /// Index of the first tree node after the row's subtree.
    behind: u32,
    end: i64,
    is_label: bool,
}

/// Lists the events of a thread inside the step by time. Nested operators are skipped, but the
/// calls inside them are listed.
pub(super) fn list_events(read: &RankReader<'_>, thread: &TreeThread) -> Vec<ThreadEvent> {
    let trace = read.scope.trace;
    let mut events = Vec::new();
    let mut open: Vec<OpenRow> = Vec::new();
    let mut node = thread.first;
    while node < thread.behind {
        let row = read.tree.nodes[node as usize];
        while let Some(top) = open.pop_if(|top| top.behind <= node) {
            events.push(close(read, &top));
        }
        let start = trace.slices.start(row);
        if start >= read.span.end {
            break;
        }
        let is_inside = start >= read.span.start;
        let in_operator = open.last().is_some_and(|top| !top.is_label);
        let range = read.tree.range(row);
        if trace.kind(row).is_call() {
            if is_inside && counts(read, row) {
                let end = read.tree.end(row).unwrap_or(start).min(read.span.end);
                events.push(ThreadEvent { kind: ThreadEventKind::Call, row, start, end });
            }
            // Rows inside a runtime call are part of the call, so they are skipped.
            node = range.end;
            continue;
        }
        if is_inside && !in_operator {
            let is_label = tree::is_label(trace, row);
            let kind =
                if is_label { ThreadEventKind::BeginLabel } else { ThreadEventKind::BeginOperator };
            events.push(ThreadEvent { kind, row, start, end: start });
            let end = read.tree.end(row).unwrap_or(start);
            open.push(OpenRow { row, behind: range.end, end, is_label });
        }
        node += 1;
    }
    while let Some(top) = open.pop() {
        events.push(close(read, &top));
    }
    events
}

fn close(read: &RankReader<'_>, top: &OpenRow) -> ThreadEvent {
    let kind = if top.is_label { ThreadEventKind::EndLabel } else { ThreadEventKind::EndOperator };
    let end = top.end.min(read.span.end);
    ThreadEvent { kind, row: top.row, start: end, end }
}

/// Returns whether a call is an event of its own, because it launches work or may wait.
fn counts(read: &RankReader<'_>, row: u32) -> bool {
    let trace = read.scope.trace;
    let name = trace.name(row);
    let does = calls::classify_call(name);
    let is_plain = matches!(
        does,
        calls::CallKind::Plain | calls::CallKind::EventRecord | calls::CallKind::StreamWait
    );
    !read.scope.links().work(row).is_empty()
        || !is_plain
        || (trace.kind(row) == EventKind::Runtime && window::is_launch(name))
}
