//! Operations that distribute a batch on one device: reorder bags, bucketise ids by the shard that
//! holds their rows, scatter columns of a matrix. On a CPU `train` does this while packing
//! messages; a GPU has operations for it.

pub mod cuda;
pub mod scalar;
