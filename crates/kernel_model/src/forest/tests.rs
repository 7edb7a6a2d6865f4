use schema::random::CounterRng;

use super::{Forest, LEAVES, Tree};
use crate::bit_stream::{BitReader, BitWriter};

const FEATURES: u64 = 7;

/// A tree of so many leaves, whose splits are drawn.
fn tree(leaves: usize, random: CounterRng) -> Tree {
    let mut tree = Tree::new(0.5);
    push(&mut tree, leaves, random);
    tree
}

fn push(tree: &mut Tree, leaves: usize, random: CounterRng) {
    if leaves == 1 {
        return tree.push_leaf(random.below(0, 900) as i32 - 450);
    }
    let left = 1 + random.below(1, leaves as u64 - 1) as usize;
    let split = tree.push_split(random.below(2, FEATURES) as u8, random.below(3, 255) as u8);
    push(tree, left, random.child(1));
    tree.begin_right(split);
    push(tree, leaves - left, random.child(2));
}

fn forest(trees: u64) -> Forest {
    let random = CounterRng::new(4, 0);
    let tree = |number| {
        let leaves = 1 + random.below(number, LEAVES as u64) as usize;
        tree(leaves, random.child(number))
    };
    Forest::new(1.5, -1e9..=1e9, (0..trees).map(tree).collect())
}

#[test]
fn joint_evaluation_of_trees_equals_separate_evaluation() {
    for trees in [0, 1, 30, 700] {
        let forest = forest(trees);
        for row in 0..200 {
            let random = CounterRng::new(8, row);
            let bins: Vec<u8> = (0..FEATURES).map(|at| random.below(at, 256) as u8).collect();
            let by_itself: f64 = forest.trees.iter().map(|tree| f64::from(tree.value(&bins))).sum();
            let found = forest.predict(&bins);
            assert!((found - 1.5 - by_itself).abs() < 1e-9 * (1.0 + by_itself.abs()), "{bins:?}");
        }
    }
}

#[test]
fn a_forest_comes_back_and_a_tree_of_too_many_leaves_does_not() {
    let forest = forest(40);
    let mut out = BitWriter::default();
    forest.write(&mut out);
    let bytes = out.into_bytes();
    assert_eq!(Forest::read(&mut BitReader::new(&bytes), FEATURES as usize), Some(forest));
    let large = Forest::new(0.0, 0.0..=1.0, vec![tree(LEAVES, CounterRng::new(1, 1))]);
    let mut out = BitWriter::default();
    large.write(&mut out);
    let bytes = out.into_bytes();
    assert_eq!(Forest::read(&mut BitReader::new(&bytes), FEATURES as usize), Some(large));
    // A chain of splits: a leaf on each left side, without an end.
    let mut out = BitWriter::default();
    [0.0, 0.0, 1.0].into_iter().for_each(|value| out.float(value));
    out.bits(1, 16);
    out.float(0.5);
    for _ in 0..LEAVES {
        out.bits(0, 1 + 6 + 8);
        out.bits(1, 1);
        out.bits(511, 10);
    }
    out.bits(1, 1);
    out.bits(511, 10);
    let bytes = out.into_bytes();
    assert_eq!(Forest::read(&mut BitReader::new(&bytes), FEATURES as usize), None);
}
