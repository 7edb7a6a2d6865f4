//! Texts about a run that does not fit into memory: its largest parts, and changes of the
//! configuration with which it would fit. [`crate::memory_check`] finds these changes.

use std::fmt;

use train::memory::{MemoryMoment, MemoryPart};

/// Number of parts of the peak that a message lists.
const LARGEST: usize = 5;

/// Lists the largest parts of the peak with their sizes.
pub fn list_largest_parts(peak: &MemoryMoment) -> String {
    let part = |part: &MemoryPart| format!("{} {}", part.of.name(), part.bytes);
    let parts: Vec<String> = peak.parts.iter().take(LARGEST).map(part).collect();
    parts.join(", ")
}

/// Changes of the configuration with which a run fits, by the same estimate that rejected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryFix {
    /// The run fits with any one of the given changes.
    Either {
        rows_cap: Option<u64>,
        batch_size: Option<usize>,
    },
    /// The run fits only with both changes together.
    Both {
        rows_cap: u64,
        batch_size: usize,
    },
    Nothing,
    /// A resumed run cannot be changed, because its checkpoint fixes the tables and the batch size.
    Resumed,
}

impl fmt::Display for MemoryFix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CAP: &str = "keeps at most that many rows per table (ids wrap around)";
        match self {
            Self::Either { rows_cap: Some(cap), batch_size: Some(size) } => write!(
                out,
                "--set rows_cap={cap} {CAP} and fits here; so does --set batch_size={size}"
            ),
            Self::Either { rows_cap: Some(cap), .. } => {
                write!(
                    out,
                    "--set rows_cap={cap} {CAP} and fits here; no smaller batch_size alone does"
                )
            }
            Self::Either { batch_size: Some(size), .. } => {
                write!(out, "--set batch_size={size} fits here")
            }
            Self::Both { rows_cap, batch_size } => write!(
                out,
                "--set rows_cap={rows_cap} --set batch_size={batch_size} fit here together, neither \
                 alone; rows_cap {CAP}"
            ),
            Self::Nothing | Self::Either { .. } => out.write_str(
                "no rows_cap or batch_size makes it fit here; it needs more memory, or narrower \
                 layers and tables",
            ),
            Self::Resumed => out.write_str(
                "a resumed run keeps its tables and its batch size: resume it where there is as \
                 much memory as where it began",
            ),
        }
    }
}
