//! Communication between ranks: the six collectives of a training job.
//!
//! The crate has two layers. A [`Transport`] moves bytes between ranks, and the collectives are
//! written once above it. Reductions add in rank order, so results depend neither on the transport
//! nor on which rank arrives first. When a rank leaves, the collectives of its peers fail instead
//! of waiting. [`HostCommunicators`] has exchanges that send less between hosts than within one.
//! The crate does not depend on tables, batches or plans.

mod communicator;
mod counted;
mod delayed;
mod element;
mod error;
mod host;
mod in_process;
mod mailbox;
mod message;
pub mod mpi;
mod transport;
mod verb;

pub use communicator::{Communicator, Flight};
pub use counted::{Counted, HostTraffic, LinkTraffic};
pub use delayed::{Delayed, DelayedLink, HostLinks};
pub use element::{CommElement, ElementType, Load, Payload, Pool};
pub use error::Error;
pub use host::HostCommunicators;
pub use in_process::{InProcess, world};
pub use message::{HEADER_BYTES, MessageHeader, MessageOperation, Phase, RankMessage, Verb};
pub use transport::{Deadline, SharedTransport, Transport, TransportFailure};
pub use verb::{StartedByHost, StartedCollective, VectorParts};
