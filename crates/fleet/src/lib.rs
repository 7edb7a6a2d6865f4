//! The library of the host agent: captures traces of running PyTorch processes.
//!
//! A process started with `KINETO_USE_DAEMON` polls a local socket every five seconds for trace
//! requests. [`ipc`] is the answering side of that protocol. [`capture`] tracks polling processes
//! and the outcome of each request, [`server`] answers from one thread, [`roster`] inspects polling
//! processes, and [`tracing`] carries out one order of traces. [`process`] reads facts about a
//! process from the kernel, and [`sampling`] its activity. [`untrusted`] opens files of other users
//! safely and manages our own folders; [`quota`] and [`spool`] limit the resources of each user;
//! [`plain`] makes text from other programs safe to display. [`allocation`] reads which runs exist,
//! and [`ownership`] decides which run holds a GPU. [`wire`] and [`proto`] are the messages between
//! agents, commands and a hub, and [`trust`] says which certificates they trust. Trace contents,
//! terminals, HTTP and databases are out of scope.

pub mod allocation;
pub mod capture;
mod credentials;
pub mod diagnosis;
pub mod ipc;
pub mod ownership;
pub mod plain;
pub mod process;
pub mod proto;
pub mod quota;
pub mod roster;
pub mod sampling;
pub mod server;
pub mod spool;
pub mod steps;
pub mod tracing;
pub mod trust;
pub mod untrusted;
pub mod wire;
