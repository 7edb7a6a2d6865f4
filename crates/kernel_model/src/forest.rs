//! Boosted regression trees: fast evaluation, and the form in which they are stored.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Largest leaf value, counted in steps of its tree. The smallest leaf value is the negative of it.
/// A small number of steps keeps files small.
pub const LEAF_MOST: i32 = 511;
/// Value of [`Node::below`] that marks a leaf. A split cannot have it because no bin lies below 0.
const LEAF: u8 = 0;
/// Number of the last bin.
pub const BIN_MOST: u8 = u8::MAX - 1;
/// Maximum number of leaves of a tree, because evaluation uses one bit per leaf.
pub const LEAVES: usize = 32;
/// Number of trees that are evaluated together.
const TOGETHER: usize = 512;

/// A split or a leaf of a tree in preorder.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    feature: u8,
    /// Rows whose bin is below this one go to the next node, all others to `right`. Leaves have the
    /// value [`LEAF`].
    below: u8,
    right: u16,
}

/// A regression tree, stored as its nodes in preorder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Difference between two adjacent leaf values.
    step: f32,
    nodes: Vec<Node>,
    /// Value of each node, which is 0 for splits.
    values: Vec<f32>,
}

impl Tree {
    /// Creates an empty tree whose leaf values are multiples of `step`.
    pub fn new(step: f32) -> Self {
        Self { step, nodes: Vec::new(), values: Vec::new() }
    }

    /// Appends a split as the next node in preorder and returns its number. Rows whose bin is at
    /// most `bin` go left. The left side comes next in preorder.
    pub fn push_split(&mut self, feature: u8, bin: u8) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Node { feature, below: bin.min(BIN_MOST) + 1, right: 0 });
        self.values.push(0.0);
        number
    }

    /// Appends a leaf as the next node in preorder.
    pub fn push_leaf(&mut self, steps: i32) {
        self.nodes.push(Node { feature: 0, below: LEAF, right: 0 });
        self.values.push(steps as f32 * self.step);
    }

    /// Makes the next appended node the right child of `split`.
    pub fn begin_right(&mut self, split: usize) {
        self.nodes[split].right = self.nodes.len() as u16;
    }

    /// Returns the value of the leaf that a row of bins falls into.
    pub fn value(&self, bins: &[u8]) -> f32 {
        let mut at = 0;
        loop {
            let node = self.nodes[at];
            if node.below == LEAF {
                return self.values[at];
            }
            let is_left = bins[usize::from(node.feature)] < node.below;
            at = if is_left { at + 1 } else { usize::from(node.right) };
        }
    }
}

/// A split in the form that evaluates many trees at once: a row on the right of the split cannot
/// reach any leaf on its left.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExcludedLeaves {
    tree: u16,
    /// One bit for each leaf of the tree. The bits of excluded leaves are 0.
    mask: u32,
}

/// A group of trees that is evaluated at once (QuickScorer, SIGIR 2015).
///
/// Splits are ordered by feature and bin. If a row goes to the right of a split, the split masks
/// out the leaves on its left. The lowest remaining bit of a tree marks the row's leaf. Unlike in a
/// walk down a tree, no step depends on the previous one.
#[derive(Clone, Debug, Default, PartialEq)]
struct TreesTogether {
    /// Splits sorted by feature, then by bin.
    splits: Vec<ExcludedLeaves>,
    /// For each feature, the index of its first split, and for each bin the end of the splits whose
    /// right side that bin is on.
    begins: Vec<usize>,
    ends: Vec<[u32; 256]>,
    /// Leaf values of all trees, from left to right, and the index of each tree's first leaf.
    leaves: Vec<f32>,
    firsts: Vec<u32>,
}

impl TreesTogether {
    fn new(trees: &[Tree]) -> Self {
        let mut group = Self::default();
        let mut splits: Vec<(u8, u8, ExcludedLeaves)> = Vec::new();
        for (number, tree) in trees.iter().enumerate() {
            group.firsts.push(group.leaves.len() as u32);
            // Number of leaves that lie to the left of each node of the tree.
            let mut before = Vec::with_capacity(tree.nodes.len());
            let mut leaves = 0u32;
            for (node, value) in tree.nodes.iter().zip(&tree.values) {
                before.push(leaves);
                if node.below == LEAF {
                    group.leaves.push(*value);
                    leaves += 1;
                }
            }
            for (node, from) in tree.nodes.iter().zip(&before).filter(|(node, _)| node.below > LEAF)
            {
                let to = before[usize::from(node.right)];
                // The mask is computed in 64 bits, because a tree may have 32 leaves and 1 << 32
                // does not fit into 32 bits.
                let left = ((1u64 << to) - (1u64 << from)) as u32;
                let excluded = ExcludedLeaves { tree: number as u16, mask: !left };
                splits.push((node.feature, node.below, excluded));
            }
        }
        splits.sort_by_key(|(feature, below, excluded)| (*feature, *below, excluded.tree));
        let features = splits.last().map_or(0, |(feature, ..)| usize::from(*feature) + 1);
        for feature in 0..features {
            let begin = splits.partition_point(|split| usize::from(split.0) < feature);
            let end = splits.partition_point(|split| usize::from(split.0) <= feature);
            let of_feature = &splits[begin..end];
            let ends = std::array::from_fn(|bin| {
                (begin + of_feature.partition_point(|split| usize::from(split.1) <= bin)) as u32
            });
            group.begins.push(begin);
            group.ends.push(ends);
        }
        group.splits = splits.into_iter().map(|(.., excluded)| excluded).collect();
        group
    }

