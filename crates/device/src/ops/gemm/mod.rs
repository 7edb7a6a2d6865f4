//! The operation `gemm`.
