//! Algorithm 1 of arXiv:2201.07821, for comparison. The algorithm has one host clock and one device
//! clock. A kernel waits for its launch, and nothing else waits.
//!
//! # Source
//! arXiv:2201.07821, Algorithm 1, with its constants: 1 µs between kernels, and 10 µs for every
//! call, of which half passes before the kernel may start. Overheads are trimmed as in section
//! IV-B.

use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::cost::{Constants, RankCosts};
use crate::program::{Action, Program, Rank, WorkId};
use crate::recording::Setting;

const BETWEEN_KERNELS_NS: i64 = 1_000;
const CALL_NS: i64 = 10_000;

/// Predicts the step of each rank with Algorithm 1. A collective takes only its transfer time.
///
/// The algorithm knows only one host thread. The threads of the program are therefore serialized:
/// each runs until it waits for another one.
pub fn predict_step_times(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    constants: &Constants,
) -> Vec<i64> {
    let costs = Prices::new(calibration, Method::Trimmed).price(program, setting);
    let ranks = program.ranks.iter().zip(&costs.ranks);
    ranks.map(|(rank, costs)| step(program, rank, costs, constants)).collect()
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
pub(crate) fn in_order(rank: &Rank) -> Vec<(usize, usize)> {
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
