//! The operation `cross`.
