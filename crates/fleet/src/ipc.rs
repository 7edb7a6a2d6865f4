//! The daemon's side of Kineto's protocol, with its datagrams, its requests, and the location of
//! trace files. [`poller`] is the side of the processes, for programs without PyTorch.
//!
//! The behavior of Kineto was measured with torch 2.15.0. The protocol has no acknowledgment and no
//! error reply, so [`request`] infers the outcome of a request from polls and files.

pub mod config;
pub mod control;
pub mod message;
pub mod poller;
pub mod request;
pub mod socket;
pub mod staging;
