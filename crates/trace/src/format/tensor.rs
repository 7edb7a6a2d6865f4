//! Lists the tensors of an operation as traces do, with shapes and element types but without data.

use schema::{Op, Pass, Precision};

/// Element type of a tensor, with its names in the trace formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    Float,
    BFloat16,
    Long,
}

impl ElementType {
    /// Returns the name that Kineto uses in `Input type`.
    pub fn kineto(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::BFloat16 => "c10::BFloat16",
            Self::Long => "long int",
        }
    }

    /// Returns the name that an execution trace uses in `types`.
    pub fn execution_trace(self) -> &'static str {
        match self {
            Self::Float => "Tensor(float)",
            Self::BFloat16 => "Tensor(c10::BFloat16)",
            Self::Long => "Tensor(long)",
        }
    }

    /// Returns the size of an element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float => 4,
            Self::BFloat16 => 2,
            Self::Long => 8,
        }
    }
}

/// Element type and shape of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorArgument {
    pub shape: Vec<usize>,
    pub element: ElementType,
}

/// Lists the main inputs of an operation, with shapes from [`Op::shapes`].
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

/// Lists the outputs whose shape follows from the operation itself. The list is empty for other
/// operations, and for operations that only update parameters in place.
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
        // The results of the following operations have shapes that do not follow from the operation
        // itself. The width of an interaction depends on the triangle that is used, a concatenation
        // may be split anywhere, and the results of distributions depend on the other ranks.
        // `EmbeddingBackward` and `DenseUpdate` update parameters in place.
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

/// Computes row-major strides in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}