    /// Sums the values of all trees for a row, in tree order.
    fn sum(&self, bins: &[u8]) -> f64 {
        let mut left = [u32::MAX; TOGETHER];
        for ((begin, ends), bin) in self.begins.iter().zip(&self.ends).zip(bins) {
            for split in &self.splits[*begin..ends[usize::from(*bin)] as usize] {
                // Tree numbers are below `TOGETHER`, so the remainder only removes the bounds
                // check.
                left[usize::from(split.tree) % TOGETHER] &= split.mask;
            }
        }
        let leaf = |(first, left): (&u32, &u32)| {
            f64::from(self.leaves[(first + left.trailing_zeros()) as usize])
        };
        self.firsts.iter().zip(&left).map(leaf).sum()
    }
}

/// A sum of boosted trees, clamped to the range of the training targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ForestColumns", into = "ForestColumns")]
pub struct Forest {
    start: f32,
    bounds: (f32, f32),
    trees: Vec<Tree>,
    together: Vec<TreesTogether>,
}

impl Forest {
    /// Creates a forest that adds `trees` to `start` and clamps the sum to `bounds`.
    #[must_use]
    pub fn new(start: f32, bounds: RangeInclusive<f32>, trees: Vec<Tree>) -> Self {
        let bounds = bounds.into_inner();
        let together = trees.chunks(TOGETHER).map(TreesTogether::new).collect();
        Self { start, bounds, trees, together }
    }

    /// Predicts the target of a row of bins.
    #[must_use]
    pub fn predict(&self, bins: &[u8]) -> f64 {
        let sum: f64 = self.together.iter().map(|together| together.sum(bins)).sum();
        let bounds = (f64::from(self.bounds.0), f64::from(self.bounds.1));
        (f64::from(self.start) + sum).max(bounds.0).min(bounds.1)
    }

    /// Checks that no tree splits on a feature beyond the first `features`.
    #[must_use]
    pub fn splits_only_on(&self, features: usize) -> bool {
        let mut nodes = self.trees.iter().flat_map(|tree| &tree.nodes);
        nodes.all(|node| node.below == LEAF || usize::from(node.feature) < features)
    }
}

/// A forest in its stored form, with one array per field. Arrays compress and parse much better
/// than one object per node. Trees follow each other, with their nodes in preorder.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForestColumns {
    start: f32,
    bounds: (f32, f32),
    /// The step of each tree.
    steps: Vec<f32>,
    /// [`Node::below`] of every node.
    below: Vec<u8>,
    /// The feature of every split.
    features: Vec<u8>,
    /// The value of every leaf as a multiple of its tree's step.
    leaves: Vec<i32>,
}

impl From<Forest> for ForestColumns {
    fn from(forest: Forest) -> Self {
        let mut columns = Self {
            start: forest.start,
            bounds: forest.bounds,
            steps: forest.trees.iter().map(|tree| tree.step).collect(),
            below: Vec::new(),
            features: Vec::new(),
            leaves: Vec::new(),
        };
        for tree in &forest.trees {
            for (node, value) in tree.nodes.iter().zip(&tree.values) {
                columns.below.push(node.below);
                if node.below == LEAF {
                    columns.leaves.push((value / tree.step).round() as i32);
                } else {
                    columns.features.push(node.feature);
                }
            }
        }
        columns
    }
}

impl TryFrom<ForestColumns> for Forest {
    type Error = &'static str;

    fn try_from(columns: ForestColumns) -> Result<Self, Self::Error> {
        let (low, high) = columns.bounds;
        let mut numbers = [columns.start, low, high].into_iter().chain(columns.steps.clone());
        if !numbers.all(f32::is_finite) || low > high {
            return Err("expected finite numbers and rising bounds");
        }
        let (mut below, mut features) = (columns.below.into_iter(), columns.features.into_iter());
        let mut leaves = columns.leaves.into_iter();
        let tree = |step| next_tree(step, &mut below, &mut features, &mut leaves);
        let trees: Option<Vec<Tree>> = columns.steps.into_iter().map(tree).collect();
        let is_at_end = below.len() + features.len() + leaves.len() == 0;
        let trees =
            trees.filter(|_| is_at_end).ok_or("expected whole trees of at most 32 leaves")?;
        Ok(Self::new(columns.start, low..=high, trees))
    }
}

/// Takes the nodes of one tree from the columns. Returns `None` if the columns end before the tree
/// does.
fn next_tree(
    step: f32,
    below: &mut impl Iterator<Item = u8>,
    features: &mut impl Iterator<Item = u8>,
    leaves: &mut impl Iterator<Item = i32>,
) -> Option<Tree> {
    let mut tree = Tree::new(step);
    // Stack of splits whose right side has not begun yet.
    let mut open: Vec<usize> = Vec::new();
    // The largest tree has `LEAVES` leaves and one split less, so a longer one is damaged.
    while tree.nodes.len() < 2 * LEAVES - 1 {
        let below = below.next()?;
        if below != LEAF {
            open.push(tree.push_split(features.next()?, below - 1));
            continue;
        }
        tree.push_leaf(leaves.next()?);
        let Some(split) = open.pop() else { return Some(tree) };
        tree.begin_right(split);
    }
    None
}

#[cfg(test)]
mod tests;
