//! Defines a node as it is serialized in the JSON of an execution trace.

use serde::Serialize;

use crate::format::tensor::{self, TensorArgument};

/// Assigns ids to nodes, tensors and storages, which share one sequence of ids.
#[derive(Debug)]
pub struct IdCounter {
    last: u64,
}

impl IdCounter {
    /// Creates a counter whose first id follows `last`.
    pub fn after(last: u64) -> Self {
        Self { last }
    }

    /// Returns the next unused id.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A serialized node. `ctrl_deps` is the id of the parent node.
#[derive(Debug, Serialize)]
pub struct WrittenNode {
    pub id: u64,
    pub name: String,
    pub ctrl_deps: u64,
    pub inputs: Endpoints,
    pub outputs: Endpoints,
    pub attrs: Vec<Attribute>,
}

/// A tensor as its id, storage id, offset, number of elements, bytes per element, and device.
type TensorTuple = (u64, u64, u64, usize, usize, &'static str);

/// The inputs or outputs of a node. Each list in the JSON has one entry per tensor.
#[derive(Debug, Default, Serialize)]
pub struct Endpoints {
    values: Vec<TensorTuple>,
    shapes: Vec<Vec<usize>>,
    types: Vec<&'static str>,
    strides: Vec<Vec<usize>>,
}

impl Endpoints {
    /// Describes contiguous tensors, each with its own storage.
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

    /// Returns the number of tensors.
    pub fn count(&self) -> usize {
        self.values.len()
    }
}

/// A named and typed value. Schema 1.1.1 stores all fields of a node except inputs and outputs in
/// this form.
#[derive(Debug, Serialize)]
pub struct Attribute {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    value: Scalar,
}

/// The value of an attribute, in the types that rowmill writes.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Scalar {
    Unsigned(u64),
    Signed(i64),
    Text(String),
}

impl Attribute {
    /// Creates an attribute whose type is `uint64`.
    pub fn unsigned(name: &'static str, value: u64) -> Self {
        Self { name, kind: "uint64", value: Scalar::Unsigned(value) }
    }

    /// Creates an attribute whose type is `int64`.
    pub fn signed(name: &'static str, value: i64) -> Self {
        Self { name, kind: "int64", value: Scalar::Signed(value) }
    }

    /// Creates an attribute whose type is `string`.
    pub fn text(name: &'static str, value: &str) -> Self {
        Self { name, kind: "string", value: Scalar::Text(value.to_owned()) }
    }
}
