//! Starts cargo for the stages of `ci`.

use std::process::Command;

use crate::command;
use crate::tree;

/// Creates a cargo command that runs at the root of the repository.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = command::cargo();
    cargo.args(arguments).current_dir(tree::root());
    cargo
}
