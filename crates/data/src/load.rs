//! Batches for training and scoring. `loader` reads a prepared dataset in a seeded order that can
//! be resumed; `scoring_reader` reads raw files in their own order.

pub(crate) mod decode_queue;
pub(crate) mod gather;
pub(crate) mod loader;
pub(crate) mod row_exchange;
pub(crate) mod scoring_reader;
pub(crate) mod shuffle;
