//! Trains gradient-boosted trees on histograms of binned features.
//!
//! Each tree learns the residuals that the earlier trees left. One thread grows one forest in a
//! fixed order, so the same rows give the same trees on any machine.

use std::ops::Range;

use schema::median::float_median;
use schema::random::CounterRng;

use super::bins::BinnedRows;
use super::forest::{Forest, LEAF_MOST, LEAVES, Tree};

/// Hyperparameters of gradient boosting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoostingParams {
    pub rounds: usize,
    /// Maximum number of leaves of a tree.
    pub leaves: usize,
    /// Learning rate: the factor by which the leaf values of a tree are scaled.
    pub rate: f64,
    /// Minimum number of rows in a leaf.
    pub rows: u32,
    /// Share of the features on which a single tree may split.
    pub features: f64,
}

/// L2 regularization of leaf values. A leaf value shrinks as if the leaf held this many more rows
/// with a residual of zero.
const RIDGE: f64 = 1.0;
/// Quantile of the absolute residuals above which gradients are clipped (Huber loss).
const OFF: f64 = 0.9;
/// Gradient of a row whose residual is clipped. Gradients are integers, so their sums do not depend
/// on the order.
const GRADIENT_MOST: i32 = 32_767;
/// Number of bins of each feature in a histogram.
const BINS: usize = 256;

/// Sum of the gradients and number of rows in one bin of a feature.
#[derive(Clone, Copy, Default)]
struct BinSum {
    gradient: i64,
    rows: u32,
}

/// A leaf of the growing tree, with the histogram from which its best split is chosen.
struct Leaf {
    start: usize,
    end: usize,
    sums: Vec<BinSum>,
    best: Option<Split>,
    node: usize,
}

/// A candidate split of a leaf: rows whose `feature` is in a bin up to `bin` go left.
#[derive(Clone, Copy)]
struct Split {
    gain: f64,
    feature: usize,
    bin: usize,
}

/// A node of a tree that is being grown. A leaf refers to a range of the sorted row numbers.
enum GrowingNode {
    Leaf { start: usize, end: usize },
    Split { feature: usize, bin: usize, left: usize, right: usize },
}

/// Trains a forest on the rows of `table`. `seed` chooses the features on which each tree may
/// split.
pub fn train_forest(table: &BinnedRows, params: BoostingParams, seed: u64) -> Forest {
    if table.targets.is_empty() {
        return Forest::default();
    }
    let least = table.targets.iter().copied().fold(f32::INFINITY, f32::min);
    let most = table.targets.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let start = median(table.targets.iter()) as f32;
    let mut trees = Vec::with_capacity(params.rounds);
    let mut residuals: Vec<f32> = table.targets.iter().map(|target| target - start).collect();
    let random = CounterRng::new(seed, 0);
    for round in 0..params.rounds {
        let chosen = choose_features(table.features, params.features, random.child(round as u64));
        let tree = grow_tree(table, &residuals, &chosen, params);
        for (row, left) in residuals.iter_mut().enumerate() {
            let from = row * table.features;
            *left -= tree.value(&table.bins[from..from + table.features]);
        }
        trees.push(tree);
    }
    Forest::new(start, least..=most, trees)
}

/// Clips residuals at a quantile and scales them to integer gradients (Huber loss).
fn compute_gradients(residuals: &[f32]) -> Vec<i32> {
    let mut off: Vec<f32> = residuals.iter().map(|left| left.abs()).collect();
    let at = ((off.len() - 1) as f64 * OFF) as usize;
    let most = off.select_nth_unstable_by(at, f32::total_cmp).1.max(f32::MIN_POSITIVE);
    let gradient =
        |left: &f32| f64::from(left.clamp(-most, most) / most) * f64::from(GRADIENT_MOST);
    residuals.iter().map(|left| gradient(left) as i32).collect()
}

