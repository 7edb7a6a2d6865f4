//! Inputs and outputs of an operator, as values of PyTorch's types.

use crate::store::StringId;

/// One input or output of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Type as written in the file, such as `Tensor(float)` or `GenericList[Int,Int]`.
    pub kind: StringId,
    pub value: TraceValue,
}

/// A value of any type. Placeholders such as `<Stream>` represent values that PyTorch cannot
/// serialize.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceValue {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`, such as an address.
    Unsigned(u64),
    /// May be infinite or NaN.
    Float(f64),
    /// Also devices and data types.
    Text(StringId),
    Tensor(Box<NodeTensor>),
    /// A list or a tuple. PyTorch cuts lists off after 4096 elements.
    List(Vec<TraceValue>),
}

/// A tensor. Ids are reused after a tensor is freed. To find the writer of a tensor that is read,
/// look for the last write to the same storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTensor {
    /// Identifies the tensor object.
    pub id: u64,
    /// Identifies the memory behind the tensor; 0 for an undefined tensor.
    pub storage: u64,
    /// Index of the first element within the storage.
    pub offset: u64,
    pub elements: u64,
    /// Size of one element, in bytes.
    pub element_bytes: u64,
    /// Such as `cuda:3`; empty before schema 1.0.1 and for undefined tensors.
    pub device: StringId,
    /// Element type, such as `float`, `long int`, `c10::Half`.
    pub dtype: StringId,
    pub shape: Box<[i64]>,
    /// Strides in elements. Recorded since schema 1.1.1; empty before.
    pub strides: Box<[i64]>,
}

impl TraceValue {
    /// Returns the tensor, if the value is one.
    pub fn tensor(&self) -> Option<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns the integer, if the value is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Returns the text, if the value is one.
    pub fn text(&self) -> Option<StringId> {
        match self {
            Self::Text(text) => Some(*text),
            _ => None,
        }
    }

    /// Returns the elements of a list. Empty for any other value.
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(values) => values,
            _ => &[],
        }
    }

    /// Collects all tensors in the value in order, including those in nested lists.
    pub fn tensors(&self) -> Vec<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => vec![tensor],
            Self::List(values) => values.iter().flat_map(Self::tensors).collect(),
            _ => Vec::new(),
        }
    }
}
