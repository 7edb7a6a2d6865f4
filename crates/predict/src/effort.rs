//! FLOPs and bytes of device work, as operators of rowmill's own training runs report them. Times
//! of unrecorded shapes are scaled from recorded shapes by these amounts.

use schema::OpWork;

/// Appends FLOPs and bytes to sizes. The FLOPs and bytes are rounded to three digits, so that works
/// with small random differences share a sample key.
pub(crate) fn detail(sizes: &str, work: OpWork) -> String {
    format!("{sizes}; {} FLOP, {} B", rounded(work.flops), rounded(work.bytes))
}

fn rounded(value: u64) -> u64 {
    let unit = 10u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(2));
    value.saturating_add(unit / 2) / unit * unit
}

/// FLOPs and bytes of device work, as rowmill's own training runs report them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    pub flops: f64,
    pub bytes: f64,
}

impl Effort {
    /// Parses the FLOPs and bytes at the end of a detail. Returns `None` if the detail contains
    /// none.
    pub fn parse(detail: &str) -> Option<Self> {
        let (_, effort) = detail.rsplit_once("; ").unwrap_or(("", detail));
        let (flops, bytes) = effort.strip_suffix(" B")?.split_once(" FLOP, ")?;
        Some(Self { flops: flops.parse().ok()?, bytes: bytes.parse().ok()? })
    }

    /// Returns the number of bytes that the work reads and writes.
    pub fn bytes(self) -> u64 {
        self.bytes as u64
    }
}