/// Draws the features on which one tree may split, in ascending order.
fn choose_features(features: usize, part: f64, random: CounterRng) -> Vec<usize> {
    let wanted = ((features as f64 * part).ceil() as usize).clamp(1, features);
    let mut all: Vec<usize> = (0..features).collect();
    all.sort_by_key(|&feature| random.bits(feature as u64));
    all.truncate(wanted);
    all.sort_unstable();
    all
}

fn grow_tree(
    table: &BinnedRows,
    residuals: &[f32],
    chosen: &[usize],
    params: BoostingParams,
) -> Tree {
    let mut rows: Vec<u32> = (0..residuals.len() as u32).collect();
    let mut nodes: Vec<GrowingNode> = Vec::new();
    let gradients = compute_gradients(residuals);
    let sums = sum_by_bin(table, &gradients, &rows, chosen);
    let mut leaves = vec![push_leaf(&mut nodes, 0..rows.len(), sums, chosen, params)];
    while leaves.len() < params.leaves.min(LEAVES) {
        // If two leaves have the same gain, the first one wins, so the choice is deterministic.
        let mut best: Option<(usize, Split)> = None;
        for (at, leaf) in leaves.iter().enumerate() {
            if let Some(split) = leaf.best
                && best.is_none_or(|(_, other)| split.gain > other.gain)
            {
                best = Some((at, split));
            }
        }
        let Some((at, split)) = best else { break };
        let parent = leaves.swap_remove(at);
        let middle =
            parent.start + partition_rows(table, &mut rows[parent.start..parent.end], split);
        let (left, right) = (parent.start..middle, middle..parent.end);
        // Sum only the smaller child and subtract it from the parent, which saves at least half the
        // additions.
        let is_left_small = left.len() <= right.len();
        let small = if is_left_small { &rows[left.clone()] } else { &rows[right.clone()] };
        let small = sum_by_bin(table, &gradients, small, chosen);
        let large = subtract_sums(parent.sums, &small);
        let (left_sums, right_sums) = if is_left_small { (small, large) } else { (large, small) };
        let left = push_leaf(&mut nodes, left, left_sums, chosen, params);
        let right = push_leaf(&mut nodes, right, right_sums, chosen, params);
        let (feature, bin) = (split.feature, split.bin);
        nodes[parent.node] =
            GrowingNode::Split { feature, bin, left: left.node, right: right.node };
        leaves.push(left);
        leaves.push(right);
    }
    in_preorder(&nodes, &rows, residuals, params.rate)
}

fn push_leaf(
    nodes: &mut Vec<GrowingNode>,
    range: Range<usize>,
    sums: Vec<BinSum>,
    chosen: &[usize],
    params: BoostingParams,
) -> Leaf {
    let Range { start, end } = range;
    let gradient: i64 = sums[..BINS].iter().map(|sum| sum.gradient).sum();
    nodes.push(GrowingNode::Leaf { start, end });
    let total = BinSum { gradient, rows: (end - start) as u32 };
    let best = find_best_split(&sums, total, chosen, params.rows);
    Leaf { start, end, sums, best, node: nodes.len() - 1 }
}

/// Sums gradients and counts rows by bin, for each of the chosen features.
fn sum_by_bin(
    table: &BinnedRows,
    gradients: &[i32],
    rows: &[u32],
    chosen: &[usize],
) -> Vec<BinSum> {
    let mut sums = vec![BinSum::default(); chosen.len() * BINS];
    for &row in rows {
        let row = row as usize;
        let gradient = i64::from(gradients[row]);
        let bins = &table.bins[row * table.features..(row + 1) * table.features];
        for (sums, &feature) in sums.chunks_exact_mut(BINS).zip(chosen) {
            let sum = &mut sums[usize::from(bins[feature])];
            sum.gradient += gradient;
            sum.rows += 1;
        }
    }
    sums
}

