//! Sharded embeddings: the forward pass through input dist, lookup and output dist, and the
//! backward pass with the fused update.
//!
//! A sharding plan is a tiling of the tables. One rank with one tile per table is a plan like any
//! other.

pub mod collection;
pub mod group_average;
pub mod input_dist;
pub mod layout;
pub mod output_dist;
pub mod replicas;
pub mod row_io;
pub mod row_store;
pub mod row_terms;
pub mod stored_tile;
pub mod tables;
pub mod touched_rows;

pub use collection::EmbeddingCollection;
pub use layout::SlotLayout;
