//! Describes the collectives of our trainer as PyTorch's `record_param_comms` would.

use schema::Op;

/// A collective from the point of view of one rank, with the texts to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenCollective {
    /// Name in PyTorch's traces.
    pub name: &'static str,
    /// Element type in c10's spelling.
    pub dtype: &'static str,
    /// Elements this rank sends.
    pub elements_in: usize,
    /// Elements this rank receives, if the operation determines it.
    pub elements_out: Option<usize>,
}

/// Describes the collective behind an operation. `None` for operations without communication.
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
