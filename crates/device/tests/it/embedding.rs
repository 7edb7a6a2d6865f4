//! Tests of embedding.
