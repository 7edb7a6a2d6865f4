//! Checks the dependencies of each crate. Only allowed edges may exist, a heavy dependency has one
//! owner, and every listed dependency must be used.

use crate::error::Error;
use crate::mask::{mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "edge";

/// The allowed edges between crates, including planned crates.
const EDGES: [(&str, &[&str]); 21] = [
    ("table_derive", &[]),
    ("schema", &["table_derive"]),
    ("device", &["schema"]),
    ("trace", &["schema"]),
    ("data", &["schema", "trace"]),
    ("comm", &["schema", "device"]),
    ("train", &["schema", "comm", "data", "device", "trace"]),
    ("analyze", &["schema", "trace"]),
    ("kernel_model", &["schema"]),
    ("predict", &["schema", "analyze", "kernel_model", "trace"]),
    ("plan", &["schema", "kernel_model", "predict"]),
    ("report", &["schema", "analyze", "predict", "trace"]),
    ("fleet", &["schema", "trace"]),
    ("agent", &["schema", "fleet"]),
    ("hub", &["schema", "fleet", "analyze", "trace", "report"]),
    (
        "setup",
        &[
            "schema",
            "train",
            "analyze",
            "kernel_model",
            "predict",
            "plan",
            "fleet",
            "report",
            "data",
            "trace",
            "device",
            "comm",
        ],
    ),
    (
        "bench",
        &[
            "schema",
            "train",
            "analyze",
            "kernel_model",
            "predict",
            "plan",
            "fleet",
            "report",
            "data",
            "trace",
            "device",
            "comm",
            "setup",
        ],
    ),
    (
        "cli",
        &[
            "schema",
            "train",
            "analyze",
            "kernel_model",
            "predict",
            "plan",
            "fleet",
            "report",
            "data",
            "trace",
            "device",
            "comm",
            "setup",
            "bench",
        ],
    ),
    (
        "python",
        &["schema", "train", "analyze", "predict", "plan", "report", "data", "trace", "device"],
    ),
    ("xtask", &[]),
    (TESTKIT, &[]),
];

/// The crate that all tests share. Every crate may have it as a development dependency, but not as
/// a normal one.
const TESTKIT: &str = "testkit";

/// Packages, by prefixes of their names, on which only the listed crates may depend.
const OWNERS: [(&[&str], &[&str]); 18] = [
    (&["parquet", "arrow-", "datafusion"], &["data", "hub"]),
    (&["gemm", "cudarc"], &["device"]),
    (&["mpi"], &["comm"]),
    (&["libc"], &["comm", "device", "fleet"]),
    (&["memmap2"], &["device"]),
    (&["nix"], &["fleet"]),
    (&["flate2", "zstd"], &["data", "trace", "agent", "kernel_model"]),
    (&["bzip2", "lzma-rust2"], &["data"]),
    (&["prost"], &["trace", "fleet", "agent", "hub"]),
    (&["csv", "ring"], &["data"]),
    (&["safetensors"], &["train"]),
    (
        &["clap", "indicatif", "comfy-table", "signal-hook", "miette", "ratatui"],
        &["setup", "bench", "cli", "agent", "hub"],
    ),
    (&["pyo3", "numpy"], &["python"]),
    (&["tokio", "async-", "futures"], &["agent", "hub"]),
    (&["axum", "hyper", "h2", "tonic", "tower", "reqwest", "askama", "rustls"], &["agent", "hub"]),
    (&["ureq"], &["data", "fleet", "cli", "agent", "hub"]),
    (&["nvml-", "prometheus-", "procfs", "listenfd"], &["agent"]),
    (&["anyhow", "eyre", "color-eyre"], &[]),
];

/// Dependencies that are listed only for their features. `rowmill` enables the features that the
/// agent and the tests need, so that a shared dependency is compiled only once.
const FOR_FEATURES: &[&str] =
    &["http", "memchr", "once_cell", "proc-macro2", "quote", "serde_core", "smallvec"];

/// Checks the manifest of every package.
///
/// # Errors
/// Fails if a manifest is malformed.
pub fn find_violations(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let packages = tree.packages();
    let mut found = Vec::new();
    for package in &packages {
        let name = package.rsplit('/').next().unwrap_or(package);
        let path = format!("{package}/Cargo.toml");
        let mut report = |problem| found.push(Violation::new(RULE, &path, 0, problem));
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            report(format!("{name:?} has no place in ARCHITECTURE.md; write a decision record"));
            continue;
        };
        let dependencies = tree.dependencies(package)?;
        // Development dependencies follow the same edges, so that a crate can be tested without the
        // crates above it.
        let for_tests = dependencies.development.iter().filter(|name| *name != TESTKIT);
        for dependency in dependencies.normal.iter().chain(for_tests) {
            if let Some(problem) = refuse(name, allowed, dependency) {
                report(problem);
            }
        }
        for dependency in &dependencies.normal {
            let for_features = FOR_FEATURES.contains(&dependency.as_str());
            if !for_features && !is_named(tree, &format!("{package}/src/"), dependency) {
                report(format!("{dependency:?} is listed but never named in src"));
            }
        }
        for dependency in &dependencies.development {
            if !is_named(tree, &format!("{package}/"), dependency) {
                report(format!("{dependency:?} is listed for tests but never named"));
            }
        }
    }
    Ok(found)
}

