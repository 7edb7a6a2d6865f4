//! Flow arrows. Their ids are unique over categories and parts, and they are bound to slices.

use super::field::event;
use super::wire::fixed;
use crate::export::binding;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::FlowPhase;

/// The flow arrows of a part, ready to be written with the slices they are bound to.
pub struct Arrows {
    /// Pairs of row and end, in ascending order of rows.
    bound: Vec<(u32, End)>,
    /// Ends at which no slice begins, with their indices in the trace's flows.
    pub unbound: Vec<(usize, End)>,
    /// Each category, and the number of its first arrow.
    pub categories: Vec<(u8, u64)>,
}

/// One end of an arrow, with its id in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    id: u64,
    is_last: bool,
}

impl Arrows {
    /// Numbers the arrows of a part, starting with `next`.
    pub fn collect(part: &MergedPart<'_>, lanes: &SliceLanes, next: &mut u64) -> Self {
        let flows = &part.trace.flows;
        let mut ids: Vec<_> = flows.iter().map(|flow| (flow.category, flow.id)).collect();
        ids.sort_unstable();
        ids.dedup();
        let (mut bound, mut unbound) = (Vec::new(), Vec::new());
        for (at, row) in binding::bind(part, lanes).into_iter().enumerate() {
            let flow = &flows[at];
            let place = ids.partition_point(|id| *id < (flow.category, flow.id));
            let id = *next + place as u64;
            let end = End { id, is_last: flow.phase == FlowPhase::End };
            match row {
                Some(row) => bound.push((row, end)),
                None => unbound.push((at, end)),
            }
        }
        let mut categories: Vec<(u8, u64)> = Vec::new();
        for ((category, _), number) in ids.iter().zip(*next..) {
            if categories.last().is_none_or(|(last, _)| last != category) {
                categories.push((*category, number));
            }
        }
        *next += ids.len() as u64;
        bound.sort_by_key(|(row, _)| *row);
        Self { bound, unbound, categories }
    }

    /// Appends the ends that are bound to a slice.
    pub fn push(&self, out: &mut Vec<u8>, row: u32) {
        let first = self.bound.partition_point(|(other, _)| *other < row);
        let own = self.bound[first..].iter().take_while(|(other, _)| *other == row);
        own.for_each(|(_, end)| end.push(out));
    }
}

impl End {
    /// Appends this end to the event it is bound to.
    pub fn push(self, out: &mut Vec<u8>) {
        fixed(out, if self.is_last { event::FLOW_END } else { event::FLOW }, self.id);
    }
}
