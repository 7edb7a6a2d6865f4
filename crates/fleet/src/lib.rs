//! What runs on every host: captures traces of running PyTorch processes.
//!
//! A process started with `KINETO_USE_DAEMON` asks a local socket every five seconds whether a
//! trace is wanted. [`ipc`] is the answering side of that conversation, [`capture`] remembers who
//! asked and what became of each request, [`process`] reads what the kernel knows of a process,
//! [`untrusted`] opens what a process wrote without trusting it.
//! Knows nothing of what traces mean, of terminals, HTTP or databases.

pub mod capture;
pub mod diagnosis;
pub mod ipc;
pub mod process;
pub mod untrusted;
