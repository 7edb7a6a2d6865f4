//! Algorithm 1 of arXiv:2201.07821, for comparison. The algorithm has one host clock and one device
//! clock. A kernel waits for its launch, and nothing else waits.
//!
//! # Source
//! arXiv:2201.07821, Algorithm 1, with its constants: 1 µs between kernels, and 10 µs for every
//! call, of which half passes before the kernel may start. Overheads are trimmed as in section
//! IV-B.

use predict::cost::{Constants, Costs, RankCosts};
use predict::program::{Action, Program, Rank, WorkId};

const BETWEEN_KERNELS_NS: i64 = 1_000;
const CALL_NS: i64 = 10_000;

/// Predicts the step of each rank with Algorithm 1 from trimmed costs. A collective takes only its
/// transfer time.
///
/// The algorithm knows only one host thread. The threads of the program are therefore serialized:
/// each runs until it waits for another one.
pub fn predict_step_times(program: &Program, costs: &Costs) -> Vec<i64> {
    let ranks = program.ranks.iter().zip(&costs.ranks);
    ranks.map(|(rank, own)| step(program, rank, own, &costs.constants)).collect()
}

/// The two clocks of the algorithm: one of the host and one of the device.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    host: i64,
    device: i64,
}

fn step(program: &Program, rank: &Rank, costs: &RankCosts, constants: &Constants) -> i64 {
    let kernel = |work: WorkId| {
        let launched = &rank.works[work as usize];
        let met = launched.collective.map(|at| &program.collectives[at as usize]);
        let transfer = met.and_then(|met| constants.transfer_ns(met.operation, met.bytes));
        transfer.unwrap_or(costs.works[work as usize].ns)
    };
    let mut clocks = Clocks::default();
    for (thread, at) in in_order(rank) {
        match &rank.threads[thread].actions[at] {
            Action::Host(_) => clocks.host += costs.actions[thread][at].ns,
            Action::Call(call) if !call.launches.is_empty() => {
                for work in &call.launches {
                    let launched = clocks.host + CALL_NS / 2;
                    let free = clocks.device + BETWEEN_KERNELS_NS;
                    clocks.device = free.max(launched) + kernel(*work);
                }
                clocks.host += CALL_NS;
            }
            _ => {}
        }
    }
    clocks.host.max(clocks.device)
}

/// Serializes the actions of all threads. Each thread runs until it waits for another one.
pub fn in_order(rank: &Rank) -> Vec<(usize, usize)> {
    let mut order = Vec::new();
    let mut next = vec![0; rank.threads.len()];
    let mut given = std::collections::BTreeSet::new();
    loop {
        let before = order.len();
        for (thread, actions) in rank.threads.iter().map(|thread| &thread.actions).enumerate() {
            while let Some(action) = actions.get(next[thread]) {
                match action {
                    Action::Await { signal, .. } if !given.contains(signal) => break,
                    Action::Signal(signal) => drop(given.insert(*signal)),
                    _ => {}
                }
                order.push((thread, next[thread]));
                next[thread] += 1;
            }
        }
        if order.len() == before {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use predict::cost::{Constants, Cost, Costs, RankCosts};
    use predict::program::{
        Action, Call, Overhead, Program, Rank, Returns, Segment, Stream, Thread, Work, WorkKind,
    };
    use trace::store::StringId;

    use super::predict_step_times;

    fn work() -> Work {
        let name = StringId::default();
        Work {
            name,
            kind: WorkKind::Kernel,
            stream: 0,
            op: name,
            detail: name,
            shape: None,
            bytes: None,
            behind: None,
            after: Vec::new(),
            collective: None,
            parts: Vec::new(),
            scale: 1.0,
            is_launched: true,
            held_ns: 0,
            repeated: None,
        }
    }

    /// The host takes 20 µs and 10 µs for a call that launches two kernels of 100 µs.
    #[test]
    fn algorithm_1_has_one_clock_of_the_host_and_one_of_the_device() {
        let name = StringId::default();
        let cost = Segment { overhead: Overhead::HostOnly, op: name, detail: name };
        let (launches, returns) = (vec![0, 1], Returns::AtOnce);
        let call = Call { cost, launches, awaits: Vec::new(), room: None, returns };
        let actions = vec![Action::Host(cost), Action::Call(call)];
        let rank = Rank {
            threads: vec![Thread { pid: 1, tid: 1, actions }],
            streams: vec![Stream { device: 0, number: 7 }],
            works: vec![work(), work()],
            ..Rank::default()
        };
        let ns = |ns| Cost { ns, source: None };
        let costs = RankCosts {
            actions: vec![vec![ns(20_000), ns(3_000)]],
            works: vec![ns(100_000); 2],
            ..RankCosts::default()
        };
        let program = Program { ranks: vec![rank], ..Program::default() };
        let costs = Costs { ranks: vec![costs], constants: Constants::default() };
        assert_eq!(predict_step_times(&program, &costs), [20_000 + 5_000 + 2 * 100_000 + 1_000]);
    }
}
