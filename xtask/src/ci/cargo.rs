//! Cargo for the stages.

use std::process::Command;

use crate::command;
use crate::tree;

/// Cargo, to be run at the root of the repository.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = command::cargo();
    cargo.args(arguments).current_dir(tree::root());
    cargo
}
