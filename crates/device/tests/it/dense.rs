//! The dense operations against their oracles.
