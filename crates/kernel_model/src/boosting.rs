//! Grows boosted trees on histograms: each tree learns what the ones before it left over.
//!
//! One thread grows one forest in a fixed order, so the same rows give the same trees wherever and
//! beside whatever else it runs.

use schema::random::CounterRng;

use super::forest::{Forest, LEAF_MOST, LEAVES, Tree};

/// How a forest is grown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub rounds: usize,
    /// Leaves of a tree.
    pub leaves: usize,
    /// What part of its leaves a tree adds.
    pub rate: f64,
    /// Least rows of a leaf.
    pub rows: u32,
    /// Part of the features that a tree may split on.
    pub features: f64,
}

/// Draws leaves towards zero as so many rows of zero would.
const RIDGE: f64 = 1.0;
/// Part of the rows that pull by what they are off; the others by as much as the last of these.
const OFF: f64 = 0.9;
/// The pull of those. Whole numbers, so that sums have no order.
const PULL_MOST: i32 = 32_767;
/// Bins of a feature in a histogram.
const BINS: usize = 256;

/// Rows in bins, and what is to be predicted for each.
pub struct Table {
    /// Features of a row.
    pub features: usize,
    pub bins: Vec<u8>,
    pub targets: Vec<f32>,
}

/// Sum of the pulls of a bin's rows, and how many there are.
#[derive(Clone, Copy, Default)]
struct Sum {
    pull: i64,
    rows: u32,
}

/// A leaf that may be split further.
struct Leaf {
    /// Where its rows are.
    start: usize,
    end: usize,
    sums: Vec<Sum>,
    best: Option<Split>,
    /// Of the growing tree.
    node: usize,
}

#[derive(Clone, Copy)]
struct Split {
    gain: f64,
    feature: usize,
    bin: usize,
}

/// A node while its tree grows.
enum Growing {
    /// Where its rows are.
    Leaf {
        start: usize,
        end: usize,
    },
    Split {
        feature: usize,
        bin: usize,
        left: usize,
        right: usize,
    },
}

/// Grows a forest; `seed` chooses the features of each tree.
pub fn forest(table: &Table, settings: Settings, seed: u64) -> Forest {
    if table.targets.is_empty() {
        return Forest::default();
    }
    let least = table.targets.iter().copied().fold(f32::INFINITY, f32::min);
    let most = table.targets.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let start = median(table.targets.clone()) as f32;
    let mut trees = Vec::with_capacity(settings.rounds);
    let mut left_over: Vec<f32> = table.targets.iter().map(|target| target - start).collect();
    let random = CounterRng::new(seed, 0);
    for round in 0..settings.rounds {
        let chosen = chosen(table.features, settings.features, random.child(round as u64));
        let tree = tree(table, &left_over, &chosen, settings);
        for (row, left) in left_over.iter_mut().enumerate() {
            let from = row * table.features;
            *left -= tree.value(&table.bins[from..from + table.features]);
        }
        trees.push(tree);
    }
    Forest::new(start, least..=most, trees)
}

/// How much, and which way, each row pulls its leaf.
fn pulls(left_over: &[f32]) -> Vec<i32> {
    let mut off: Vec<f32> = left_over.iter().map(|left| left.abs()).collect();
    let at = ((off.len() - 1) as f64 * OFF) as usize;
    let most = off.select_nth_unstable_by(at, f32::total_cmp).1.max(f32::MIN_POSITIVE);
    let pull = |left: &f32| f64::from(left.clamp(-most, most) / most) * f64::from(PULL_MOST);
    left_over.iter().map(|left| pull(left) as i32).collect()
}

/// Features of one tree, in order.
fn chosen(features: usize, part: f64, random: CounterRng) -> Vec<usize> {
    let wanted = ((features as f64 * part).ceil() as usize).clamp(1, features);
    let mut all: Vec<usize> = (0..features).collect();
    all.sort_by_key(|&feature| random.bits(feature as u64));
    all.truncate(wanted);
    all.sort_unstable();
    all
}

fn tree(table: &Table, left_over: &[f32], chosen: &[usize], settings: Settings) -> Tree {
    let mut rows: Vec<u32> = (0..left_over.len() as u32).collect();
    let mut nodes: Vec<Growing> = Vec::new();
    let pulls = pulls(left_over);
    let sums = histogram(table, &pulls, &rows, chosen);
    let mut leaves = vec![leaf(&mut nodes, (0, rows.len()), sums, (chosen, settings))];
    while leaves.len() < settings.leaves.min(LEAVES) {
        // The first of the best ones: the order does not depend on how gains are rounded.
        let mut best: Option<(usize, Split)> = None;
        for (at, leaf) in leaves.iter().enumerate() {
            if let Some(split) = leaf.best
                && best.is_none_or(|(_, found)| split.gain > found.gain)
            {
                best = Some((at, split));
            }
        }
        let Some((at, split)) = best else { break };
        let parent = leaves.swap_remove(at);
        let middle = parent.start + part(table, &mut rows[parent.start..parent.end], split);
        let (left, right) = (parent.start..middle, middle..parent.end);
        let is_left_small = left.len() <= right.len();
        let small = if is_left_small { &rows[left.clone()] } else { &rows[right.clone()] };
        let small = histogram(table, &pulls, small, chosen);
        let large = difference(parent.sums, &small);
        let (left_sums, right_sums) = if is_left_small { (small, large) } else { (large, small) };
        let how = (chosen, settings);
        let left = leaf(&mut nodes, (left.start, left.end), left_sums, how);
        let right = leaf(&mut nodes, (right.start, right.end), right_sums, how);
        let (feature, bin) = (split.feature, split.bin);
        nodes[parent.node] = Growing::Split { feature, bin, left: left.node, right: right.node };
        leaves.push(left);
        leaves.push(right);
    }
    in_preorder(&nodes, (&rows, left_over), settings.rate)
}

