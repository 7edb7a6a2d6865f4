//! Finds, opens and decompresses inputs: files, folders, archives, standard input, and objects in
//! S3, in Google Cloud Storage or on web servers. This module returns bytes and records which
//! content was read. The module `parse` interprets the bytes.

pub(crate) mod archive;
pub(crate) mod decompress;
pub(crate) mod folder;
pub(crate) mod origin;
pub(crate) mod partition;
pub(crate) mod remote;
mod utf16;
