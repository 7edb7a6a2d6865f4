//! Which operations are collectives, and what PyTorch's `record_param_comms` would say of them.

use schema::Op;

/// A collective as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenCollective {
    /// PyTorch's name of it.
    pub name: &'static str,
    /// Type of the elements, in c10's words.
    pub dtype: &'static str,
    /// Elements this rank gives.
    pub elements_in: usize,
    /// Elements this rank gets, where the operation knows.
    pub elements_out: Option<usize>,
}

/// The collective behind an operation, or `None` where the rank works alone.
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
