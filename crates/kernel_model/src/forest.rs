//! Boosted regression trees, and the form in which they are stored.

use std::ops::RangeInclusive;
use std::vec::IntoIter;

use serde::{Deserialize, Serialize};

use super::bins::{Bins, FEATURES_MOST};

/// Largest leaf value, counted in steps of its tree. The smallest leaf value is the negative of it.
/// A small number of steps keeps files small.
pub const LEAF_MOST: i32 = 511;
/// Value of [`Node::below`] that marks a leaf. A split cannot have it because no bin lies below 0.
const LEAF: u8 = 0;
/// Maximum number of leaves of a tree.
pub const LEAVES: usize = 32;

/// A split or a leaf of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    feature: u8,
    /// Rows whose bin is below this one go to the next node, all others to `right`. Leaves have the
    /// value [`LEAF`].
    below: u8,
    right: u16,
    /// Value of a leaf.
    value: f32,
}

/// A regression tree, stored as its nodes in preorder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Difference between two adjacent leaf values.
    step: f32,
    nodes: Vec<Node>,
}

impl Tree {
    /// Creates an empty tree whose leaf values are multiples of `step`.
    pub fn new(step: f32) -> Self {
        Self { step, nodes: Vec::new() }
    }

    /// Returns the difference between two adjacent leaf values.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Appends a split as the next node in preorder and returns its number. Rows whose bin is at
    /// most `bin` go left. The left side comes next in preorder.
    pub fn push_split(&mut self, feature: u8, bin: u8) -> usize {
        let below = bin.min(u8::MAX - 1) + 1;
        self.nodes.push(Node { feature, below, right: 0, value: 0.0 });
        self.nodes.len() - 1
    }

    /// Appends a leaf as the next node in preorder.
    pub fn push_leaf(&mut self, steps: i32) {
        let value = steps as f32 * self.step;
        self.nodes.push(Node { feature: 0, below: LEAF, right: 0, value });
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
                return node.value;
            }
            let is_left = bins[usize::from(node.feature)] < node.below;
            at = if is_left { at + 1 } else { usize::from(node.right) };
        }
    }

    /// Reads the next nodes of the stored form. Returns `None` if they end early or the tree is too
    /// large.
    fn read(&mut self, nodes: &mut NodeColumns) -> Option<()> {
        if self.nodes.len() >= 2 * LEAVES - 1 {
            return None;
        }
        let below = nodes.below.next()?;
        if below == LEAF {
            self.push_leaf(nodes.leaves.next()?);
            return Some(());
        }
        let split = self.push_split(nodes.features.next()?, below - 1);
        self.read(nodes)?;
        self.begin_right(split);
        self.read(nodes)
    }
}

/// A sum of boosted trees, clamped to the range of the training targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ForestColumns", into = "ForestColumns")]
pub struct Forest {
    start: f32,
    bounds: (f32, f32),
    trees: Vec<Tree>,
}

impl Forest {
    /// Creates a forest that adds `trees` to `start` and clamps the sum to `bounds`.
    #[must_use]
    pub fn new(start: f32, bounds: RangeInclusive<f32>, trees: Vec<Tree>) -> Self {
        Self { start, bounds: bounds.into_inner(), trees }
    }

    /// Predicts the target of a row of features.
    #[must_use]
    pub fn predict(&self, bins: &Bins, features: &[f32]) -> f64 {
        let mut placed = [0; FEATURES_MOST];
        bins.place(features, &mut placed);
        let sum: f64 = self.trees.iter().map(|tree| f64::from(tree.value(&placed))).sum();
        let bounds = (f64::from(self.bounds.0), f64::from(self.bounds.1));
        (f64::from(self.start) + sum).max(bounds.0).min(bounds.1)
    }

    /// Checks that no tree splits on a feature without bins.
    #[must_use]
    pub fn fits(&self, bins: &Bins) -> bool {
        let features = bins.features();
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

/// The nodes of a stored forest that were not read yet.
struct NodeColumns {
    below: IntoIter<u8>,
    features: IntoIter<u8>,
    leaves: IntoIter<i32>,
}

impl From<Forest> for ForestColumns {
    fn from(forest: Forest) -> Self {
        let nodes = forest.trees.iter().flat_map(|tree| &tree.nodes);
        let is_leaf = |node: &&Node| node.below == LEAF;
        let leaves = |tree: &Tree| -> Vec<i32> {
            let steps = |node: &Node| (node.value / tree.step).round() as i32;
            tree.nodes.iter().filter(is_leaf).map(steps).collect()
        };
        Self {
            start: forest.start,
            bounds: forest.bounds,
            steps: forest.trees.iter().map(|tree| tree.step).collect(),
            below: nodes.clone().map(|node| node.below).collect(),
            features: nodes.filter(|node| !is_leaf(node)).map(|node| node.feature).collect(),
            leaves: forest.trees.iter().flat_map(leaves).collect(),
        }
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
        let mut nodes = NodeColumns {
            below: columns.below.into_iter(),
            features: columns.features.into_iter(),
            leaves: columns.leaves.into_iter(),
        };
        let tree = |step| {
            let mut tree = Tree::new(step);
            tree.read(&mut nodes).map(|()| tree)
        };
        let trees: Option<Vec<Tree>> = columns.steps.into_iter().map(tree).collect();
        let is_at_end = nodes.below.len() + nodes.features.len() + nodes.leaves.len() == 0;
        let trees =
            trees.filter(|_| is_at_end).ok_or("expected whole trees of at most 32 leaves")?;
        Ok(Self::new(columns.start, low..=high, trees))
    }
}

#[cfg(test)]
mod tests;