fn leaf(
    nodes: &mut Vec<Growing>,
    (start, end): (usize, usize),
    sums: Vec<Sum>,
    (chosen, settings): (&[usize], Settings),
) -> Leaf {
    let pull: i64 = sums[..BINS].iter().map(|sum| sum.pull).sum();
    nodes.push(Growing::Leaf { start, end });
    let best = best_split(&sums, (pull, (end - start) as u32), (chosen, settings.rows));
    Leaf { start, end, sums, best, node: nodes.len() - 1 }
}

/// Sums by bin, for each of the chosen features.
fn histogram(table: &Table, pulls: &[i32], rows: &[u32], chosen: &[usize]) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); chosen.len() * BINS];
    for &row in rows {
        let row = row as usize;
        let pull = i64::from(pulls[row]);
        let bins = &table.bins[row * table.features..(row + 1) * table.features];
        for (sums, &feature) in sums.chunks_exact_mut(BINS).zip(chosen) {
            let sum = &mut sums[usize::from(bins[feature])];
            sum.pull += pull;
            sum.rows += 1;
        }
    }
    sums
}

fn difference(mut all: Vec<Sum>, part: &[Sum]) -> Vec<Sum> {
    for (sum, part) in all.iter_mut().zip(part) {
        sum.pull -= part.pull;
        sum.rows -= part.rows;
    }
    all
}

fn best_split(
    sums: &[Sum],
    (pull, rows): (i64, u32),
    (chosen, least): (&[usize], u32),
) -> Option<Split> {
    let score = |sum: i64, rows: u32| {
        (sum as f64 / f64::from(PULL_MOST)).powi(2) / (f64::from(rows) + RIDGE)
    };
    let whole = score(pull, rows);
    let mut best: Option<Split> = None;
    for (sums, &feature) in sums.chunks_exact(BINS).zip(chosen) {
        let mut left = Sum::default();
        for (bin, sum) in sums.iter().enumerate() {
            if sum.rows == 0 {
                continue;
            }
            left.pull += sum.pull;
            left.rows += sum.rows;
            let right = rows - left.rows;
            if right < least {
                break;
            }
            if left.rows < least {
                continue;
            }
            let parts = score(left.pull, left.rows) + score(pull - left.pull, right);
            let gain = parts - whole;
            if gain > 1e-9 && best.is_none_or(|found| gain > found.gain) {
                best = Some(Split { gain, feature, bin });
            }
        }
    }
    best
}

/// Puts the rows of the left side first, in their order; gives their number.
fn part(table: &Table, rows: &mut [u32], split: Split) -> usize {
    let is_left = |row: &u32| {
        usize::from(table.bins[*row as usize * table.features + split.feature]) <= split.bin
    };
    let (left, right): (Vec<u32>, Vec<u32>) = rows.iter().copied().partition(is_left);
    rows[..left.len()].copy_from_slice(&left);
    rows[left.len()..].copy_from_slice(&right);
    left.len()
}

/// The middle of values, or between the two middle ones.
fn median(mut values: Vec<f32>) -> f64 {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    let (below, at, _) = values.select_nth_unstable_by(middle, f32::total_cmp);
    let at = f64::from(*at);
    let before = below.iter().copied().max_by(f32::total_cmp).filter(|_| is_even);
    before.map_or(at, |before| (f64::from(before) + at) / 2.0)
}

/// Leaves as whole steps, so that what is stored is what the next tree learns from.
fn in_preorder(nodes: &[Growing], (rows, left_over): (&[u32], &[f32]), rate: f64) -> Tree {
    let value = |node: &Growing| {
        let Growing::Leaf { start, end } = *node else { return 0.0 };
        let values = rows[start..end].iter().map(|row| left_over[*row as usize]).collect();
        let count = (end - start) as f64;
        rate * median(values) * count / (count + RIDGE)
    };
    let values: Vec<f64> = nodes.iter().map(value).collect();
    let most = values.iter().map(|value| value.abs()).fold(0.0, f64::max);
    let step = ((most / f64::from(LEAF_MOST)) as f32).max(f32::MIN_POSITIVE);
    let mut tree = Tree::new(step);
    // What is to be written: a node, and the split whose right side it begins.
    let mut open: Vec<(usize, Option<usize>)> = vec![(0, None)];
    while let Some((at, right_of)) = open.pop() {
        if let Some(split) = right_of {
            tree.begin_right(split);
        }
        match nodes[at] {
            Growing::Leaf { .. } => {
                let steps = (values[at] / f64::from(step)).round();
                let steps = steps.clamp(-f64::from(LEAF_MOST), f64::from(LEAF_MOST));
                tree.push_leaf(steps as i32);
            }
            Growing::Split { feature, bin, left, right } => {
                let split = tree.push_split(feature as u8, bin as u8);
                open.push((right, Some(split)));
                open.push((left, None));
            }
        }
    }
    tree
}
