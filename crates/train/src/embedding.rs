//! Sharded embeddings: input dist → lookup → output dist, and the backward pass with the fused
//! update.
//!
//! A plan is a tiling; one rank with one tile per table is a plan like any other.

pub mod collection;
pub mod input_dist;
pub mod layout;
pub mod output_dist;

pub use collection::EmbeddingCollection;
pub use layout::SlotLayout;
