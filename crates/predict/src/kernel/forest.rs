//! Boosted trees as they are asked and as they are stored: bits in preorder, about a hundred bytes
//! for a tree of 31 leaves.

use super::bits::{Reader, Writer};

/// Bits of a leaf: a whole number of steps of its tree.
const LEAF_BITS: u32 = 10;
/// The largest step number; the smallest is its negative.
pub const LEAF_MOST: i32 = (1 << (LEAF_BITS - 1)) - 1;
/// Bits of a feature's number.
const FEATURE_BITS: u32 = 6;
/// Bits of a bin.
const BIN_BITS: u32 = 8;
/// The feature of a leaf.
const LEAF: u8 = u8::MAX;
/// Most nodes of a tree that is read.
const NODES: usize = 1 << 12;

/// A split or a leaf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    feature: u8,
    /// Rows up to this bin go to the next node, all others to `right`.
    bin: u8,
    right: u16,
    value: f32,
}

impl Node {
    /// A split whose right side is not known yet.
    pub fn split(feature: u8, bin: u8) -> Self {
        Self { feature, bin, right: 0, value: 0.0 }
    }

    /// A leaf.
    pub fn leaf(value: f32) -> Self {
        Self { feature: LEAF, bin: 0, right: 0, value }
    }
}

/// Nodes in preorder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// The size of a leaf's steps.
    pub step: f32,
    nodes: Vec<Node>,
}

impl Tree {
    /// Without nodes, whose leaves are multiples of `step`.
    pub fn new(step: f32) -> Self {
        Self { step, nodes: Vec::new() }
    }

    /// Adds the next node in preorder and gives its number.
    pub fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Says that the right side of `split` comes next.
    pub fn begin_right(&mut self, split: usize) {
        self.nodes[split].right = self.nodes.len() as u16;
    }

    /// The value of the leaf that a row of bins falls into.
    #[inline]
    pub fn value(&self, bins: &[u8]) -> f32 {
        let mut at = 0;
        loop {
            let node = self.nodes[at];
            if node.feature == LEAF {
                return node.value;
            }
            let is_left = bins[node.feature as usize] <= node.bin;
            at = if is_left { at + 1 } else { node.right as usize };
        }
    }
}

/// A sum of trees, kept within what was seen in training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forest {
    /// What the trees add to.
    pub start: f32,
    /// The least and the most that a prediction may be.
    pub bounds: (f32, f32),
    /// The trees, in the order they were grown.
    pub trees: Vec<Tree>,
}

impl Forest {
    /// What is predicted for a row of bins.
    #[must_use]
    pub fn predict(&self, bins: &[u8]) -> f64 {
        let sum: f64 = self.trees.iter().map(|tree| f64::from(tree.value(bins))).sum();
        let bounds = (f64::from(self.bounds.0), f64::from(self.bounds.1));
        (f64::from(self.start) + sum).max(bounds.0).min(bounds.1)
    }

    /// Appends all trees.
    pub fn write(&self, out: &mut Writer) {
        for value in [self.start, self.bounds.0, self.bounds.1] {
            out.float(value);
        }
        out.bits(self.trees.len() as u32, 16);
        for tree in &self.trees {
            out.float(tree.step);
            for node in &tree.nodes {
                let is_leaf = node.feature == LEAF;
                out.bits(u32::from(is_leaf), 1);
                if is_leaf {
                    let steps = (node.value / tree.step).round() as i32 + LEAF_MOST;
                    out.bits(steps as u32, LEAF_BITS);
                } else {
                    out.bits(u32::from(node.feature), FEATURE_BITS);
                    out.bits(u32::from(node.bin), BIN_BITS);
                }
            }
        }
    }

    /// Reads what [`Forest::write`] wrote; `None` where the bits are no forest on `features`.
    #[must_use]
    pub fn read(input: &mut Reader<'_>, features: usize) -> Option<Self> {
        let mut float = || input.float().filter(|value| value.is_finite());
        let (start, bounds) = (float()?, (float()?, float()?));
        let count = input.bits(16)?;
        let trees = (0..count).map(|_| read_tree(input, features)).collect::<Option<_>>()?;
        (bounds.0 <= bounds.1).then_some(Self { start, bounds, trees })
    }
}

fn read_tree(input: &mut Reader<'_>, features: usize) -> Option<Tree> {
    let mut tree = Tree::new(input.float().filter(|step| step.is_finite())?);
    // Splits whose left side is being read.
    let mut open = Vec::new();
    loop {
        if tree.nodes.len() > NODES {
            return None;
        }
        if input.bits(1)? == 0 {
            let feature = input.bits(FEATURE_BITS)? as u8;
            let bin = input.bits(BIN_BITS)? as u8;
            if usize::from(feature) >= features {
                return None;
            }
            open.push(tree.push(Node::split(feature, bin)));
            continue;
        }
        let steps = input.bits(LEAF_BITS)? as i32 - LEAF_MOST;
        tree.push(Node::leaf(steps as f32 * tree.step));
        let Some(split) = open.pop() else { return Some(tree) };
        tree.begin_right(split);
    }
}
