//! FLOPs and bytes of a work, as operators of our own runs report them. Unrecorded shapes are
//! scaled from recorded ones by these.

use schema::OpWork;

/// Appends FLOPs and bytes to sizes, rounded so that random differences share a sample key.
pub(crate) fn detail(sizes: &str, work: OpWork) -> String {
    format!("{sizes}; {} FLOP, {} B", rounded(work.flops), rounded(work.bytes))
}

fn rounded(value: u64) -> u64 {
    let unit = 10u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(2));
    value.saturating_add(unit / 2) / unit * unit
}

/// FLOPs and bytes of a work, as our own runs report them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    pub flops: f64,
    pub bytes: f64,
}

impl Effort {
    /// Reads the FLOPs and bytes at the end of a detail; `None` if it has none.
    pub fn parse(detail: &str) -> Option<Self> {
        let (_, effort) = detail.rsplit_once("; ").unwrap_or(("", detail));
        let (flops, bytes) = effort.strip_suffix(" B")?.split_once(" FLOP, ")?;
        Some(Self { flops: flops.parse().ok()?, bytes: bytes.parse().ok()? })
    }

    /// Returns the bytes read and written.
    pub fn bytes(self) -> u64 {
        self.bytes as u64
    }
}
