//! Chakra execution traces, `.et`: a graph of work with times, as protobuf.
//!
//! One message of metadata, then one for each node, each behind its length. Knows the encoding
//! and the names of attributes; draws no conclusion.

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

/// A Chakra execution trace: the graph of one rank.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The rank: from the file's name, else its place among the files.
    pub rank: u32,
    /// Its path; empty for bytes that were never a file.
    pub origin: TraceOrigin,
    /// Version of the encoding, such as `0.0.4`; empty if the file has none.
    pub version: String,
    /// What the file says of itself: `schema`, `pid`, `time`, `start_ts`, `finish_ts`, …
    pub attributes: Vec<Attribute>,
    /// The nodes, in the order of the file.
    pub nodes: Vec<ChakraNode>,
    /// What could not be read.
    pub losses: Losses,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    Invalid,
    Metadata,
    /// 2: a load from remote or slow memory.
    MemoryLoad,
    /// 3: a store to remote or slow memory.
    MemoryStore,
    Compute,
    Send,
    Receive,
    Collective,
    Other(i32),
}

/// What a collective does, attribute `comm_type`.
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
    /// An attribute of the file.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        find(&self.attributes, name)
    }
}

impl ChakraNode {
    /// What it stands for.
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

    /// An attribute of the node.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        find(&self.attributes, name)
    }

    /// What a collective does.
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

    /// Bytes a collective moves, attribute `comm_size`, of whichever integer type.
    pub fn collective_bytes(&self) -> Option<u64> {
        self.attribute("comm_size")?.unsigned()
    }

    /// Whether the node ran on the host, attribute `is_cpu_op`.
    pub fn is_on_host(&self) -> Option<bool> {
        match self.attribute("is_cpu_op")? {
            AttributeValue::Bool(is_on_host) => Some(*is_on_host),
            // Early writers used a number.
            other => other.unsigned().map(|number| number != 0),
        }
    }
}

impl AttributeValue {
    /// A number that is not negative, of whichever integer type.
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

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads a Chakra execution trace. A message that cannot be decoded is skipped and counted.
///
/// # Errors
/// [`Error::NotATrace`] if the first message is no metadata.
pub fn read_bytes(bytes: &[u8]) -> Result<Graph, Error> {
    let mut graph = Graph::default();
    graph.origin.text_bytes = bytes.len() as u64;
    let refused = |reason: String| Error::NotATrace { path: PathBuf::from("text"), reason };
    let (first, mut at) = message(bytes).map_err(|reason| refused(format!("got {reason}")))?;
    let metadata = message::Metadata::decode(first)
        .ok()
        .filter(|metadata| !metadata.attributes.is_empty() || !metadata.version.is_empty())
        .ok_or_else(|| refused("got a first message that is no metadata".to_owned()))?;
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

/// The first message, and its length with that of its length; why there is none.
fn message(bytes: &[u8]) -> Result<(&[u8], usize), String> {
    let mut rest = bytes;
    let length = prost::decode_length_delimiter(&mut rest)
        .map_err(|_| format!("no length of a message in {} bytes", bytes.len()))?;
    let prefix = bytes.len() - rest.len();
    let found = rest.get(..length);
    let missing = || format!("a message of {length} bytes, of which {} exist", rest.len());
    Ok((found.ok_or_else(missing)?, prefix + length))
}

fn find<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a AttributeValue> {
    attributes.iter().find(|attribute| attribute.name == name)?.value.as_ref()
}
