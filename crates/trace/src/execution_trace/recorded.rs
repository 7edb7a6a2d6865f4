//! The execution trace of one rank in memory. Knows no file format and no nesting.

use std::collections::BTreeMap;

use super::collective::NodeCollective;
use super::node::{Node, ProcessGroup};
use crate::store::{Losses, StringId, Strings, TraceOrigin};

/// One rank's execution trace: the nodes of one file.
#[derive(Clone, Debug, Default)]
pub struct ExecutionTrace {
    /// The rank: from the collectives, else the file's name, else its place among the files.
    pub rank: u32,
    /// Where it came from; empty for a text that was never a file.
    pub origin: TraceOrigin,
    /// Such as `1.1.1-chakra.0.0.4`; empty if the file has none.
    pub schema: String,
    pub pid: Option<u64>,
    /// Begin of the recording, `YYYY-MM-DD HH:MM:SS` in the writer's time zone.
    pub time: String,
    /// Begin of the recording, milliseconds of the host's steady clock.
    pub start_ms: Option<i64>,
    /// End of the recording, milliseconds of the host's steady clock; `None` if it was cut off.
    pub finish_ms: Option<i64>,
    /// Every name and text, once.
    pub strings: Strings,
    /// The nodes, in the order of the file: a node follows those inside it. No id occurs twice.
    pub nodes: Vec<Node>,
    /// The process groups the job wrote down.
    pub groups: Vec<ProcessGroup>,
    /// What could not be read.
    pub losses: Losses,
}

impl ExecutionTrace {
    /// The name of a node.
    pub fn name(&self, node: &Node) -> &str {
        self.text(node.name)
    }

    /// A text by its id.
    pub fn text(&self, id: StringId) -> &str {
        self.strings.get(id)
    }

    /// The nodes of each thread but the roots, in order of execution.
    pub fn threads(&self) -> BTreeMap<u64, Vec<u32>> {
        let mut threads: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if !self.is_root(node) {
                threads.entry(node.thread).or_default().push(at as u32);
            }
        }
        for nodes in threads.values_mut() {
            nodes.sort_by_key(|at| self.nodes[*at as usize].id);
        }
        threads
    }

    /// Whether a node is a root that stands for the process or a thread, and for no work.
    pub fn is_root(&self, node: &Node) -> bool {
        let name = self.name(node);
        let kind = name.strip_prefix("[pytorch|profiler|").and_then(|rest| rest.split_once('|'));
        matches!(kind, Some((_, "process]" | "thread]")))
    }

    /// Whether a node is an operator: it has a schema and is no communication wrapper, records a
    /// collective, or is a Triton kernel.
    ///
    /// # Source
    /// `Node.is_op` of facebookresearch/param, `et_replay`.
    pub fn is_operator(&self, node: &Node) -> bool {
        let name = self.name(node);
        let has_schema = !self.text(node.op_schema).is_empty() && !name.starts_with("c10d::");
        name == NodeCollective::RECORD || has_schema || self.text(node.kernel_backend) == "triton"
    }
}
