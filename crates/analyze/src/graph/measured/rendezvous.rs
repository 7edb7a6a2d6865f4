//! Connects the ranks at collectives in which no transfer starts before the last rank has arrived.

use std::cell::RefCell;
use std::collections::HashMap;

use super::draft::{Draft, DraftNode, NodeOrder};
use super::label::{NodeOrigin, PathCategory};
use crate::facts::collectives::{Collectives, Participant};
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::facts::skew;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind};

/// The collectives in which ranks meet, with their arrival times and nodes.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// Index of the meeting for each (index of the rank among the scopes, row).
    meeting: HashMap<(u32, u32), usize>,
    /// Time at which the last rank had arrived, for each meeting.
    time: Vec<i64>,
    /// The arrival and the transfer node of each rank of a meeting, added as the nodes are made.
    nodes: RefCell<Vec<Vec<(NodeId, NodeId)>>>,
}

/// Selects the matched collectives of several ranks that lie inside the windows of all these ranks.
/// A collective is left out if one rank's kernel ended before the last one began, because then the
/// clocks disagree or nobody had to wait.
pub(super) fn meetings(facts: &[RankFacts<'_>], collectives: &Collectives) -> Meetings {
    let mut meetings = Meetings::default();
    let place = |rank: u32| facts.iter().position(|facts| facts.rank() == rank);
    for one in collectives.matched.iter().filter(|one| one.participants.len() > 1) {
        let places: Option<Vec<_>> = one.participants.iter().map(|p| place(p.rank)).collect();
        let Some(places) = places else { continue };
        // Convert the times of the devices to the clocks of their hosts.
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
    /// Returns the time at which all ranks had arrived at the collective of a row, or `None` if the
    /// row belongs to no meeting.
    pub fn time(&self, of: NodeOrigin) -> Option<i64> {
        self.place(of).map(|place| self.time[place])
    }

    /// Adds the arrival and the transfer node of one rank to its meeting.
    pub fn take_part(&self, origin: NodeOrigin, arrival: NodeId, transfer: NodeId) {
        if let Some(place) = self.place(origin) {
            self.nodes.borrow_mut()[place].push((arrival, transfer));
        }
    }

    fn place(&self, of: NodeOrigin) -> Option<usize> {
        self.meeting.get(&(of.scope, of.row()?)).copied()
    }
}

/// Adds a node for each meeting, and the edges from the arrivals through it to the transfers.
pub(super) fn join(draft: &mut Draft, meetings: &Meetings) {
    for (time, ranks) in meetings.time.iter().zip(meetings.nodes.borrow().iter()) {
        let category = PathCategory::CommunicationWait;
        let origin = NodeOrigin::without_row(0, category);
        let (kind, order) = (NodeKind::Collective, NodeOrder::Meeting);
        let hub = draft.add(DraftNode { kind, start: *time, end: *time, order, origin });
        for &(arrival, transfer) in ranks {
            let mut join = |source, target| {
                let kind = EdgeKind::Rendezvous;
                draft.edges.push(Edge { kind, source, target, weight: 0 });
            };
            join(arrival, hub);
            // This edge keeps a rank's arrival before its transfer, whatever the other ranks do.
            join(arrival, transfer);
            join(hub, transfer);
        }
        draft.evidence.rendezvous += 1;
    }
}
