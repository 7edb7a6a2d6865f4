//! Numbers the flow arrows of a part and binds them to slices. The ids of arrows are unique over
//! categories and parts.

use super::field::event;
use super::wire::fixed;
use crate::export::binding;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::FlowPhase;

/// The flow arrows of a part, ready to be written with the slices to which they are bound.
pub struct Arrows {
    /// Pairs of a row and an arrow's end, in ascending order of rows.
    bound: Vec<(u32, End)>,
    /// Ends of arrows at which no slice begins, with their indices in the trace's flows.
    pub unbound: Vec<(usize, End)>,
    /// Pairs of a category and the id of its first arrow.
    pub categories: Vec<(u8, u64)>,
}

/// One end of an arrow, with the arrow's id in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    id: u64,
    is_last: bool,
}

impl Arrows {
    /// Numbers the arrows of a part, starting with the id `next`.
    pub fn collect(part: &MergedPart<'_>, lanes: &SliceLanes, next: &mut u64) -> Self {
        let flows = &part.trace.flows;
        // Flow ids are unique only within a category, so both together identify an arrow.
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

    /// Appends the ends of arrows that are bound to the slice of a row.
    pub fn push(&self, out: &mut Vec<u8>, row: u32) {
        let first = self.bound.partition_point(|(other, _)| *other < row);
        let own = self.bound[first..].iter().take_while(|(other, _)| *other == row);
        own.for_each(|(_, end)| end.push(out));
    }
}

impl End {
    /// Appends this end to the event to which it is bound.
    pub fn push(self, out: &mut Vec<u8>) {
        fixed(out, if self.is_last { event::FLOW_END } else { event::FLOW }, self.id);
    }
}
