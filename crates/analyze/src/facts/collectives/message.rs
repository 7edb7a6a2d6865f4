//! Derives the operation, bytes and bandwidth factor of a collective from its recorded arguments or
//! its kernel name.

use schema::CellType;
use serde::{Deserialize, Serialize};
use trace::store::{Collective, Trace};

/// Operation of a collective, which decides the factor of its bus bandwidth.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, CellType,
)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveOperation {
    /// Every rank receives the sum of all ranks' values.
    AllReduce,
    /// Every rank sends a part of its values to every rank.
    AllToAll,
    /// Every rank receives the parts of all ranks.
    AllGather,
    /// Every rank receives its own part of the sum.
    ReduceScatter,
    /// Every rank receives the values of one rank.
    Broadcast,
    /// One rank receives the sum of all ranks' values.
    Reduce,
    /// One rank receives the parts of all ranks.
    Gather,
    /// Every rank receives its own part of one rank's values.
    Scatter,
    Barrier,
    /// NCCL's kernel of sends and receives, which also carries out all-to-all. The trace does not
    /// show for which operation the kernel ran.
    SendReceive,
    /// A message between two ranks.
    PointToPoint,
    Other,
}

/// Returns the operation from the name of the collective, such as `allreduce`, or else from the
/// name of its kernel.
pub fn operation(collective: Option<&str>, kernel: &str) -> CollectiveOperation {
    let plain = |text: &str| text.to_ascii_lowercase().replace('_', "");
    let named = collective.map(plain).filter(|name| !name.is_empty());
    if let Some("send" | "recv" | "isend" | "irecv") = named.as_deref() {
        return CollectiveOperation::PointToPoint;
    }
    let name = named.unwrap_or_else(|| plain(kernel));
    // Longer words must come first, because `allreduce` contains `reduce`.
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

/// Returns whether all ranks must send messages of the same size in this operation.
pub fn is_of_one_size(operation: CollectiveOperation) -> bool {
    matches!(
        operation,
        CollectiveOperation::AllReduce
            | CollectiveOperation::Broadcast
            | CollectiveOperation::Reduce
    )
}

/// Returns how many bytes cross the bus per byte of the larger side of a message, among `ranks`
/// ranks.
///
/// # Source
/// The factors are those of nccl-tests, `doc/PERFORMANCE.md`.
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

/// Returns the bytes of the larger side of a message (input or output), or `None` if its type or
/// size is unknown.
pub fn bytes(trace: &Trace, collective: &Collective) -> Option<u64> {
    let elements = collective.elements_in.max(collective.elements_out)?;
    elements.checked_mul(element_bytes(trace.strings.get(collective.dtype))?)
}

/// Returns the size of an element in bytes, given the c10 name of its type.
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
