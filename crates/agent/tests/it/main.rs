//! Tests of the agent program: pages, endpoints, orders and counters. The tests use a stub of the
//! NVML library in C, real sockets and, if they are installed, the real Prometheus and curl.
#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod attack;
mod cost;
mod counters;
mod dynolog;
mod fixture;
mod holder;
mod hub;
mod ownership;
mod pages;
mod periodic;
mod pods;
mod samples;
mod server;
mod steps;
mod traces;
