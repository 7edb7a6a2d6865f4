//! Parses the JSON text of an execution trace of any schema.
//!
//! Nodes are parsed one by one, so that a broken node does not affect the others. Memory holds the
//! text and the resulting nodes, but no JSON tree. PyTorch 2.1 to 2.5 wrote traces with missing
//! commas, unbalanced brackets and cut-off ends (pytorch/pytorch 126703, mlcommons/chakra 166).

mod node;
mod repair;
mod scan;

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::Error;
use crate::execution_trace::{ExecutionTrace, Node, NodeCollective, NodeForest, ProcessGroup};
use crate::store::Loss;
use scan::{NodeText, Scanner};

const GROUPS: &str = "## process_group:init ##";

/// Parses one execution trace, and counts as losses what could not be read.
///
/// # Errors
/// [`Error::NotATrace`] if the text has no list of nodes.
pub fn parse(text: &[u8]) -> Result<ExecutionTrace, Error> {
    let Some((head, begin)) = scan::begin_of_nodes(text) else {
        let got = if text.is_empty() { "got nothing" } else { "got none" };
        let reason = format!("a list of \"nodes\" in {} bytes of text, {got}", text.len());
        return Err(Error::NotATrace { path: PathBuf::new(), reason });
    };
    let mut trace = ExecutionTrace::default();
    trace.origin.text_bytes = text.len() as u64;
    let mut fields = header(&mut trace, 0, head, "}");
    let mut scanner = Scanner::new(text, begin);
    let mut ids = HashSet::new();
    while let Some(piece) = scanner.next() {
        if let Some(node) = take(&mut trace, &piece) {
            if ids.insert(node.id) {
                trace.nodes.push(node);
            } else {
                let id = node.id;
                trace.losses.count(Loss::DuplicateNode, || {
                    format!("byte {}: node {id} occurs twice", piece.at)
                });
            }
        }
    }
    match scanner.tail() {
        Some(tail) => {
            let at = text.len() - tail.len();
            fields.extend(header(&mut trace, at, tail, ""));
        }
        None => trace.losses.count(Loss::Truncated, || {
            format!("byte {}: the list of nodes does not end", text.len())
        }),
    }
    describe(&mut trace, &fields);
    finish(&mut trace);
    Ok(trace)
}

/// Parses one node. If the node cannot be parsed, a loss is counted and `None` is returned.
fn take(trace: &mut ExecutionTrace, piece: &NodeText<'_>) -> Option<Node> {
    if piece.lacks_comma {
        trace.losses.count(Loss::BrokenText, || format!("byte {}: expected a comma", piece.at));
    }
    let whole = || piece.whole.and_then(|text| serde_json::from_slice::<Value>(text).ok());
    let intact_node = whole().and_then(|value| node::read(&value, &mut trace.strings));
    if intact_node.is_some() {
        return intact_node;
    }
    let repaired = repair::repair(piece.rough, piece.is_last);
    let value = repaired.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let repaired_node = value.and_then(|value| node::read(&value, &mut trace.strings));
    // A superfluous bracket loses no data, so it does not count as a lost node.
    let is_punctuation = |byte: &u8| b"{}[], \n\r\t".contains(byte);
    let loss = match (&repaired_node, piece.is_last) {
        (Some(_), _) => Loss::BrokenText,
        (None, false) if piece.rough.iter().all(is_punctuation) => Loss::BrokenText,
        // The end of the list is missing too, and the caller counts that loss.
        (None, true) => return None,
        (None, false) => Loss::BrokenEvent,
    };
    trace.losses.count(loss, || {
        let begin = &piece.rough[..piece.rough.len().min(60)];
        let begin = String::from_utf8_lossy(begin);
        format!("byte {}: expected a node, got {:?}", piece.at, begin.trim_end())
    });
    repaired_node
}

/// Parses the fields of the outermost object before or after its list of nodes. `at` is the byte
/// offset of `text` in the file.
fn header(trace: &mut ExecutionTrace, at: usize, text: &[u8], end: &str) -> Map<String, Value> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim().trim_matches(',').trim_end();
    let begin = if text.starts_with('{') { "" } else { "{" };
    let text = format!("{begin}{text}{end}");
    let read = serde_json::from_str::<Map<String, Value>>(&text).ok();
    read.unwrap_or_else(|| {
        let repaired = repair::repair(text.as_bytes(), false);
        let fields = repaired.and_then(|text| serde_json::from_str(&text).ok());
        trace.losses.count(Loss::BrokenHeader, || {
            let side = if at == 0 { "before" } else { "behind" };
            let got = text.get(..60).unwrap_or(&text);
            format!("byte {at}: expected the fields {side} the nodes, got {got:?}")
        });
        fields.unwrap_or_default()
    })
}

fn describe(trace: &mut ExecutionTrace, fields: &Map<String, Value>) {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let milliseconds = |name: &str| fields.get(name).and_then(Value::as_i64);
    trace.schema = text("schema");
    trace.pid = fields.get("pid").and_then(Value::as_u64);
    trace.time = text("time");
    trace.start_ms = milliseconds("start_ts");
    trace.finish_ms = milliseconds("finish_ts");
}

/// Completes the parts of a trace that need all nodes: collectives, process groups, and the check
/// of parents.
fn finish(trace: &mut ExecutionTrace) {
    let ExecutionTrace { nodes, strings, groups, losses, .. } = trace;
    for node in nodes.iter_mut() {
        if strings.get(node.name) == NodeCollective::RECORD {
            let (inputs, outputs) = (&node.inputs, &node.outputs);
            let found = NodeCollective::recorded(inputs, outputs, &node.rest, strings);
            node.collective = Some(Box::new(found));
        }
    }
    for node in nodes.iter().filter(|node| strings.get(node.name) == GROUPS) {
        let texts = node.inputs.iter().filter_map(|input| input.value.text());
        for text in texts {
            let written = serde_json::from_str::<Vec<Value>>(strings.get(text));
            match written {
                Ok(written) => groups.extend(written.iter().map(group)),
                Err(error) => losses.count(Loss::BrokenHeader, || {
                    format!("node {}: process groups: {error}", node.id)
                }),
            }
        }
    }
    // The forest is built only to find broken parents. Analyses build the forest again when they
    // need it.
    let tree = NodeForest::build(nodes);
    for at in tree.dangling() {
        let node = &nodes[*at as usize];
        losses.count(Loss::DanglingParent, || {
            format!("node {}: its parent {} does not exist", node.id, node.parent)
        });
    }
    for at in tree.cyclic() {
        let node = &nodes[*at as usize];
        losses.count(Loss::CyclicParent, || format!("node {} is its own ancestor", node.id));
    }
}

fn group(written: &Value) -> ProcessGroup {
    let text = |name: &str| written[name].as_str().unwrap_or_default().to_owned();
    let small = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    // A file without `pg_name` identifies the process group by the number `pg_id`.
    let name = [&written["pg_name"], &written["pg_id"]].into_iter().find(|name| !name.is_null());
    let name = name.map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    let ranks = written["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    ProcessGroup {
        name: name.unwrap_or_default(),
        description: text("pg_desc"),
        backend: text("backend_config"),
        ranks: ranks.iter().filter_map(small).collect(),
        size: small(&written["group_size"]),
    }
}
