//! The published code, for comparison: each rank has a host clock and a clock for its compute and
//! communication streams, and ranks meet at operators with a collective.
//!
//! In contrast to Algorithm 1, a kernel starts when its launch is over, streams wait for each other
//! around collectives, all ranks wait for the slowest one, and the host waits for the device in
//! every `aten::to`. Queues are never full.
//!
//! # Source
//! facebookresearch/param and its performance model: a call takes 4 µs, 1 µs passes between
//! kernels; overheads are trimmed as in arXiv:2201.07821, IV-B.

use super::algorithm1::in_order;
use crate::cost::{Constants, Costs, RankCosts};
use crate::program::{Action, MarkKind, Program, Rank, WorkId};

const CALL_NS: i64 = 4_000;
const BETWEEN_KERNELS_NS: i64 = 1_000;
/// The only operator that waits for the device.
const SYNCHRONIZES: &str = "aten::to";

/// Predicts the step time of each rank with the published code.
pub fn predict_step_times(program: &Program, costs: &Costs, constants: &Constants) -> Vec<i64> {
    let mut ranks: Vec<RankClock<'_>> = program
        .ranks
        .iter()
        .zip(&costs.ranks)
        .map(|(rank, costs)| RankClock::new(program, rank, costs, constants))
        .collect();
    loop {
        // Each rank advances to the end of its next operator that runs a collective.
        let met: Vec<usize> =
            (0..ranks.len()).filter(|rank| ranks[*rank].play_to_collective()).collect();
        if met.is_empty() {
            return ranks.iter().map(|rank| rank.clocks.end()).collect();
        }
        let most = |of: fn(&Clocks) -> i64| {
            met.iter().map(|rank| of(&ranks[*rank].clocks)).max().unwrap_or_default()
        };
        let (compute, exchange) = (most(|clocks| clocks.compute), most(|clocks| clocks.exchange));
        for rank in met {
            ranks[rank].clocks.compute = compute;
            ranks[rank].clocks.exchange = exchange;
        }
    }
}

/// Host, compute and communication clock of a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    host: i64,
    compute: i64,
    exchange: i64,
}

impl Clocks {
    fn front(self) -> i64 {
        self.compute.max(self.exchange)
    }

    fn end(self) -> i64 {
        self.host.max(self.front())
    }
}

/// One rank while the published code is simulated: its clocks and its next action.
struct RankClock<'a> {
    program: &'a Program,
    rank: &'a Rank,
    costs: &'a RankCosts,
    constants: &'a Constants,
    order: Vec<(usize, usize)>,
    next: usize,
    clocks: Clocks,
    has_collective: bool,
    synchronizes: bool,
}

impl<'a> RankClock<'a> {
    fn new(
        program: &'a Program,
        rank: &'a Rank,
        costs: &'a RankCosts,
        constants: &'a Constants,
    ) -> Self {
        Self {
            program,
            rank,
            costs,
            constants,
            order: in_order(rank),
            next: 0,
            clocks: Clocks::default(),
            has_collective: false,
            synchronizes: false,
        }
    }

    /// Continues to the end of the next operator with a collective; returns whether there is one.
    fn play_to_collective(&mut self) -> bool {
        while let Some((thread, at)) = self.order.get(self.next).copied() {
            self.next += 1;
            match &self.rank.threads[thread].actions[at] {
                Action::Begin(mark) if mark.kind == MarkKind::Operator => {
                    self.synchronizes = self.program.text(mark.name) == SYNCHRONIZES;
                }
                Action::Host(_) => self.clocks.host += self.costs.actions[thread][at].ns,
                Action::Call(call) if !call.launches.is_empty() => {
                    call.launches.iter().for_each(|work| self.launch(*work));
                    self.clocks.host += CALL_NS;
                }
                Action::End => {
                    if std::mem::take(&mut self.synchronizes) {
                        self.clocks.host = self.clocks.host.max(self.clocks.compute);
                    }
                    if std::mem::take(&mut self.has_collective) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    fn launch(&mut self, work: WorkId) {
        let launched_work = &self.rank.works[work as usize];
        let met = launched_work.collective.map(|at| &self.program.collectives[at as usize]);
        let launched = self.clocks.host + CALL_NS;
        let clocks = &mut self.clocks;
        let Some(met) = met else {
            let free = clocks.compute + BETWEEN_KERNELS_NS;
            clocks.compute = free.max(launched) + self.costs.works[work as usize].ns;
            return;
        };
        // Both streams continue from the later of the two clocks.
        clocks.compute = clocks.front();
        let free = clocks.front() + BETWEEN_KERNELS_NS;
        let transfer = self.constants.transfer_ns(met.operation, met.bytes);
        let ns = transfer.unwrap_or(self.costs.works[work as usize].ns);
        clocks.exchange = free.max(launched) + ns;
        self.has_collective = true;
    }
}
