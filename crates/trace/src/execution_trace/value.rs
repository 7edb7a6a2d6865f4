//! Inputs and outputs of an operator.

use crate::store::StringId;

/// An input or an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Type as the file has it, such as `Tensor(float)` or `GenericList[Int,Int]`.
    pub kind: StringId,
    pub value: TraceValue,
}

/// A value of any type. Texts such as `<Stream>` stand for what cannot be written down.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceValue {
    None,
    Bool(bool),
    Int(i64),
    /// An integer greater than `i64::MAX`, such as an address.
    Unsigned(u64),
    /// A real number; may be infinite or NaN.
    Float(f64),
    /// A text, a device, a data type.
    Text(StringId),
    Tensor(Box<NodeTensor>),
    /// A list or a tuple; PyTorch cuts lists off after 4096 elements.
    List(Vec<TraceValue>),
}

/// A tensor. Ids are reused after a tensor is freed: what joins a reader to its writer is the last
/// write to the same storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTensor {
    /// Of the tensor object.
    pub id: u64,
    /// Of the memory behind it; 0 for an undefined tensor.
    pub storage: u64,
    /// First element within the storage.
    pub offset: u64,
    pub elements: u64,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Such as `cuda:3`; empty before schema 1.0.1 and for undefined tensors.
    pub device: StringId,
    /// Type of an element, such as `float`, `long int`, `c10::Half`.
    pub dtype: StringId,
    /// Sizes of the dimensions.
    pub shape: Box<[i64]>,
    /// Strides in elements, from schema 1.1.1 on; else empty.
    pub strides: Box<[i64]>,
}

impl TraceValue {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<StringId> {
        match self {
            Self::Text(text) => Some(*text),
            _ => None,
        }
    }

    /// The elements of a list; empty for anything else.
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(values) => values,
            _ => &[],
        }
    }

    /// The tensors in it, also those in lists of lists, in order.
    pub fn tensors(&self) -> Vec<&NodeTensor> {
        match self {
            Self::Tensor(tensor) => vec![tensor],
            Self::List(values) => values.iter().flat_map(Self::tensors).collect(),
            _ => Vec::new(),
        }
    }
}
