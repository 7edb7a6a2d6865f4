//! Collectives in which ranks meet: no transfer starts before the last rank arrives.

use std::cell::RefCell;
use std::collections::HashMap;

use super::draft::{Draft, DraftNode, NodeOrder};
use super::label::{NodeOrigin, PathCategory};
use crate::facts::collectives::{Collectives, Participant};
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::facts::skew;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind};

/// The collectives in which ranks meet.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// (place of the rank among the scopes, row) → meeting.
    meeting: HashMap<(u32, u32), usize>,
    /// Time at which all ranks had arrived, for each meeting.
    time: Vec<i64>,
    /// For each meeting, the arrival and the transfer of each rank, as their nodes are made.
    nodes: RefCell<Vec<Vec<(NodeId, NodeId)>>>,
}

/// Selects the matched collectives of several ranks that lie in all their windows. Those in which a
/// rank's part ended before the last one's began are left out: the clocks disagree, or nobody had
/// to wait.
pub(super) fn meetings(facts: &[RankFacts<'_>], collectives: &Collectives) -> Meetings {
    let mut meetings = Meetings::default();
    let place = |rank: u32| facts.iter().position(|facts| facts.rank() == rank);
    for one in collectives.matched.iter().filter(|one| one.participants.len() > 1) {
        let places: Option<Vec<_>> = one.participants.iter().map(|p| place(p.rank)).collect();
        let Some(places) = places else { continue };
        // Converts times to the clocks of the hosts.
        let span = |(part, place): (&Participant, &usize)| {
            let device = facts[*place].scope.trace.device(part.row);
            let shift = skew::shift_ns(facts[*place].skews(), device);
            (part.arrival_ns - shift, part.end_ns - shift)
        };
        let spans: Vec<Interval> = one.participants.iter().zip(&places).map(span).collect();
        let Some(met) = spans.iter().map(|span| span.0).max() else { continue };
        if !is_meeting(facts, &spans, &places, met) {
            continue;
        }
        for (rank, scope) in one.participants.iter().zip(places) {
            meetings.meeting.insert((scope as u32, rank.row), meetings.time.len());
        }
        meetings.time.push(met);
    }
    meetings.nodes = RefCell::new(vec![Vec::new(); meetings.time.len()]);
    meetings
}

fn is_meeting(facts: &[RankFacts<'_>], spans: &[Interval], places: &[usize], met: i64) -> bool {
    spans.iter().zip(places).all(|(&(arrival, end), place)| {
        let window = &facts[*place].scope.window;
        let is_inside = window.start <= arrival && end <= window.end;
        is_inside && end >= met && arrival < window.end
    })
}

impl Meetings {
    /// Returns the time at which all ranks had arrived at the collective of a row, or `None` if it
    /// has none.
    pub fn time(&self, of: NodeOrigin) -> Option<i64> {
        self.place(of).map(|place| self.time[place])
    }

    /// Adds a rank's arrival and transfer.
    pub fn take_part(&self, origin: NodeOrigin, arrival: NodeId, transfer: NodeId) {
        if let Some(place) = self.place(origin) {
            self.nodes.borrow_mut()[place].push((arrival, transfer));
        }
    }

    fn place(&self, of: NodeOrigin) -> Option<usize> {
        self.meeting.get(&(of.scope, of.row?)).copied()
    }
}

/// Adds a node for each meeting and the edges through it.
pub(super) fn join(draft: &mut Draft, meetings: &Meetings) {
    for (time, ranks) in meetings.time.iter().zip(meetings.nodes.borrow().iter()) {
        let category = PathCategory::CommunicationWait;
        let origin = NodeOrigin { scope: 0, row: None, track: None, category };
        let (kind, order) = (NodeKind::Collective, NodeOrder::Meeting);
        let hub = draft.add(DraftNode { kind, start: *time, end: *time, order, origin });
        for &(arrival, transfer) in ranks {
            let mut join = |source, target| {
                let kind = EdgeKind::Rendezvous;
                draft.edges.push(Edge { kind, source, target, weight: 0 });
            };
            join(arrival, hub);
            // This edge keeps a rank's arrival and transfer together, whatever the others do.
            join(arrival, transfer);
            join(hub, transfer);
        }
        draft.evidence.rendezvous += 1;
    }
}
