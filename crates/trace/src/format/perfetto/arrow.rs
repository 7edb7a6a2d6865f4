//! Arrows: ids unique over categories and parts, by the slice they are bound to.

use super::field::event;
use super::wire::fixed;
use crate::export::binding;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::FlowPhase;

/// The arrows of a part.
pub struct Arrows {
    /// By row, ascending: the ends bound to it.
    bound: Vec<(u32, End)>,
    /// Ends that no slice begins with: places in the trace's flows.
    pub unbound: Vec<(usize, End)>,
    /// Categories, and the number of the first arrow of each.
    pub categories: Vec<(u8, u64)>,
}

/// One end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    id: u64,
    is_last: bool,
}

impl Arrows {
    /// Numbers the arrows of a part from `next` on.
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

    /// Appends the ends bound to a slice.
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
