//! Runs README.md: every ```sh block, in order, as a reader would.
//!
//! All blocks run in one empty folder, `target/readme`, so that later ones see what earlier ones
//! made. It lies inside the workspace, so `cargo run` and `cargo xtask` work there as they do at
//! the root; links lead to `configs/` and the like; `rowmill` is on the PATH. The only command not
//! run is `cargo xtask ci`, which is this program. `<!-- ci: skip REASON -->` before a block leaves
//! it out.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::ci::cargo;
use crate::command;
use crate::error::Error;
use crate::tree;

/// Folders a reader has beside README.md and that commands may name.
const LINKS: [&str; 4] = ["bench", "configs", "docs", "testdata"];

/// Stands in for cargo in the blocks, to keep this program from starting itself.
const PRELUDE: &str = r#"
cargo() {
    if [ "${1-}" = xtask ] && [ "${2-}" = ci ]; then
        echo "ci: \`cargo $*\` is this run" >&2
    else
        command cargo "$@"
    fi
}
"#;

#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    script: String,
    skip: Option<String>,
}

pub fn run() -> Result<String, Error> {
    let root = tree::root();
    let path = root.join("README.md");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let blocks = blocks(&text);
    if blocks.is_empty() {
        return Err(Error::Check { what: "README.md: expected ```sh blocks, got none".to_owned() });
    }
    command::run(&mut cargo(&["build", "--release"]))?;
    let (target, folder) = (root.join("target"), root.join("target/readme"));
    prepare(&root, &folder)?;
    let mut skipped = 0;
    for Block { line, script, skip } in &blocks {
        if let Some(reason) = skip {
            eprintln!("SKIPPED: README.md:{line}: {reason}");
            skipped += 1;
            continue;
        }
        eprintln!("--- README.md:{line}\n{}", script.trim_end());
        let start = Instant::now();
        run_block(script, *line, &folder, &target.join("release"))?;
        eprintln!("--- README.md:{line}: {:.1} s", start.elapsed().as_secs_f64());
    }
    std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    Ok(format!("{} blocks run, {skipped} skipped", blocks.len() - skipped))
}

fn prepare(root: &Path, folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    for name in LINKS.iter().filter(|name| root.join(name).exists()) {
        let link = folder.join(name);
        std::os::unix::fs::symlink(root.join(name), &link).map_err(Error::io(&link))?;
    }
    Ok(())
}

fn run_block(script: &str, line: usize, folder: &Path, programs: &Path) -> Result<(), Error> {
    let mut path = programs.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &format!("{PRELUDE}{script}")]);
    // Cargo sets these for its children; a reader's shell has none of them.
    bash.env_remove("CARGO_MANIFEST_DIR").env_remove("RUSTUP_TOOLCHAIN");
    let status = bash.current_dir(folder).env("PATH", path).status();
    let name = format!("README.md:{line}");
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Program {
            command: name,
            problem: format!("{status}; what it left is in {}", folder.display()),
        }),
        Err(source) => Err(Error::Start { command: "bash".to_owned(), source }),
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let (mut open, mut other, mut skip) = (None::<Block>, false, None);
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.script += &format!("{}\n", command_of(line)),
            (None, Some(_)) if other => other = false,
            (None, Some("sh")) => {
                open = Some(Block { line: number + 1, script: String::new(), skip: skip.take() });
            }
            (None, Some(_)) => (other, skip) = (true, None),
            (None, None) if line.trim().is_empty() => {}
            (None, None) => skip = reason(line),
        }
    }
    found
}

/// A command without the prompt some readmes show.
fn command_of(line: &str) -> &str {
    line.strip_prefix("$ ").unwrap_or(line)
}

fn reason(line: &str) -> Option<String> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inside.trim().strip_prefix("ci: skip")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{blocks, run_block};

    #[test]
    fn blocks_are_found_with_their_lines_and_reasons() {
        let text = "# x\n```sh\n$ a --b\nc\n```\n```text\nd\n```\n\
                    <!-- ci: skip needs a GPU -->\n\n```sh\ne\n```\n```sh\nf\n```\n";
        let found = blocks(text);
        let found: Vec<_> = found
            .iter()
            .map(|block| (block.line, block.script.as_str(), block.skip.as_deref()))
            .collect();
        let expected =
            [(2, "a --b\nc\n", None), (11, "e\n", Some("needs a GPU")), (14, "f\n", None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_failing_command_fails_its_block_and_ci_does_not_start_itself() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(run_block("cargo xtask ci\ncargo xtask ci --full", 1, here, here).is_ok());
        let error = run_block("false\ntrue", 7, here, here).unwrap_err();
        assert!(error.to_string().starts_with("`README.md:7` failed: exit status: 1"), "{error}");
        assert!(run_block("false | true", 7, here, here).is_err());
    }
}
