//! Checkpoints: folders `<run>/checkpoints/step-000000001234/` that a run with any plan can load.
//!
//! `manifest.json` (versioned, with its own checksum) lists one safetensors file per rank and one
//! for the dense parameters. A table is saved as chunks, which are rectangles of rows × columns
//! with a XXH3-64 each. The row cuts of chunks do not depend on the plan, so a tile of any other
//! plan is assembled from them by range reads. A folder is written under a `.tmp` name, synced,
//! then renamed, so every visible checkpoint is complete. This module does not depend on models,
//! and treats position and fitted transforms as opaque JSON values.

mod folder;
mod manifest;
mod mapped;
mod read;
mod tensor_file;
mod write;

pub use data::Checksum;
pub use folder::{NewestGood, best, clean, list, list_aside, newest_good, previous_good, retain};
pub use manifest::{
    Chunk, FileRecord, Manifest, Pieces, Seeds, SeenData, TablePart, TensorContent, VERSION,
};
pub(crate) use mapped::MappedTables;
pub use read::{Checkpoint, read_bytes, read_parts_bytes};
pub use write::{CheckpointWriter, Committed, Meta, WrittenFile};

pub(crate) use folder::{set_aside_after, set_best, sync_folder};
pub(crate) use tensor_file::{TensorEntry, TensorReader, TensorWriter, dtype, float_bytes};
pub(crate) use write::rank_file;
