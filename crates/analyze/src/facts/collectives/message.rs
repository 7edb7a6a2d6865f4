//! Operation, bytes and bandwidth factors of a collective, from its recorded arguments or its
//! kernel name.

use schema::CellType;
use serde::{Deserialize, Serialize};
use trace::store::{Collective, Trace};

/// Operation of a collective, which decides its bus bandwidth factor.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, CellType,
)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveOperation {
    /// Every rank gets the sum.
    AllReduce,
    /// Every rank sends to every rank.
    AllToAll,
    /// Every rank gets every rank's part.
    AllGather,
    /// Every rank gets its part of the sum.
    ReduceScatter,
    /// Every rank gets one rank's values.
    Broadcast,
    /// One rank gets the sum.
    Reduce,
    /// One rank gets every rank's part.
    Gather,
    /// Every rank gets its part of one rank's values.
    Scatter,
    Barrier,
    /// NCCL's kernel of sends and receives, which all-to-all uses too. The trace does not say for
    /// what it ran.
    SendReceive,
    /// A message between two ranks.
    PointToPoint,
    Other,
}

/// Returns the operation from the name of the collective, such as `allreduce`, or else of its
/// kernel.
pub fn operation(collective: Option<&str>, kernel: &str) -> CollectiveOperation {
    let plain = |text: &str| text.to_ascii_lowercase().replace('_', "");
    let named = collective.map(plain).filter(|name| !name.is_empty());
    if let Some("send" | "recv" | "isend" | "irecv") = named.as_deref() {
        return CollectiveOperation::PointToPoint;
    }
    let name = named.unwrap_or_else(|| plain(kernel));
    // Longer words come first, because `allreduce` contains `reduce`.
    let known = [
        ("allreduce", CollectiveOperation::AllReduce),
        ("crossdevicereduce", CollectiveOperation::AllReduce),
        ("alltoall", CollectiveOperation::AllToAll),
        ("all2all", CollectiveOperation::AllToAll),
        ("allgather", CollectiveOperation::AllGather),
        ("reducescatter", CollectiveOperation::ReduceScatter),
        ("broadcast", CollectiveOperation::Broadcast),
        ("sendrecv", CollectiveOperation::SendReceive),
        ("reduce", CollectiveOperation::Reduce),
        ("gather", CollectiveOperation::Gather),
        ("scatter", CollectiveOperation::Scatter),
        ("barrier", CollectiveOperation::Barrier),
    ];
    let found = known.into_iter().find(|(word, _)| name.contains(word));
    found.map_or(CollectiveOperation::Other, |(_, operation)| operation)
}

/// Returns whether all ranks must send messages of the same size.
pub fn is_of_one_size(operation: CollectiveOperation) -> bool {
    matches!(
        operation,
        CollectiveOperation::AllReduce
            | CollectiveOperation::Broadcast
            | CollectiveOperation::Reduce
    )
}

/// Returns the bytes on the bus per byte of the larger side of a message, among `ranks`.
///
/// # Source
/// nccl-tests, `doc/PERFORMANCE.md`.
pub fn bus_factor(operation: CollectiveOperation, ranks: u32) -> f64 {
    let n = f64::from(ranks.max(1));
    match operation {
        CollectiveOperation::AllReduce => 2.0 * (n - 1.0) / n,
        CollectiveOperation::Broadcast
        | CollectiveOperation::Reduce
        | CollectiveOperation::PointToPoint => 1.0,
        _ => (n - 1.0) / n,
    }
}

/// Returns the bytes of the larger side of a message, or `None` if type or size are unknown.
pub fn bytes(trace: &Trace, collective: &Collective) -> Option<u64> {
    let elements = collective.elements_in.max(collective.elements_out)?;
    elements.checked_mul(element_bytes(trace.strings.get(collective.dtype))?)
}

/// Returns the bytes of an element, given the c10 name of its type.
fn element_bytes(dtype: &str) -> Option<u64> {
    let lower = dtype.to_ascii_lowercase();
    let bytes = match lower.as_str() {
        "double" | "long" | "int64" | "float64" | "complexfloat" => 8,
        "float" | "int" | "int32" | "float32" => 4,
        "half" | "bfloat16" | "short" | "int16" | "float16" | "uint16" => 2,
        "byte" | "char" | "bool" | "int8" | "uint8" | "qint8" | "quint8" => 1,
        "complexdouble" => 16,
        _ if lower.starts_with("float8") => 1,
        _ => return None,
    };
    Some(bytes)
}

/// Parses a list of ranks such as `[0, 1]`; returns `None` if it was truncated or is not a list.
pub fn ranks(text: &str) -> Option<Vec<u32>> {
    let inside = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    inside.split(',').map(|rank| rank.trim().parse().ok()).collect()
}
