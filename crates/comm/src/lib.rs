//! Many devices: the six collectives of a training job, over the ranks of one communicator.
//!
//! Two layers: a [`Transport`] moves bytes between ranks, and the collectives are written once
//! above it. Reductions add in rank order, so a result depends neither on the transport nor on
//! which rank came first. A rank that leaves ends its peers' collectives with an error instead of
//! leaving them waiting. Knows nothing of tables, batches or plans.

mod communicator;
mod delayed;
mod element;
mod error;
mod in_process;
mod mailbox;
mod message;
pub mod mpi;
mod transport;
mod verb;

pub use communicator::Communicator;
pub use delayed::{Delayed, DelayedLink};
pub use element::{CommElement, ElementType, Load, Payload, Pool};
pub use error::Error;
pub use in_process::{InProcess, world};
pub use message::{HEADER_BYTES, MessageHeader, MessageOperation, Phase, RankMessage, Verb};
pub use transport::{Deadline, SharedTransport, Transport, TransportFailure};
pub use verb::{StartedCollective, VectorParts};
