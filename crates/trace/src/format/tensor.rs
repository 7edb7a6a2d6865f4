//! The tensors of an operation as traces list them: shapes and element types, no data.

use schema::{Op, Pass, Precision};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    Float,
    BFloat16,
    Long,
}

impl ElementType {
    /// As in Kineto's `Input type`.
    pub fn kineto(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::BFloat16 => "c10::BFloat16",
            Self::Long => "long int",
        }
    }

    /// As in an execution trace's `types`.
    pub fn execution_trace(self) -> &'static str {
        match self {
            Self::Float => "Tensor(float)",
            Self::BFloat16 => "Tensor(c10::BFloat16)",
            Self::Long => "Tensor(long)",
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float => 4,
            Self::BFloat16 => 2,
            Self::Long => 8,
        }
    }
}

/// A tensor argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorArgument {
    pub shape: Vec<usize>,
    pub element: ElementType,
}

/// The main arguments, shaped by [`Op::shapes`].
pub fn inputs(op: &Op) -> Vec<TensorArgument> {
    let element = |position| match op {
        Op::InputDist { .. } | Op::EmbeddingForward { .. } => ElementType::Long,
        Op::EmbeddingBackward { .. } if position == 0 => ElementType::Long,
        Op::Gemm { precision: Precision::Bf16, .. } => ElementType::BFloat16,
        _ => ElementType::Float,
    };
    let shapes = op.shapes().into_iter().enumerate();
    shapes.map(|(position, shape)| TensorArgument { shape, element: element(position) }).collect()
}

/// The results whose shape follows from the operation's own; empty where it does not, and where the
/// operation only updates parameters in place.
pub fn outputs(op: &Op) -> Vec<TensorArgument> {
    let shape = match *op {
        Op::InputWait { batch_size } | Op::Loss { batch_size } => vec![batch_size],
        Op::EmbeddingForward { pooled_elements, .. } => vec![pooled_elements],
        Op::Gemm { m, n, .. } => vec![m, n],
        Op::Pack { elements } | Op::ReluBackward { elements } | Op::AllReduce { elements } => {
            vec![elements]
        }
        Op::Cross { elements, .. } | Op::Concat { elements, pass: Pass::Forward } => {
            vec![elements]
        }
        Op::Interaction { batch_size, vectors, dim, pass: Pass::Backward } => {
            vec![batch_size, vectors, dim]
        }
        // The width of the forward result depends on the triangle, which the operation does not
        // carry, nor does the split of a concatenation; what the distributions deliver depends on
        // the other ranks.
        Op::Interaction { pass: Pass::Forward, .. }
        | Op::Concat { pass: Pass::Backward, .. }
        | Op::InputDist { .. }
        | Op::OutputDist { .. }
        | Op::GradientDist { .. }
        | Op::EmbeddingBackward { .. }
        | Op::DenseUpdate { .. } => return Vec::new(),
    };
    vec![TensorArgument { shape, element: ElementType::Float }]
}

/// Row-major strides, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}
