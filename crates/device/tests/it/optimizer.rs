//! Tests of optimizer.
