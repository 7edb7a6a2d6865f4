//! `cargo xtask graph` prints the dependencies between crates, as the manifests list them. Whether
//! an edge is allowed is checked by `tidy`.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::tree::{self, SourceTree};

pub const HELP: &str = "\
Which crate depends on which, from the manifests.

Usage: cargo xtask graph [--mermaid | --dot | --external]

Options:
  --mermaid   a Mermaid flowchart, for Markdown
  --dot       Graphviz DOT
  --external  as text, with the third-party dependencies of each crate

Edges that other edges imply are left out of the two pictures; the text has all of them.";

/// For each crate, the crates that it depends on.
type Graph = BTreeMap<String, Vec<String>>;

/// Prints the dependencies between crates in the requested format.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let tree = SourceTree::read(&tree::root())?;
    let (inner, outer) = read_graphs(&tree)?;
    match arguments[..] {
        [] => print!("{}", format_text(&inner)),
        ["--external"] => print!("{}", format_text(&outer)),
        ["--mermaid"] => print!("{}", format_mermaid(&remove_implied(&inner))),
        ["--dot"] => print!("{}", format_dot(&remove_implied(&inner))),
        _ => {
            let problem = format!("unknown arguments {arguments:?}");
            return Err(Error::Usage { task: "graph", problem });
        }
    }
    Ok(())
}

/// Reads two graphs from the manifests: the edges between crates of the workspace, and their edges
/// to other crates.
fn read_graphs(tree: &SourceTree) -> Result<(Graph, Graph), Error> {
    let short = |package: &str| package.rsplit('/').next().unwrap_or(package).to_owned();
    let packages = tree.packages();
    let own: Vec<String> = packages.iter().map(|package| short(package)).collect();
    let (mut inner, mut outer) = (Graph::new(), Graph::new());
    for package in packages {
        let names = tree.dependencies(package)?.normal;
        let (ours, others) = names.into_iter().partition(|name| own.contains(name));
        inner.insert(short(package), ours);
        outer.insert(short(package), others);
    }
    Ok((inner, outer))
}

/// Returns the length of the longest path from a crate down to a crate without dependencies.
fn depth(graph: &Graph, name: &str) -> usize {
    let below = graph.get(name).into_iter().flatten();
    below.map(|other| depth(graph, other) + 1).max().unwrap_or(0)
}

fn reaches(graph: &Graph, from: &str, to: &str) -> bool {
    graph.get(from).into_iter().flatten().any(|next| next == to || reaches(graph, next, to))
}

/// Returns the graph without the edges that a longer path implies.
fn remove_implied(graph: &Graph) -> Graph {
    let mut kept = graph.clone();
    for edges in kept.values_mut() {
        let all = edges.clone();
        edges.retain(|to| !all.iter().any(|other| other != to && reaches(graph, other, to)));
    }
    kept
}

fn format_text(graph: &Graph) -> String {
    let mut names: Vec<&String> = graph.keys().collect();
    // Crates with the longest paths below them come first, so that every arrow points downwards.
    names.sort_by_key(|name| (std::cmp::Reverse(depth(graph, name)), *name));
    let mut out = String::new();
    for name in names {
        let edges = graph[name].join(" ");
        out += &format!("{} {name:<8} → {edges}\n", depth(graph, name)).replace(" → \n", "\n");
    }
    out
}

fn format_mermaid(graph: &Graph) -> String {
    let mut out = String::from("flowchart TD\n");
    for (from, edges) in graph {
        out += &format!("    {from}\n");
        edges.iter().for_each(|to| out += &format!("    {from} --> {to}\n"));
    }
    out
}

fn format_dot(graph: &Graph) -> String {
    let mut out = String::from("digraph rowmill {\n    node [shape=box];\n");
    for (from, edges) in graph {
        out += &format!("    {from};\n");
        edges.iter().for_each(|to| out += &format!("    {from} -> {to};\n"));
    }
    out + "}\n"
}

#[cfg(test)]
mod tests {
    use super::{format_dot, format_mermaid, format_text, read_graphs, remove_implied};
    use crate::tree::SourceTree;

    fn tree() -> SourceTree {
        SourceTree::new(&[
            ("crates/schema/Cargo.toml", "[dependencies]\nserde = \"1\""),
            ("crates/trace/Cargo.toml", "[dependencies]\nschema = {}"),
            ("crates/train/Cargo.toml", "[dependencies]\nschema = {}\ntrace = {}\nlibc = \"1\""),
        ])
    }

    #[test]
    fn the_text_has_every_edge_from_the_top() {
        let (inner, outer) = read_graphs(&tree()).unwrap();
        let expected = "2 train    → schema trace\n1 trace    → schema\n0 schema  \n";
        assert_eq!(format_text(&inner), expected);
        assert_eq!(outer["train"], ["libc"]);
    }

    #[test]
    fn pictures_leave_out_implied_edges() {
        let graph = remove_implied(&read_graphs(&tree()).unwrap().0);
        assert!(
            format_dot(&graph).contains("train -> trace;")
                && !format_dot(&graph).contains("train -> schema")
        );
        assert!(format_mermaid(&graph).contains("trace --> schema"));
    }
}
