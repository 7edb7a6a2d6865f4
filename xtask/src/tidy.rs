//! The rules of ARCHITECTURE.md and STYLE.md that a machine can check, one file per rule.
//! Reads text only; compiles nothing.

mod boundary;
mod circle;
mod count;
mod dead;
mod dependency;
mod homonym;
mod name;
mod operation;
mod parameter;
mod purity;
mod ratchet;
mod source;
mod text;
mod unsafe_code;
mod violation;
mod wrap;

use std::path::Path;

use crate::error::Error;
use crate::tree::{self, SourceTree};
use violation::Violation;

pub const HELP: &str = "\
Checks what a machine can check of ARCHITECTURE.md and STYLE.md. Compiles nothing.

Usage: cargo xtask tidy [--fix [FOLDER]]

Options:
  --fix [FOLDER]  first wrap comments at 100 columns and strip trailing blanks

Rules:
  edge       crates depend only downwards, along the edges of ARCHITECTURE.md; heavy
             dependencies have one owner; what a manifest lists, the crate uses
  purity     schema, analyze, predict and plan know no files, clock or environment
  circle     files of a crate that import each other in a circle are listed in
             xtask/ratchet.toml by their number, which may only shrink
  boundary   the sources of train name neither the CPU nor its layouts: panels, pairs
  unsafe     the keyword appears in `device`, `comm/mpi/ffi.rs` (and later `python`) only; an unsafe
             function, or its trait, has `# Safety`; a SAFETY comment names a fact, no formula
  size       files ≤ 800 lines, functions ≤ 70 (kernels 120); older excess is listed in
             xtask/ratchet.toml and may only shrink
  parameters functions of more than seven parameters, members of tuples included, and parameters
             that are tuples: their numbers are listed there by package
  operation  each folder of crates/device/src/ops has its contract, its scalar oracle and, unless
             listed as CPU-only, its GPU twin
  homonym    types whose name three files or more define: their number is listed there by package
  dead       every source is reached by `mod`; every config, definition and test datum is named
  name       no utils, helpers, common, misc, base, manager, handler, impl2, kernel3
  text       files open with `//!`; no to-do without an issue, no ignored test, no trailing
             blanks, no line over 100 columns; one integration test binary per crate";

pub fn run(arguments: &[String]) -> Result<(), Error> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = tree::root();
    match arguments[..] {
        [] => {}
        ["--fix"] => fix(&root, "")?,
        ["--fix", folder] => fix(&root, folder)?,
        _ => {
            let problem = format!("expected --fix or nothing, got {arguments:?}");
            return Err(Error::Usage { task: "tidy", problem });
        }
    }
    let tree = SourceTree::read(&root)?;
    let violations = check(&tree)?;
    for Violation { path, line, rule, problem } in &violations {
        match line {
            0 => println!("{path}: {rule}: {problem}"),
            _ => println!("{path}:{line}: {rule}: {problem}"),
        }
    }
    if violations.is_empty() {
        println!("tidy: {} Rust files, nothing to complain about", tree.rust().count());
        return Ok(());
    }
    Err(Error::Check { what: format!("{} breaches of the rules", violations.len()) })
}

fn fix(root: &Path, folder: &str) -> Result<(), Error> {
    let tree = SourceTree::read(root)?;
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(folder)) {
        let wrapped = wrap::wrap(text);
        if wrapped != text {
            println!("{path}: wrapped");
            std::fs::write(root.join(path), wrapped).map_err(Error::io(path))?;
        }
    }
    Ok(())
}

fn check(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let mut all = dependency::check(tree)?;
    let sources = source::parse(tree)?;
    all.extend(circle::check(tree, &sources)?);
    all.extend(parameter::check(tree, &sources)?);
    all.extend(homonym::check(tree, &sources)?);
    all.extend(boundary::check(tree));
    all.extend(purity::check(tree));
    all.extend(unsafe_code::check(tree));
    all.extend(ratchet::check(tree)?);
    all.extend(operation::check(tree));
    all.extend(dead::check(tree));
    all.extend(name::check(tree));
    all.extend(text::check(tree));
    all.sort();
    Ok(all)
}
