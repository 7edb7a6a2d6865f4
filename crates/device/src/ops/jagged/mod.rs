//! Operations that distribute a batch on one device: they reorder bags, bucketise ids by the
//! shard that holds their rows, and scatter columns of a matrix. On a CPU, `train` does this
//! while it packs messages, and on a GPU these operations do it.

pub mod cuda;
pub mod scalar;
