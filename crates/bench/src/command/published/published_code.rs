//! The published code, for comparison. Each rank has a host clock, a clock of its compute stream
//! and a clock of its communication stream. Ranks synchronize at operators with a collective.
//!
//! The published code differs from Algorithm 1 in four ways. A kernel starts when its launch has
//! ended, streams wait for each other around collectives, all ranks wait for the slowest one, and
//! the host waits for the device in every `aten::to`. Queues are never full.
//!
//! # Source
//! The performance model in facebookresearch/param. A call takes 4 µs, and 1 µs passes between
//! kernels. Overheads are trimmed as in arXiv:2201.07821, IV-B.

use predict::cost::{Constants, Costs, RankCosts};
use predict::program::{Action, MarkKind, Program, Rank, WorkId};

use super::algorithm1::in_order;

const CALL_NS: i64 = 4_000;
const BETWEEN_KERNELS_NS: i64 = 1_000;
/// The only operator in which the published code waits for the device.
const SYNCHRONIZES: &str = "aten::to";

/// Predicts the step time of each rank as the published code does.
pub fn predict_step_times(program: &Program, costs: &Costs) -> Vec<i64> {
    let mut ranks: Vec<RankClock<'_>> = program
        .ranks
        .iter()
        .zip(&costs.ranks)
        .map(|(rank, own)| RankClock::new(program, rank, own, &costs.constants))
        .collect();
    loop {
        // Advance each rank to the end of its next operator that launches a collective.
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

/// The three clocks of a rank: host, compute stream and communication stream.
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

/// State of one rank while the published code is simulated: its clocks and its next action.
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

    /// Advances to the end of the next operator with a collective. Returns whether such an operator
    /// follows.
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
        // The compute stream and the communication stream continue from the later of their two
        // clocks.
        clocks.compute = clocks.front();
        let free = clocks.front() + BETWEEN_KERNELS_NS;
        let transfer = self.constants.transfer_ns(met.operation, met.bytes);
        let ns = transfer.unwrap_or(self.costs.works[work as usize].ns);
        clocks.exchange = free.max(launched) + ns;
        self.has_collective = true;
    }
}
