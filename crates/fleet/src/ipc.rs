//! The daemon's side of Kineto's conversation: datagrams, requests, and where traces land.
//!
//! Facts of the protocol were measured with torch 2.15.0. It has no acknowledgement and no error
//! reply; [`request`] infers the outcome of a request from polls and files.

pub mod config;
pub mod control;
pub mod message;
pub mod request;
pub mod socket;
pub mod staging;
