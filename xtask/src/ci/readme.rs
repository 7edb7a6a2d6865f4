//! Runs every ```sh block of README.md and of the guides in docs/, in the order in which a reader
//! would run them.
//!
//! All blocks run in one empty folder, `target/readme`, so that later blocks see the files of
//! earlier ones. The folder lies inside the workspace, so `cargo run` and `cargo xtask` work there
//! as at the root. The folder has links to `configs/` and other folders, and `rowmill` is on the
//! PATH. The only command that does not run is `cargo xtask ci`, which is this program. A comment
//! `<!-- ci: skip REASON -->` before a block skips it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::ci::cargo::{PROFILE, cargo};
use crate::command;
use crate::error::Error;
use crate::tree;

/// The pages in the order in which they run, because later pages use files of earlier pages.
const PAGES: [&str; 3] = ["README.md", "docs/training.md", "docs/traces.md"];

/// Folders beside README.md to which the commands may refer.
const LINKS: [&str; 4] = ["bench", "configs", "docs", "testdata"];

/// A shell function that replaces cargo in the blocks. It does not let `ci` start itself, and it
/// compiles with the profile of the other stages.
const PRELUDE: &str = r#"
cargo() {
    if [ "${1-}" = xtask ] && [ "${2-}" = ci ]; then
        echo "ci: \`cargo $*\` is this run" >&2
    else
        command cargo "${@/#--release/--profile=ci}"
    fi
}
"#;

/// One ```` ```sh ```` block of a page.
#[derive(Debug, PartialEq, Eq)]
struct ScriptBlock {
    page: &'static str,
    line: usize,
    script: String,
    skip: Option<String>,
}

/// Runs the blocks of all pages in order and stops at the first that fails.
pub fn run() -> Result<String, Error> {
    let root = tree::root();
    let mut blocks = Vec::new();
    for page in PAGES {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let found = self::find_blocks(page, &text);
        if found.is_empty() {
            return Err(Error::Check { what: format!("{page}: expected ```sh blocks, got none") });
        }
        blocks.extend(found);
    }
    command::run(&mut cargo(&["build", "--profile", PROFILE]))?;
    let (target, folder) = (root.join("target"), root.join("target/readme"));
    prepare_folder(&root, &folder)?;
    let mut skipped = 0;
    for block in &blocks {
        let name = block.name();
        if let Some(reason) = &block.skip {
            eprintln!("SKIPPED: {name}: {reason}");
            skipped += 1;
            continue;
        }
        eprintln!("--- {name}\n{}", block.script.trim_end());
        let start = Instant::now();
        run_block(block, &folder, &target.join(PROFILE))?;
        eprintln!("--- {name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    Ok(format!("{} blocks run, {skipped} skipped", blocks.len() - skipped))
}

fn prepare_folder(root: &Path, folder: &Path) -> Result<(), Error> {
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

fn run_block(block: &ScriptBlock, folder: &Path, programs: &Path) -> Result<(), Error> {
    let mut path = programs.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    // With these options, bash stops at a failing command in the middle of a block or of a pipe,
    // which a reader would notice as well.
    bash.args(["-euo", "pipefail", "-c", &format!("{PRELUDE}{}", block.script)]);
    // Cargo sets variables for its child processes that a reader's shell does not have.
    command::forget_package(&mut bash);
    // rustup sets this variable as well, and a reader's shell does not have it.
    bash.env_remove("RUSTUP_TOOLCHAIN");
    let status = bash.current_dir(folder).env("PATH", path).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Program {
            command: block.name(),
            problem: format!("{status}; what it left is in {}", folder.display()),
        }),
        Err(source) => Err(Error::Start { command: "bash".to_owned(), source }),
    }
}

impl ScriptBlock {
    /// Returns page and line of the block for messages.
    fn name(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

fn find_blocks(page: &'static str, text: &str) -> Vec<ScriptBlock> {
    let mut found = Vec::new();
    let (mut open, mut other, mut skip) = (None::<ScriptBlock>, false, None);
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.script += &format!("{}\n", command_of(line)),
            (None, Some(_)) if other => other = false,
            (None, Some("sh")) => {
                let (line, skip) = (number + 1, skip.take());
                open = Some(ScriptBlock { page, line, script: String::new(), skip });
            }
            (None, Some(_)) => (other, skip) = (true, None),
            (None, None) if line.trim().is_empty() => {}
            (None, None) => skip = skip_reason(line),
        }
    }
    found
}

/// Returns a command line without its prompt `$ `.
fn command_of(line: &str) -> &str {
    line.strip_prefix("$ ").unwrap_or(line)
}

fn skip_reason(line: &str) -> Option<String> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inside.trim().strip_prefix("ci: skip")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ScriptBlock, find_blocks, run_block};

    #[test]
    fn blocks_are_found_with_their_lines_and_reasons() {
        let text = "# x\n```sh\n$ a --b\nc\n```\n```text\nd\n```\n\
                    <!-- ci: skip needs a GPU -->\n\n```sh\ne\n```\n```sh\nf\n```\n";
        let found = find_blocks("README.md", text);
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
        let block = |line, script: &str| ScriptBlock {
            page: "README.md",
            line,
            script: script.to_owned(),
            skip: None,
        };
        let this = block(1, "cargo xtask ci\ncargo xtask ci --full");
        assert!(run_block(&this, here, here).is_ok());
        let error = run_block(&block(7, "false\ntrue"), here, here).unwrap_err();
        assert!(error.to_string().starts_with("`README.md:7` failed: exit status: 1"), "{error}");
        assert!(run_block(&block(7, "false | true"), here, here).is_err());
    }
}
