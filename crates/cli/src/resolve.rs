//! The command line as meant: configuration read and overridden, plan chosen, memory checked,
//! threads counted. Starts nothing; `command` does.

pub mod checkpoint;
pub mod config;
pub mod device;
pub mod input;
pub mod memory;
pub mod plan;
mod prepared;
pub mod record;
pub mod rows;
pub mod synthetic;
pub mod trace;
pub mod workload;

use crate::args::Global;
use crate::machine;
use crate::render::Console;

/// What every command needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Where results and messages go.
    pub console: Console,
    pub threads: usize,
    /// Whether the command line says how many.
    pub has_own_threads: bool,
}

impl Session {
    /// The session the global options ask for.
    pub fn new(global: &Global) -> Self {
        let threads = global.threads.unwrap_or_else(machine::cores);
        let has_own_threads = global.threads.is_some();
        Self { console: Console::new(global), threads, has_own_threads }
    }
}
