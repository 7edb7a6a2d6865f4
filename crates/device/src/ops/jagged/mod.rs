//! What the distribution of a batch does with bags on one device: bags in another order, ids by the
//! shard that holds their rows, columns of a matrix to their places. On a CPU `train` does this
//! while it packs messages; a device has them as operations.

pub mod cuda;
pub mod scalar;
