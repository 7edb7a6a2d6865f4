//! One node as the schema lays it out.

use serde::Serialize;

use crate::format::tensor::{self, TensorArgument};

/// Nodes, tensors and storages take their ids from one counter.
#[derive(Debug)]
pub struct IdCounter {
    last: u64,
}

impl IdCounter {
    /// Ids greater than `last`.
    pub fn after(last: u64) -> Self {
        Self { last }
    }

    /// A new id.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A node; `ctrl_deps` is its parent.
#[derive(Debug, Serialize)]
pub struct WrittenNode {
    pub id: u64,
    pub name: String,
    pub ctrl_deps: u64,
    pub inputs: Endpoints,
    pub outputs: Endpoints,
    pub attrs: Vec<Attribute>,
}

/// Tensor id, storage id, offset, elements, bytes per element, device.
type TensorTuple = (u64, u64, u64, usize, usize, &'static str);

/// Arguments or results, one entry per tensor in each list.
#[derive(Debug, Default, Serialize)]
pub struct Endpoints {
    values: Vec<TensorTuple>,
    shapes: Vec<Vec<usize>>,
    types: Vec<&'static str>,
    strides: Vec<Vec<usize>>,
}

impl Endpoints {
    /// Contiguous tensors, each with a storage of its own.
    pub fn new(tensors: &[TensorArgument], ids: &mut IdCounter) -> Self {
        let mut endpoints = Self::default();
        for tensor in tensors {
            let elements = tensor.shape.iter().product();
            let (own, storage) = (ids.next(), ids.next());
            endpoints.values.push((own, storage, 0, elements, tensor.element.bytes(), "cpu"));
            endpoints.types.push(tensor.element.execution_trace());
            endpoints.strides.push(tensor::strides(&tensor.shape));
            endpoints.shapes.push(tensor.shape.clone());
        }
        endpoints
    }

    /// How many tensors.
    pub fn count(&self) -> usize {
        self.values.len()
    }
}

/// A typed name and value.
#[derive(Debug, Serialize)]
pub struct Attribute {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    value: Scalar,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Scalar {
    Unsigned(u64),
    Signed(i64),
    Text(String),
}

impl Attribute {
    /// Of type `uint64`.
    pub fn unsigned(name: &'static str, value: u64) -> Self {
        Self { name, kind: "uint64", value: Scalar::Unsigned(value) }
    }

    /// Of type `int64`.
    pub fn signed(name: &'static str, value: i64) -> Self {
        Self { name, kind: "int64", value: Scalar::Signed(value) }
    }

    /// Of type `string`.
    pub fn text(name: &'static str, value: &str) -> Self {
        Self { name, kind: "string", value: Scalar::Text(value.to_owned()) }
    }
}
