//! Finds the threads that wait for each other in a step. Waits come from the graph of the
//! recording, and from pauses that the graph does not explain.

use trace::store::TrackId;

use super::structure::HandOff;
use super::thread_events::{ThreadEvent, ThreadEventKind};

/// Shortest pause of a thread for which a cause is searched.
const PAUSE_NS: i64 = 20_000;

/// A hand-off between two threads inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadJoin {
    pub of: HandOff,
    /// Start of the waiting thread's first event, if the hand-off precedes it. The other thread
    /// then prepared the start of this thread.
    pub begins: Option<i64>,
}

/// A thread of the step with its events.
pub(super) type EventsOfThread<'a> = (TrackId, &'a [ThreadEvent]);

/// Returns the hand-offs between the threads of a step, sorted by completion. The result includes
/// hand-offs that the graph of the recording misses.
pub(super) fn find_hand_offs(
    threads: &[EventsOfThread<'_>],
    known: Vec<HandOff>,
) -> Vec<ThreadJoin> {
    let events = |track: TrackId| {
        let found = threads.iter().find(|thread| thread.0 == track);
        found.map_or(&[][..], |thread| thread.1)
    };
    let mut all = known.clone();
    for there in &known {
        // Until the working thread hands back, the waiting thread may continue several times with
        // partial results. The graph does not show such hand-offs, because the working thread does
        // not stop for them.
        let back = known
            .iter()
            .find(|back| (back.from, back.to) == (there.to, there.from) && back.done > there.done);
        if let Some(back) = back {
            all.extend(between(events(there.from), events(there.to), *there, *back));
        }
    }
    all.sort_unstable_by_key(|one| (one.done, *one));
    all.dedup();
    let joined = |of: HandOff| {
        let first = events(of.to).first().map(|event| event.start);
        ThreadJoin { of, begins: first.filter(|first| *first >= of.done) }
    };
    all.into_iter().map(joined).collect()
}

/// Finds the pauses of a waiting thread. Each pause ends with the latest operator of the working
/// thread that ended before the waiting thread continued.
fn between<'a>(
    waiting: &'a [ThreadEvent],
    working: &'a [ThreadEvent],
    there: HandOff,
    back: HandOff,
) -> impl Iterator<Item = HandOff> + 'a {
    let pairs = waiting.windows(2).filter(move |pair| {
        let (from, to) = (pair[0].end, pair[1].start);
        from >= there.done && to < back.done && to - from >= PAUSE_NS
    });
    pairs.filter_map(move |pair| {
        let (from, resumed) = (pair[0].end, pair[1].start);
        let until = working.partition_point(|event| event.end <= resumed);
        let mut ended = working[..until].iter().rev();
        let last = ended.find(|event| event.kind == ThreadEventKind::EndOperator)?;
        let (to, from_track) = (there.from, there.to);
        (last.end > from).then_some(HandOff { to, resumed, from: from_track, done: last.end })
    })
}
