//! The trace formats we know, one file or folder each, and what they share about an operation.

pub mod chakra;
pub mod kineto;
pub mod perfetto;

pub(crate) mod blocks;
pub(crate) mod collective;
pub(crate) mod identity;
pub(crate) mod json_keys;
pub(crate) mod tensor;
pub(crate) mod timeline;

use timeline::Timeline;

/// Every format of timelines: the first that recognises a text reads it, the first whose ending a
/// name has is written.
pub(crate) static TIMELINES: &[&Timeline] = &[&perfetto::TIMELINE, &kineto::TIMELINE];