fn refuse(name: &str, allowed: &[&str], dependency: &str) -> Option<String> {
    let ours = EDGES.iter().any(|(known, _)| *known == dependency);
    if ours && !allowed.contains(&dependency) {
        let allowed = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
        return Some(format!("{name} may depend on {allowed}; got {dependency}"));
    }
    // Packages from outside the workspace have no edges, but some of them may be used only by their
    // owners.
    let owned =
        |prefixes: &[&str]| prefixes.iter().any(|prefix| matches_prefix(dependency, prefix));
    let (_, owners) = OWNERS.iter().find(|(prefixes, _)| owned(prefixes))?;
    if owners.contains(&name) {
        return None;
    }
    let owners = if owners.is_empty() { "nobody".to_owned() } else { owners.join(" and ") };
    Some(format!("{dependency:?} belongs to {owners}; got {name}"))
}

/// Whether a prefix matches a dependency. `clap` matches `clap` and `clap_complete`, `arrow-`
/// matches `arrow-array`, and `gemm` does not match `gemmology`.
fn matches_prefix(dependency: &str, prefix: &str) -> bool {
    dependency.strip_prefix(prefix).is_some_and(|rest| {
        rest.is_empty() || prefix.ends_with('-') || rest.starts_with(['-', '_'])
    })
}

fn is_named(tree: &SourceTree, folder: &str, dependency: &str) -> bool {
    let word = dependency.replace('-', "_");
    let mut sources = tree.rust().filter(|(path, _)| path.starts_with(folder));
    // Words in comments do not count as a use of the dependency, but words in examples of
    // documentation do.
    sources.any(|(_, text)| words(&mask(text).code, &word).next().is_some())
        || tree
            .rust()
            .filter(|(path, _)| path.starts_with(folder))
            .any(|(_, text)| text.contains(&format!("/// use {word}::")))
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn found(name: &str, manifest: &str, source: &str) -> Vec<String> {
        let folder = if name == "xtask" { "xtask".to_owned() } else { format!("crates/{name}") };
        let (toml, lib) = (format!("{folder}/Cargo.toml"), format!("{folder}/src/lib.rs"));
        shown(&find_violations(&SourceTree::new(&[(&toml, manifest), (&lib, source)])).unwrap())
    }

    #[test]
    fn an_upward_edge_is_refused() {
        assert_eq!(
            found("device", "[dependencies]\ntrace.workspace = true", "use trace::X;"),
            ["crates/device/Cargo.toml:0 edge: device may depend on schema; got trace"]
        );
        assert_eq!(
            found("device", "[dependencies]\nschema.workspace = true", "use schema::Op;"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn testkit_is_for_tests_only() {
        let use_testkit = "use testkit::Folder;";
        assert_eq!(
            found("schema", "[dependencies]\ntestkit.workspace = true", use_testkit),
            ["crates/schema/Cargo.toml:0 edge: schema may depend on table_derive; got testkit"]
        );
        assert_eq!(
            found("schema", "[dev-dependencies]\ntestkit.workspace = true", use_testkit),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_heavy_dependency_has_one_owner() {
        assert_eq!(
            found("train", "[dependencies]\narrow-array = \"59\"", "use arrow_array::A;"),
            ["crates/train/Cargo.toml:0 edge: \"arrow-array\" belongs to data and hub; got train"]
        );
        assert_eq!(
            found("cli", "[dependencies]\nclap_complete = \"4\"", "clap_complete::x();"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn an_unknown_crate_and_an_unused_dependency_are_named() {
        let unknown = found("blob", "", "");
        assert!(unknown[0].contains("\"blob\" has no place in ARCHITECTURE.md"), "{unknown:?}");
        assert_eq!(
            found("data", "[dependencies]\ncsv = \"1\"", "// csv is named in a comment only\n"),
            ["crates/data/Cargo.toml:0 edge: \"csv\" is listed but never named in src"]
        );
    }
}
