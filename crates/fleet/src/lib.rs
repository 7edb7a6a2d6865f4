//! What runs on every host: captures traces of running PyTorch processes.
//!
//! A process started with `KINETO_USE_DAEMON` asks a local socket every five seconds whether a
//! trace is wanted. [`ipc`] is the answering side of that conversation, [`capture`] tracks polling
//! processes and the outcome of each request, [`server`] answers from one thread, [`roster`]
//! inspects polling processes, [`tracing`] takes the traces of one order, [`process`] reads what
//! the kernel knows of a process, [`sampling`] what it does, [`untrusted`] opens what a process
//! wrote without trusting it and holds folders of our own, [`quota`] and [`spool`] bound what one
//! user can take, [`plain`] makes text of others safe to show, [`wire`] and [`proto`] are what
//! agents, commands and a hub say to each other. Knows nothing of what traces mean, of terminals,
//! HTTP or databases.

pub mod allocation;
pub mod capture;
pub mod diagnosis;
pub mod ipc;
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
pub mod untrusted;
pub mod wire;
