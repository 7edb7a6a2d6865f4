//! The protobuf messages of Chakra's `et_def.proto`, with their field numbers.

use prost::{Message, Oneof};

/// The first message of a file. It describes the trace as a whole.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<Attribute>,
}

/// A node of the graph.
#[derive(Clone, PartialEq, Message)]
pub struct ChakraNode {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Convert it with [`ChakraNode::kind`].
    #[prost(int32, tag = "3")]
    pub kind_number: i32,
    /// Nodes that must have started before: callers.
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    /// Nodes that must have finished before.
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    /// Start of the node.
    #[prost(uint64, tag = "6")]
    pub start_us: u64,
    #[prost(uint64, tag = "7")]
    pub duration_us: u64,
    #[prost(message, optional, tag = "8")]
    pub inputs: Option<Io>,
    #[prost(message, optional, tag = "9")]
    pub outputs: Option<Io>,
    #[prost(message, repeated, tag = "10")]
    pub attributes: Vec<Attribute>,
}

/// Inputs or outputs of a node. Lists are texts in Python's notation.
#[derive(Clone, PartialEq, Message)]
pub struct Io {
    #[prost(string, tag = "1")]
    pub values: String,
    #[prost(string, tag = "2")]
    pub shapes: String,
    #[prost(string, tag = "3")]
    pub types: String,
}

/// A named value of any type.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Explanation for humans; mostly empty.
    #[prost(string, tag = "2")]
    pub documentation: String,
    #[prost(
        oneof = "AttributeValue",
        tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, \
                25, 26, 27, 28, 29, 30, 31, 32"
    )]
    pub value: Option<AttributeValue>,
}

/// Value of an attribute: one of fifteen types, or a list of one.
#[derive(Clone, PartialEq, Oneof)]
pub enum AttributeValue {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(message, tag = "4")]
    DoubleList(Doubles),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(message, tag = "6")]
    FloatList(Floats),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(message, tag = "8")]
    Int32List(Int32s),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(message, tag = "10")]
    Int64List(Int64s),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(message, tag = "12")]
    Uint32List(Uint32s),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(message, tag = "14")]
    Uint64List(Uint64s),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(message, tag = "16")]
    Sint32List(Sint32s),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(message, tag = "18")]
    Sint64List(Sint64s),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(message, tag = "20")]
    Fixed32List(Fixed32s),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(message, tag = "22")]
    Fixed64List(Fixed64s),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(message, tag = "24")]
    Sfixed32List(Sfixed32s),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(message, tag = "26")]
    Sfixed64List(Sfixed64s),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(message, tag = "28")]
    BoolList(Bools),
    #[prost(string, tag = "29")]
    Text(String),
    #[prost(message, tag = "30")]
    TextList(StringList),
    #[prost(bytes = "vec", tag = "31")]
    Bytes(Vec<u8>),
    #[prost(message, tag = "32")]
    BytesList(ByteTexts),
}

/// A list of `double`.
#[derive(Clone, PartialEq, Message)]
pub struct Doubles {
    #[prost(double, repeated, tag = "1")]
    pub values: Vec<f64>,
}

/// A list of `float`.
#[derive(Clone, PartialEq, Message)]
pub struct Floats {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

/// A list of `int32`.
#[derive(Clone, PartialEq, Message)]
pub struct Int32s {
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// A list of `int64`.
#[derive(Clone, PartialEq, Message)]
pub struct Int64s {
    #[prost(int64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// A list of `uint32`.
#[derive(Clone, PartialEq, Message)]
pub struct Uint32s {
    #[prost(uint32, repeated, tag = "1")]
    pub values: Vec<u32>,
}

/// A list of `uint64`.
#[derive(Clone, PartialEq, Message)]
pub struct Uint64s {
    #[prost(uint64, repeated, tag = "1")]
    pub values: Vec<u64>,
}

/// A list of `sint32`.
#[derive(Clone, PartialEq, Message)]
pub struct Sint32s {
    #[prost(sint32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// A list of `sint64`.
#[derive(Clone, PartialEq, Message)]
pub struct Sint64s {
    #[prost(sint64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// A list of `fixed32`.
#[derive(Clone, PartialEq, Message)]
pub struct Fixed32s {
    #[prost(fixed32, repeated, tag = "1")]
    pub values: Vec<u32>,
}

/// A list of `fixed64`.
#[derive(Clone, PartialEq, Message)]
pub struct Fixed64s {
    #[prost(fixed64, repeated, tag = "1")]
    pub values: Vec<u64>,
}

/// A list of `sfixed32`.
#[derive(Clone, PartialEq, Message)]
pub struct Sfixed32s {
    #[prost(sfixed32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// A list of `sfixed64`.
#[derive(Clone, PartialEq, Message)]
pub struct Sfixed64s {
    #[prost(sfixed64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// A list of `bool`.
#[derive(Clone, PartialEq, Message)]
pub struct Bools {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

/// A list of `string`.
#[derive(Clone, PartialEq, Message)]
pub struct StringList {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

/// A list of `bytes`.
#[derive(Clone, PartialEq, Message)]
pub struct ByteTexts {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub values: Vec<Vec<u8>>,
}
