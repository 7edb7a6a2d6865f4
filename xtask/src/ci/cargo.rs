//! Starts cargo for the stages of `ci`.

use std::process::Command;

use crate::command;
use crate::tree;

/// The profile with which all daily stages compile, so that each crate is compiled once. Cargo.toml
/// describes it.
pub const PROFILE: &str = "ci";

/// Creates a cargo command that runs at the root of the repository.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = command::cargo();
    cargo.args(arguments).current_dir(tree::root());
    cargo
}
