//! Stores the execution trace of one rank in memory, independently of file formats. The nesting is
//! derived separately, by [`NodeForest`](super::NodeForest).

use std::collections::BTreeMap;

use super::collective::NodeCollective;
use super::node::{Node, ProcessGroup};
use crate::store::{Losses, StringId, Strings, TraceOrigin};

/// One rank's execution trace: the nodes of one file, with all texts interned in `strings`.
#[derive(Clone, Debug, Default)]
pub struct ExecutionTrace {
    /// The rank is taken from the collectives, else from the file's name, else from the file's
    /// position among the files.
    pub rank: u32,
    /// The file from which the trace was read, with an empty path for a text that was never in a
    /// file.
    pub origin: TraceOrigin,
    /// Version of the schema, such as `1.1.1-chakra.0.0.4`, or an empty string if the file has
    /// none.
    pub schema: String,
    pub pid: Option<u64>,
    /// Start of the recording as `YYYY-MM-DD HH:MM:SS` in the writer's time zone.
    pub time: String,
    /// Start of the recording, in milliseconds of the host's monotonic clock.
    pub start_ms: Option<i64>,
    /// End of the recording on the same clock, or `None` if the recording was cut off.
    pub finish_ms: Option<i64>,
    pub strings: Strings,
    /// Nodes in file order, in which children come before their parent. Node ids are unique.
    pub nodes: Vec<Node>,
    pub groups: Vec<ProcessGroup>,
    pub losses: Losses,
}

impl ExecutionTrace {
    /// Returns the name of a node.
    pub fn name(&self, node: &Node) -> &str {
        self.text(node.name)
    }

    /// Returns the text of an interned id.
    pub fn text(&self, id: StringId) -> &str {
        self.strings.get(id)
    }

    /// Groups the nodes by thread, in order of execution. Root nodes are left out.
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

    /// Whether a node represents the process or a thread instead of work.
    pub fn is_root(&self, node: &Node) -> bool {
        let name = self.name(node);
        let kind = name.strip_prefix("[pytorch|profiler|").and_then(|rest| rest.split_once('|'));
        matches!(kind, Some((_, "process]" | "thread]")))
    }

    /// Whether a node is an operator. Operators are nodes with a schema that are not `c10d`
    /// wrappers, recorded collectives, and Triton kernels.
    ///
    /// # Source
    /// `Node.is_op` of facebookresearch/param, `et_replay`.
    pub fn is_operator(&self, node: &Node) -> bool {
        let name = self.name(node);
        let has_schema = !self.text(node.op_schema).is_empty() && !name.starts_with("c10d::");
        name == NodeCollective::RECORD || has_schema || self.text(node.kernel_backend) == "triton"
    }
}
