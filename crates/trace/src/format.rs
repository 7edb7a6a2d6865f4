//! Contains the supported trace formats, one file or folder each, and the descriptions of
//! operations that the writers share.

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

/// All formats of timelines. A text is read by the first format that recognizes it. A file is
/// written in the first format that has the file's extension.
pub(crate) static TIMELINES: &[&Timeline] = &[&perfetto::TIMELINE, &kineto::TIMELINE];
