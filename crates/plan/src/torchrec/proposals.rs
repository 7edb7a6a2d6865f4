//! The proposals of TorchRec's planner. A proposal chooses one sharding option for each table.
//! Which ranks the shards get is decided by [`super::partition`].

use std::collections::BTreeSet;

use super::option::ShardingOption;
use super::sharding::ShardingType;

/// TorchRec searches all combinations of options if there are at most so many.
const MOST_COMBINATIONS: usize = 10_000;

/// For each table, the position of its option in the search space. There are at most seven.
pub type Choice = Vec<u8>;

/// Calls `evaluate` with each different proposal, in the order of TorchRec's default planner: all
/// combinations, if they are few; greedy by the largest shard; greedy by the sum of the shards; and
/// the same type for all tables.
pub fn for_each_proposal(space: &[Vec<ShardingOption>], mut evaluate: impl FnMut(&Choice)) {
    if space.is_empty() {
        return;
    }
    let by_largest = sort_options(space, ShardingOption::largest_perf);
    let by_sum = sort_options(space, ShardingOption::total_perf);
    let mut seen = BTreeSet::new();
    let mut propose = |choice: Choice| {
        if !seen.contains(&choice) {
            evaluate(&choice);
            seen.insert(choice);
        }
    };
    let combinations =
        space.iter().try_fold(1usize, |product, options| product.checked_mul(options.len()));
    if combinations.is_some_and(|count| count <= MOST_COMBINATIONS) {
        propose_combinations(&by_largest, &mut propose);
    }
    propose_greedily(space, &by_largest, &mut propose);
    propose_greedily(space, &by_sum, &mut propose);
    propose_uniformly(space, &by_largest, &mut propose);
}

/// Returns for each table the positions of its options, sorted by their score.
fn sort_options(space: &[Vec<ShardingOption>], score: fn(&ShardingOption) -> f64) -> Vec<Choice> {
    let sort = |options: &Vec<ShardingOption>| {
        let mut order: Choice = (0..options.len() as u8).collect();
        let score = |position: u8| score(&options[usize::from(position)]);
        order.sort_by(|&a, &b| score(a).total_cmp(&score(b)));
        order
    };
    space.iter().map(sort).collect()
}

/// Proposes all combinations. The option of the last table changes fastest.
fn propose_combinations(orders: &[Choice], propose: &mut impl FnMut(Choice)) {
    let mut positions = vec![0; orders.len()];
    loop {
        propose(choose(orders, &positions));
        let Some(table) = (0..orders.len()).rev().find(|&t| positions[t] + 1 < orders[t].len())
        else {
            return;
        };
        positions[table] += 1;
        positions[table + 1..].fill(0);
    }
}

/// Begins with the best option of each table. Each further proposal moves one table to its next
/// option: the one whose largest shard, or else whose sum of shards, needs the most memory.
fn propose_greedily(
    space: &[Vec<ShardingOption>],
    orders: &[Choice],
    propose: &mut impl FnMut(Choice),
) {
    let bytes = |table: usize, position: usize| {
        let option = &space[table][usize::from(orders[table][position])];
        (option.largest_bytes(), option.total_bytes())
    };
    let mut positions = vec![0; orders.len()];
    let mut current: Vec<(u64, u64)> = (0..orders.len()).map(|table| bytes(table, 0)).collect();
    loop {
        propose(choose(orders, &positions));
        let mut largest = (0, 0);
        let mut table = None;
        for (id, &storage) in current.iter().enumerate() {
            // The first of equally large tables moves.
            if positions[id] + 1 < orders[id].len() && storage > largest {
                (largest, table) = (storage, Some(id));
            }
        }
        let Some(table) = table else { return };
        positions[table] += 1;
        current[table] = bytes(table, positions[table]);
    }
}

/// Proposes each sharding type that all tables have.
fn propose_uniformly(
    space: &[Vec<ShardingOption>],
    orders: &[Choice],
    propose: &mut impl FnMut(Choice),
) {
    let mut types: Vec<ShardingType> = Vec::new();
    for option in space.iter().flatten() {
        if !types.contains(&option.sharding) {
            types.push(option.sharding);
        }
    }
    for sharding in types {
        let best = |(options, order): (&Vec<ShardingOption>, &Choice)| {
            let is_of_type = |position: &u8| options[usize::from(*position)].sharding == sharding;
            order.iter().copied().find(is_of_type)
        };
        if let Some(choice) = space.iter().zip(orders).map(best).collect() {
            propose(choice);
        }
    }
}

fn choose(orders: &[Choice], positions: &[usize]) -> Choice {
    orders.iter().zip(positions).map(|(order, &position)| order[position]).collect()
}