fn subtract_sums(mut all: Vec<BinSum>, part: &[BinSum]) -> Vec<BinSum> {
    for (sum, part) in all.iter_mut().zip(part) {
        sum.gradient -= part.gradient;
        sum.rows -= part.rows;
    }
    all
}

fn find_best_split(sums: &[BinSum], total: BinSum, chosen: &[usize], least: u32) -> Option<Split> {
    let score = |sum: i64, rows: u32| {
        (sum as f64 / f64::from(GRADIENT_MOST)).powi(2) / (f64::from(rows) + RIDGE)
    };
    let BinSum { gradient, rows } = total;
    let whole = score(gradient, rows);
    let mut best: Option<Split> = None;
    for (sums, &feature) in sums.chunks_exact(BINS).zip(chosen) {
        let mut left = BinSum::default();
        for (bin, sum) in sums.iter().enumerate() {
            if sum.rows == 0 {
                continue;
            }
            left.gradient += sum.gradient;
            left.rows += sum.rows;
            let right = rows - left.rows;
            // The right side only shrinks with later bins, so none of them can be a valid split.
            if right < least {
                break;
            }
            if left.rows < least {
                continue;
            }
            let parts = score(left.gradient, left.rows) + score(gradient - left.gradient, right);
            // Gains below 1e-9 are rounding noise of the scores and must not cause a split.
            let gain = parts - whole;
            if gain > 1e-9 && best.is_none_or(|other| gain > other.gain) {
                best = Some(Split { gain, feature, bin });
            }
        }
    }
    best
}

/// Partitions rows by a split, keeping their order on both sides, and returns the number of rows on
/// the left.
fn partition_rows(table: &BinnedRows, rows: &mut [u32], split: Split) -> usize {
    let is_left = |row: &u32| {
        usize::from(table.bins[*row as usize * table.features + split.feature]) <= split.bin
    };
    let (left, right): (Vec<u32>, Vec<u32>) = rows.iter().copied().partition(is_left);
    rows[..left.len()].copy_from_slice(&left);
    rows[left.len()..].copy_from_slice(&right);
    left.len()
}

/// Converts a grown tree to preorder. Leaf values are rounded to whole steps first, so the next
/// tree learns from the values that are stored.
fn in_preorder(nodes: &[GrowingNode], rows: &[u32], residuals: &[f32], rate: f64) -> Tree {
    let value = |node: &GrowingNode| {
        let GrowingNode::Leaf { start, end } = *node else { return 0.0 };
        let values = rows[start..end].iter().map(|row| &residuals[*row as usize]);
        let count = (end - start) as f64;
        rate * median(values) * count / (count + RIDGE)
    };
    let values: Vec<f64> = nodes.iter().map(value).collect();
    let most = values.iter().map(|value| value.abs()).fold(0.0, f64::max);
    let step = ((most / f64::from(LEAF_MOST)) as f32).max(f32::MIN_POSITIVE);
    let mut tree = Tree::new(step);
    push_node(&mut tree, nodes, &values, 0);
    tree
}

/// Appends a node and the nodes below it to a tree in preorder.
fn push_node(tree: &mut Tree, nodes: &[GrowingNode], values: &[f64], at: usize) {
    match nodes[at] {
        GrowingNode::Leaf { .. } => {
            let steps = (values[at] / f64::from(tree.step())).round();
            tree.push_leaf(steps.clamp(-f64::from(LEAF_MOST), f64::from(LEAF_MOST)) as i32);
        }
        GrowingNode::Split { feature, bin, left, right } => {
            let split = tree.push_split(feature as u8, bin as u8);
            push_node(tree, nodes, values, left);
            tree.begin_right(split);
            push_node(tree, nodes, values, right);
        }
    }
}

fn median<'a>(values: impl Iterator<Item = &'a f32>) -> f64 {
    let mut values: Vec<f64> = values.map(|value| f64::from(*value)).collect();
    float_median(&mut values).unwrap_or_default()
}
