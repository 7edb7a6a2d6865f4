//! Embeds every `configs/*.toml` in the program, so that it finds the ready-made models wherever it
//! is installed.

use std::fmt::Write as _;
use std::io::Error;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Error> {
    let root = PathBuf::from(required("CARGO_MANIFEST_DIR")?).join("../../configs");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files: Vec<PathBuf> = match fs::read_dir(&root) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<Result<_, Error>>()?,
        Err(_) => Vec::new(),
    };
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut code = "&[\n".to_owned();
    for path in &files {
        let path = path.canonicalize()?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(code, "    ({name:?}, include_str!({path:?})),").map_err(Error::other)?;
    }
    code.push(']');
    fs::write(PathBuf::from(required("OUT_DIR")?).join("ready_made.rs"), code)
}

fn required(name: &str) -> Result<String, Error> {
    env::var(name).map_err(Error::other)
}
