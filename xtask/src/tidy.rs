//! Checks the rules of ARCHITECTURE.md and STYLE.md that a machine can check, one file per rule. It
//! reads text and compiles nothing.

mod boundary;
mod circle;
mod comment;
mod count;
mod dead;
mod dependency;
mod homonym;
mod item;
mod measure;
mod name;
mod operation;
mod parameter;
mod purity;
mod ratchet;
pub mod source;
mod text;
mod unsafe_code;
mod verb;
mod violation;
mod wrap;

use std::path::Path;

use crate::error::Error;
use crate::tree::{self, SourceTree};
use count::Count;
use source::Sources;
use violation::Violation;

pub const HELP: &str = "\
Checks the rules of ARCHITECTURE.md and STYLE.md that a machine can check. Compiles nothing.

Usage: cargo xtask tidy [--fix [FOLDER]]

Options:
  --fix [FOLDER]  first wrap comments at 100 columns, strip trailing blanks, and lower the numbers
                  of xtask/ratchet.toml to what is left
  --counts        print what the ratchet counts and how the sources read, by package

Rules:
  edge       crates depend only downwards, along the edges of ARCHITECTURE.md; heavy
             dependencies have one owner; what a manifest lists, the crate uses
  purity     schema, analyze, kernel_model, predict, plan and report use no files, clock or
             environment
  circle     files of a crate that import each other in a circle are listed in
             xtask/ratchet.toml by their number, which may only shrink
  boundary   the sources of train name neither the CPU nor its memory layouts (panels, pairs)
  unsafe     the keyword appears in `device`, `comm/mpi/ffi.rs` (and later `python`) only; an unsafe
             function, or its trait, has `# Safety`; a SAFETY comment names the fact that holds
  size       files ≤ 800 lines, functions ≤ 100 (kernels 120); older excess is listed in
             xtask/ratchet.toml and may only shrink
  parameters functions of more than seven parameters, members of tuples included, and parameters
             that are tuples: their numbers are listed there by package
  operation  each folder of crates/device/src/ops has its contract, its scalar oracle and, unless
             listed as CPU-only, its GPU twin
  homonym    types whose name three files or more define: their number is listed there by package
  comment    types, traits and public functions have a doc comment; it has more than three words
             (units, shapes and help texts aside), does not begin with `Of`, `Those`, `The same`,
             `With them` or `None`, and says `is not` instead of `is no`; counted by package
  verb       no function or closure is called `of` or `of_…`; counted by package
  dead       every source is reached by `mod`; every config, definition and test datum is named
  name       no utils, helpers, common, misc, base, manager, handler, impl2, kernel3
  text       files open with `//!`; no to-do without an issue, no ignored test, no trailing
             blanks, no line over 100 columns; one integration test binary per crate";

/// Checks the rules and prints each breach.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = tree::root();
    match arguments[..] {
        [] => {}
        ["--fix"] => fix(&root, "")?,
        ["--fix", folder] => fix(&root, folder)?,
        ["--counts"] => {
            let tree = SourceTree::read(&root)?;
            let sources = source::parse(&tree)?;
            print!("{}", measure::table(&tree, &sources, &counts(&tree, &sources)));
            return Ok(());
        }
        _ => {
            let problem = format!("expected --fix, --counts or nothing, got {arguments:?}");
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
        println!("tidy: {} Rust files, no breach of a rule", tree.rust().count());
        return Ok(());
    }
    Err(Error::Check { what: format!("{} breaches of the rules", violations.len()) })
}

fn fix(root: &Path, folder: &str) -> Result<(), Error> {
    let tree = SourceTree::read(root)?;
    let write = |path: &str, text: &str| {
        println!("{path}: fixed");
        std::fs::write(root.join(path), text).map_err(Error::io(path))
    };
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(folder)) {
        let wrapped = wrap::wrap(text);
        if wrapped != text {
            write(path, &wrapped)?;
        }
    }
    let ratchet = tree.text(count::LIST).unwrap_or_default();
    let counts = counts(&tree, &source::parse(&tree)?);
    let lowered = counts.iter().fold(ratchet.to_owned(), |text, count| count.lower(&text));
    if lowered != ratchet {
        write(count::LIST, &lowered)?;
    }
    Ok(())
}

/// Everything that the ratchet counts by package.
fn counts(tree: &SourceTree, sources: &Sources) -> Vec<Count> {
    let mut all = vec![circle::count(sources), homonym::count(sources), verb::count(sources)];
    all.extend(parameter::count(sources));
    all.extend(comment::count(tree, sources));
    all
}

fn check(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let mut all = dependency::check(tree)?;
    for count in counts(tree, &source::parse(tree)?) {
        all.extend(count.check(tree)?);
    }
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
