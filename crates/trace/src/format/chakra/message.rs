//! Defines the protobuf messages of Chakra's `et_def.proto`, with their field numbers.

use prost::{Message, Oneof};

/// The first message of a file, which describes the trace as a whole.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<Attribute>,
}

/// A node of the graph, which is one operation.
#[derive(Clone, PartialEq, Message)]
pub struct ChakraNode {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Number of the node's kind, which [`ChakraNode::kind`] converts.
    #[prost(int32, tag = "3")]
    pub kind_number: i32,
    /// Ids of the nodes that must have started before this node, such as its callers.
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    /// Ids of the nodes that must have finished before this node starts.
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    /// Time at which the node starts.
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

/// The inputs or outputs of a node. Each list in the message is a text in Python's notation.
#[derive(Clone, PartialEq, Message)]
pub struct Io {
    #[prost(string, tag = "1")]
    pub values: String,
    #[prost(string, tag = "2")]
    pub shapes: String,
    #[prost(string, tag = "3")]
    pub types: String,
}

/// A named value of any of the attribute types.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Explanation for human readers, which is mostly empty.
    #[prost(string, tag = "2")]
    pub documentation: String,
    #[prost(
        oneof = "AttributeValue",
        tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, \
                25, 26, 27, 28, 29, 30, 31, 32"
    )]
    pub value: Option<AttributeValue>,
}

/// Value of an attribute, which has one of fifteen types or is a list of one of them.
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

/// An attribute value that is a list of protobuf `double` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Doubles {
    #[prost(double, repeated, tag = "1")]
    pub values: Vec<f64>,
}

/// An attribute value that is a list of protobuf `float` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Floats {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

/// An attribute value that is a list of protobuf `int32` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Int32s {
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// An attribute value that is a list of protobuf `int64` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Int64s {
    #[prost(int64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// An attribute value that is a list of protobuf `uint32` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Uint32s {
    #[prost(uint32, repeated, tag = "1")]
    pub values: Vec<u32>,
}

/// An attribute value that is a list of protobuf `uint64` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Uint64s {
    #[prost(uint64, repeated, tag = "1")]
    pub values: Vec<u64>,
}

/// An attribute value that is a list of protobuf `sint32` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Sint32s {
    #[prost(sint32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// An attribute value that is a list of protobuf `sint64` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Sint64s {
    #[prost(sint64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// An attribute value that is a list of protobuf `fixed32` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Fixed32s {
    #[prost(fixed32, repeated, tag = "1")]
    pub values: Vec<u32>,
}

/// An attribute value that is a list of protobuf `fixed64` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Fixed64s {
    #[prost(fixed64, repeated, tag = "1")]
    pub values: Vec<u64>,
}

/// An attribute value that is a list of protobuf `sfixed32` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Sfixed32s {
    #[prost(sfixed32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// An attribute value that is a list of protobuf `sfixed64` numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Sfixed64s {
    #[prost(sfixed64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// An attribute value that is a list of protobuf `bool` values.
#[derive(Clone, PartialEq, Message)]
pub struct Bools {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

/// An attribute value that is a list of protobuf `string` values.
#[derive(Clone, PartialEq, Message)]
pub struct StringList {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

/// An attribute value that is a list of protobuf `bytes` values.
#[derive(Clone, PartialEq, Message)]
pub struct ByteTexts {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub values: Vec<Vec<u8>>,
}
