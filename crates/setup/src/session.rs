//! Resolves the global options once per invocation: the console and the number of threads.

use crate::args::Global;
use crate::machine;
use crate::render::Console;

/// The console and the number of threads of one invocation, which every command receives.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    pub console: Console,
    pub threads: usize,
    /// Whether `--threads` was given. Without the option, ranks that share a host divide its cores
    /// among themselves.
    pub has_own_threads: bool,
}

impl Session {
    /// Resolves the global options. `definition` is the command line of the running program.
    pub fn new(global: &Global, definition: fn() -> clap::Command) -> Self {
        let threads = global.threads.unwrap_or_else(machine::cores);
        let has_own_threads = global.threads.is_some();
        Self { console: Console::new(global, definition), threads, has_own_threads }
    }
}
