//! What runs on every host: captures traces of running PyTorch processes.
//!
//! A process started with `KINETO_USE_DAEMON` asks a local socket every five seconds whether a
//! trace is wanted. [`ipc`] is the answering side of that conversation, [`capture`] tracks polling
//! processes and the outcome of each request, [`server`] answers from one thread, [`roster`]
//! inspects polling processes, [`tracing`] takes the traces of one order, [`process`] reads what
//! the kernel knows of a process, [`sampling`] what it does, [`untrusted`] opens what a process
//! wrote without trusting it, [`allocation`] reads which runs there are and [`ownership`] decides
//! whose a GPU is, [`wire`] and [`proto`] are what agents, commands and a hub say to each other.
//! Knows nothing of what traces mean, of terminals, HTTP or databases.

pub mod allocation;
pub mod capture;
pub mod diagnosis;
pub mod ipc;
pub mod ownership;
pub mod process;
pub mod proto;
pub mod roster;
pub mod sampling;
pub mod server;
pub mod steps;
pub mod tracing;
pub mod untrusted;
pub mod wire;
