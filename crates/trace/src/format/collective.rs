//! Describes the collectives of rowmill's trainer as PyTorch's `record_param_comms` would.

use schema::Op;

/// A collective from the point of view of one rank, with the texts that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenCollective {
    /// Name of the collective in PyTorch's traces.
    pub name: &'static str,
    /// Element type in the spelling of PyTorch's c10 library.
    pub dtype: &'static str,
    /// Number of elements that this rank sends.
    pub elements_in: usize,
    /// Number of elements that this rank receives, if the operation determines it.
    pub elements_out: Option<usize>,
}

/// Describes the collective behind an operation. Returns `None` for operations without
/// communication.
pub fn describe(op: &Op) -> Option<WrittenCollective> {
    let all_to_all = |dtype, elements_in| {
        Some(WrittenCollective { name: "all_to_allv", dtype, elements_in, elements_out: None })
    };
    match *op {
        Op::InputDist { ids } => all_to_all("Long", ids),
        Op::OutputDist { elements } | Op::GradientDist { elements } => {
            all_to_all("Float", elements)
        }
        Op::AllReduce { elements } => Some(WrittenCollective {
            name: "allreduce",
            dtype: "Float",
            elements_in: elements,
            elements_out: Some(elements),
        }),
        _ => None,
    }
}
