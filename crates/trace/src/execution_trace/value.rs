//! Defines the inputs and outputs of an operator, as values of PyTorch's types.

use crate::store::StringId;

/// One input or output of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Type as written in the file, such as `Tensor(float)` or `GenericList[Int,Int]`.
    pub kind: StringId,
    pub value: TraceValue,
}

/// A value of any of PyTorch's types. A placeholder text such as `<Stream>` represents a value that
/// PyTorch cannot serialize.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceValue {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`, such as an address.
    Unsigned(u64),
    /// A number that may be infinite or NaN.
    Float(f64),
    /// A text. Devices and data types are texts too.
    Text(StringId),
    Tensor(Box<NodeTensor>),
    /// A list or a tuple. PyTorch truncates lists after 4096 elements.
    List(Vec<TraceValue>),
}

/// A tensor of an operator. PyTorch reuses the ids of a freed tensor. The operator that wrote a
/// tensor is therefore the last one before the reader that wrote to the same storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTensor {
    /// Id of the tensor object.
    pub id: u64,
    /// Id of the memory behind the tensor, or 0 for an undefined tensor.
    pub storage: u64,
    /// Index of the first element within the storage.
    pub offset: u64,
    pub elements: u64,
    /// Size of one element in bytes.
    pub element_bytes: u64,
    /// Device such as `cuda:3`, or an empty text for undefined tensors and before schema 1.0.1.
    pub device: StringId,
    /// Element type, such as `float`, `long int` or `c10::Half`.
    pub dtype: StringId,
    pub shape: Box<[i64]>,
    /// Strides in elements. Schemas before 1.1.1 do not record strides, so the list is empty then.
    pub strides: Box<[i64]>,
}

impl TraceValue {
    /// Returns the tensor, or `None` if the value has another type.
    pub fn tensor(&self) -> Option<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns the integer, or `None` if the value has another type.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Returns the text, or `None` if the value has another type.
    pub fn text(&self) -> Option<StringId> {
        match self {
            Self::Text(text) => Some(*text),
            _ => None,
        }
    }

    /// Returns the elements of a list, or an empty list for any other value.
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(values) => values,
            _ => &[],
        }
    }

    /// Collects all tensors in the value in order, including tensors in nested lists.
    pub fn tensors(&self) -> Vec<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => vec![tensor],
            Self::List(values) => values.iter().flat_map(Self::tensors).collect(),
            _ => Vec::new(),
        }
    }
}
