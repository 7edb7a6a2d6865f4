//! The operation `loss`.
