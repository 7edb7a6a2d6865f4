//! Programs of steps that nobody ran: from what is to be trained to what a step does.

pub(crate) mod exchange;
pub mod execution;
pub mod own;
mod program;
pub mod tile_use;

pub use program::program;
