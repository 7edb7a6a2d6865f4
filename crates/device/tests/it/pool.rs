//! Tests of pool.
