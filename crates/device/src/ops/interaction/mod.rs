//! The operation `interaction`.
