//! Finds, opens and decompresses inputs: files, folders, archives, standard input and objects of
//! S3 or Google Cloud Storage. Hands on bytes and records where they came from; what the bytes mean
//! is decided by `parse`.

pub(crate) mod archive;
pub(crate) mod decompress;
pub(crate) mod folder;
pub(crate) mod origin;
pub(crate) mod partition;
pub(crate) mod remote;
mod utf16;
