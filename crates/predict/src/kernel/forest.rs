//! Boosted trees in memory and on disk: bits in preorder, about a hundred bytes for a tree of 31
//! leaves.

use super::bits::{Reader, Writer};

/// Bits of a leaf: a whole number of steps of its tree.
const LEAF_BITS: u32 = 10;
/// The largest step number; the smallest is its negative.
pub const LEAF_MOST: i32 = (1 << (LEAF_BITS - 1)) - 1;
/// Bits of a feature's number.
const FEATURE_BITS: u32 = 6;
/// Bits of a bin.
const BIN_BITS: u32 = 8;
/// What no bin is up to: a leaf leads to itself, however often it is asked.
const LEAF: i16 = -1;
/// Most nodes of a tree that is read.
const NODES: usize = 1 << 12;
/// Trees that are walked through at once: each waits for its own memory alone.
const ABREAST: usize = 8;

/// A split or a leaf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    feature: u8,
    /// Rows up to this bin go to the next node, all others to `right`.
    bin: i16,
    right: u16,
    value: f32,
}

impl Node {
    /// A split whose right side is not known yet.
    pub fn split(feature: u8, bin: u8) -> Self {
        Self { feature, bin: i16::from(bin), right: 0, value: 0.0 }
    }

    /// A leaf.
    pub fn leaf(value: f32) -> Self {
        Self { feature: 0, bin: LEAF, right: 0, value }
    }
}

/// Nodes in preorder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// The size of a leaf's steps.
    pub step: f32,
    /// Splits on the longest way to a leaf.
    depth: usize,
    nodes: Vec<Node>,
}

impl Tree {
    /// Without nodes, whose leaves are multiples of `step`.
    pub fn new(step: f32) -> Self {
        Self { step, depth: 0, nodes: Vec::new() }
    }

    /// Adds the next node in preorder, so many splits below the first, and gives its number.
    pub fn push(&mut self, node: Node, depth: usize) -> usize {
        let number = self.nodes.len();
        let right = if node.bin == LEAF { number as u16 } else { 0 };
        self.nodes.push(Node { right, ..node });
        self.depth = self.depth.max(depth);
        number
    }

    /// Says that the right side of `split` comes next.
    pub fn begin_right(&mut self, split: usize) {
        self.nodes[split].right = self.nodes.len() as u16;
    }

    /// The value of the leaf that a row of bins falls into.
    pub fn value(&self, bins: &[u8]) -> f32 {
        let mut at = 0;
        for _ in 0..self.depth {
            at = self.next(at, bins);
        }
        self.nodes[at].value
    }

    /// The node after one; a leaf's is itself.
    #[inline]
    fn next(&self, at: usize, bins: &[u8]) -> usize {
        let node = self.nodes[at];
        let is_left = i16::from(bins[node.feature as usize]) <= node.bin;
        if is_left { at + 1 } else { node.right as usize }
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
        let mut sum = 0.0;
        let groups = self.trees.chunks_exact(ABREAST);
        let rest = groups.remainder();
        for group in groups {
            let mut at = [0; ABREAST];
            let depth = group.iter().map(|tree| tree.depth).max().unwrap_or(0);
            for _ in 0..depth {
                for (at, tree) in at.iter_mut().zip(group) {
                    *at = tree.next(*at, bins);
                }
            }
            for (at, tree) in at.iter().zip(group) {
                sum += f64::from(tree.nodes[*at].value);
            }
        }
        sum += rest.iter().map(|tree| f64::from(tree.value(bins))).sum::<f64>();
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
                let is_leaf = node.bin == LEAF;
                out.bits(u32::from(is_leaf), 1);
                if is_leaf {
                    let steps = (node.value / tree.step).round() as i32 + LEAF_MOST;
                    out.bits(steps as u32, LEAF_BITS);
                } else {
                    out.bits(u32::from(node.feature), FEATURE_BITS);
                    out.bits(node.bin as u32, BIN_BITS);
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
    // Splits whose left side is being read, and how deep the next node lies.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut depth = 0;
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
            open.push((tree.push(Node::split(feature, bin), depth), depth));
            depth += 1;
            continue;
        }
        let steps = input.bits(LEAF_BITS)? as i32 - LEAF_MOST;
        tree.push(Node::leaf(steps as f32 * tree.step), depth);
        let Some((split, above)) = open.pop() else { return Some(tree) };
        tree.begin_right(split);
        depth = above + 1;
    }
}
