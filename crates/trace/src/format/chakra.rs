//! Reads Chakra execution traces (`.et`), which are graphs of operations with times, as protobuf.
//!
//! The file has one metadata message and then one message per node. Each message is preceded by its
//! length. This module decodes nodes and the names of attributes, but it does not interpret the
//! attributes.

mod message;
mod open;

pub use message::{
    Attribute, AttributeValue, Bools, ByteTexts, ChakraNode, Doubles, Fixed32s, Fixed64s, Floats,
    Int32s, Int64s, Io, Sfixed32s, Sfixed64s, Sint32s, Sint64s, StringList, Uint32s, Uint64s,
};

pub use open::read;

use std::path::PathBuf;

use prost::Message;

use crate::Error;
use crate::store::{Loss, Losses, TraceOrigin};

/// A Chakra execution trace, which is the graph of one rank.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The rank is taken from the file's name, else from the file's position among the files.
    pub rank: u32,
    /// The file from which the graph was read, with an empty path for bytes that were never in a
    /// file.
    pub origin: TraceOrigin,
    /// Version of the encoding, such as `0.0.4`, or an empty string if the file has none.
    pub version: String,
    /// Metadata of the file, such as `schema`, `pid`, `time`, `start_ts` and `finish_ts`.
    pub attributes: Vec<Attribute>,
    pub nodes: Vec<ChakraNode>,
    pub losses: Losses,
}

/// The kind of a node, as `et_def.proto` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    Invalid,
    Metadata,
    /// Number 2: a load from remote or slow memory.
    MemoryLoad,
    /// Number 3: a store to remote or slow memory.
    MemoryStore,
    Compute,
    Send,
    Receive,
    Collective,
    Other(i32),
}

/// The kind of a collective, from the attribute `comm_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    AllReduce,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    Broadcast,
    AllToAll,
    ReduceScatter,
    ReduceScatterBlock,
    Barrier,
    Other(u64),
}

impl Graph {
    /// Looks up an attribute of the file by name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        find(&self.attributes, name)
    }
}

impl ChakraNode {
    /// Returns the kind of the node, which [`Self::kind_number`] encodes.
    pub fn kind(&self) -> NodeKind {
        match self.kind_number {
            0 => NodeKind::Invalid,
            1 => NodeKind::Metadata,
            2 => NodeKind::MemoryLoad,
            3 => NodeKind::MemoryStore,
            4 => NodeKind::Compute,
            5 => NodeKind::Send,
            6 => NodeKind::Receive,
            7 => NodeKind::Collective,
            other => NodeKind::Other(other),
        }
    }

    /// Looks up an attribute of the node by name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        find(&self.attributes, name)
    }

    /// Decodes the kind of a collective, or returns `None` for any other node.
    pub fn collective(&self) -> Option<CollectiveKind> {
        let number = self.attribute("comm_type")?.unsigned()?;
        Some(match number {
            0 => CollectiveKind::AllReduce,
            1 => CollectiveKind::Reduce,
            2 => CollectiveKind::AllGather,
            3 => CollectiveKind::Gather,
            4 => CollectiveKind::Scatter,
            5 => CollectiveKind::Broadcast,
            6 => CollectiveKind::AllToAll,
            7 => CollectiveKind::ReduceScatter,
            8 => CollectiveKind::ReduceScatterBlock,
            9 => CollectiveKind::Barrier,
            other => CollectiveKind::Other(other),
        })
    }

    /// Returns how many bytes a collective moves, from the attribute `comm_size` of any integer
    /// type.
    pub fn collective_bytes(&self) -> Option<u64> {
        self.attribute("comm_size")?.unsigned()
    }

    /// Whether the node ran on the host, from the attribute `is_cpu_op`.
    pub fn is_on_host(&self) -> Option<bool> {
        match self.attribute("is_cpu_op")? {
            AttributeValue::Bool(is_on_host) => Some(*is_on_host),
            // Early writers stored a number instead of a boolean.
            other => other.unsigned().map(|number| number != 0),
        }
    }
}

impl AttributeValue {
    /// Returns a non-negative number of any integer type.
    pub fn unsigned(&self) -> Option<u64> {
        match *self {
            Self::Uint32(number) | Self::Fixed32(number) => Some(number.into()),
            Self::Uint64(number) | Self::Fixed64(number) => Some(number),
            Self::Int32(number) | Self::Sint32(number) | Self::Sfixed32(number) => {
                u64::try_from(number).ok()
            }
            Self::Int64(number) | Self::Sint64(number) | Self::Sfixed64(number) => {
                u64::try_from(number).ok()
            }
            _ => None,
        }
    }

    /// Returns the text, or `None` if the value has another type.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads a Chakra execution trace. Messages that cannot be decoded are skipped and counted as
/// losses.
///
/// # Errors
/// [`Error::NotATrace`] if the first message is not valid metadata.
pub fn read_bytes(bytes: &[u8]) -> Result<Graph, Error> {
    let mut graph = Graph::default();
    graph.origin.text_bytes = bytes.len() as u64;
    let refused = |reason: String| Error::NotATrace { path: PathBuf::from("text"), reason };
    let (first, mut at) = message(bytes).map_err(|reason| refused(format!("got {reason}")))?;
    // Protobuf decodes many other files without an error, so empty metadata is rejected too.
    let metadata = message::Metadata::decode(first)
        .ok()
        .filter(|metadata| !metadata.attributes.is_empty() || !metadata.version.is_empty())
        .ok_or_else(|| refused("got a first message that is not metadata".to_owned()))?;
    graph.version = metadata.version;
    graph.attributes = metadata.attributes;
    while at < bytes.len() {
        let (found, length) = match message(&bytes[at..]) {
            Ok(found) => found,
            Err(reason) => {
                graph.losses.count(Loss::Truncated, || format!("byte {at}: {reason}"));
                break;
            }
        };
        match ChakraNode::decode(found) {
            Ok(node) => graph.nodes.push(node),
            Err(error) => graph.losses.count(Loss::BrokenEvent, || {
                format!("byte {at}: expected a node of {} bytes, got {error}", found.len())
            }),
        }
        at += length;
    }
    Ok(graph)
}

/// Returns the first message, and its length including the length prefix. An error describes the
/// actual content of the bytes.
fn message(bytes: &[u8]) -> Result<(&[u8], usize), String> {
    let mut rest = bytes;
    let length = prost::decode_length_delimiter(&mut rest)
        .map_err(|_| format!("no message length in {} bytes", bytes.len()))?;
    let prefix = bytes.len() - rest.len();
    let content = rest.get(..length);
    let missing = || format!("a message of {length} bytes, of which {} exist", rest.len());
    Ok((content.ok_or_else(missing)?, prefix + length))
}

fn find<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a AttributeValue> {
    attributes.iter().find(|attribute| attribute.name == name)?.value.as_ref()
}
