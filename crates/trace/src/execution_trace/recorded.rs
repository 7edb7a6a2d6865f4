//! The execution trace of one rank in memory, independent of file formats. Nesting is derived
//! separately, by [`NodeForest`](super::NodeForest).

use std::collections::BTreeMap;

use super::collective::NodeCollective;
use super::node::{Node, ProcessGroup};
use crate::store::{Losses, StringId, Strings, TraceOrigin};

/// One rank's execution trace: the nodes of one file, with all texts interned in `strings`.
#[derive(Clone, Debug, Default)]
pub struct ExecutionTrace {
    /// Taken from the collectives, else from the file's name, else from its position among the
    /// files.
    pub rank: u32,
    /// Source file; empty for a text that was never in a file.
    pub origin: TraceOrigin,
    /// Such as `1.1.1-chakra.0.0.4`; empty if the file has none.
    pub schema: String,
    pub pid: Option<u64>,
    /// Start of the recording, `YYYY-MM-DD HH:MM:SS` in the writer's time zone.
    pub time: String,
    /// Start of the recording, in milliseconds of the host's monotonic clock.
    pub start_ms: Option<i64>,
    /// End of the recording on the same clock; `None` if the recording was cut off.
    pub finish_ms: Option<i64>,
    pub strings: Strings,
    /// In file order: children come before their parent. Ids are unique.
    pub nodes: Vec<Node>,
    pub groups: Vec<ProcessGroup>,
    pub losses: Losses,
}

impl ExecutionTrace {
    /// Returns the name of a node.
    pub fn name(&self, node: &Node) -> &str {
        self.text(node.name)
    }

    /// Looks up an interned text.
    pub fn text(&self, id: StringId) -> &str {
        self.strings.get(id)
    }

    /// Groups the nodes by thread, in order of execution. The roots are left out.
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

    /// Whether a node only stands for the process or a thread, and not for work.
    pub fn is_root(&self, node: &Node) -> bool {
        let name = self.name(node);
        let kind = name.strip_prefix("[pytorch|profiler|").and_then(|rest| rest.split_once('|'));
        matches!(kind, Some((_, "process]" | "thread]")))
    }

    /// Whether a node is an operator. Three kinds qualify: nodes with a schema that are not `c10d`
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
