//! The operation `activation`.
