//! Checks the rules of ARCHITECTURE.md and STYLE.md that a machine can check, with one file per
//! rule. The rules read the sources as text and do not compile them.

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

/// Checks all rules and prints each violation.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = tree::root();
    match arguments[..] {
        [] => {}
        ["--fix"] => fix_sources(&root, "")?,
        ["--fix", folder] => fix_sources(&root, folder)?,
        ["--counts"] => {
            let tree = SourceTree::read(&root)?;
            let sources = source::parse(&tree)?;
            print!("{}", measure::table(&tree, &sources, &count_all(&tree, &sources)));
            return Ok(());
        }
        _ => {
            let problem = format!("expected --fix, --counts or nothing, got {arguments:?}");
            return Err(Error::Usage { task: "tidy", problem });
        }
    }
    let tree = SourceTree::read(&root)?;
    let violations = find_violations(&tree)?;
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

fn fix_sources(root: &Path, folder: &str) -> Result<(), Error> {
    let tree = SourceTree::read(root)?;
    let write = |path: &str, text: &str| {
        println!("{path}: fixed");
        std::fs::write(root.join(path), text).map_err(Error::io(path))
    };
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(folder)) {
        let wrapped = wrap::wrap_comments(text);
        if wrapped != text {
            write(path, &wrapped)?;
        }
    }
    let ratchet = tree.text(count::LIST).unwrap_or_default();
    let counts = count_all(&tree, &source::parse(&tree)?);
    let lowered = counts.iter().fold(ratchet.to_owned(), |text, count| count.lower(&text));
    if lowered != ratchet {
        write(count::LIST, &lowered)?;
    }
    Ok(())
}

/// Returns all numbers that the ratchet limits by package.
fn count_all(tree: &SourceTree, sources: &Sources) -> Vec<Count> {
    let mut all = vec![circle::count(sources), homonym::count(sources), verb::count(sources)];
    all.extend(parameter::count(sources));
    all.extend(comment::count(tree, sources));
    all
}

fn find_violations(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let mut all = dependency::find_violations(tree)?;
    for count in count_all(tree, &source::parse(tree)?) {
        all.extend(count.check(tree)?);
    }
    all.extend(boundary::find_violations(tree));
    all.extend(purity::find_violations(tree));
    all.extend(unsafe_code::find_violations(tree));
    all.extend(ratchet::find_violations(tree)?);
    all.extend(operation::find_violations(tree));
    all.extend(dead::find_violations(tree));
    all.extend(name::find_violations(tree));
    all.extend(text::find_violations(tree));
    all.sort();
    Ok(all)
}
