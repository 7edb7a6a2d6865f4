//! Tests the reader of execution traces: the content of public files of all schemas, and the repair
//! of broken files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;

use testkit::Random;
use trace::execution_trace::{
    self, ExecutionTrace, Node, NodeForest, NodeTensor, RecordScope, TraceValue,
};
use trace::store::Loss;

use crate::trace_path;

/// Returns the execution traces of a fixture, or an empty list if the fixture is missing.
pub fn traces(name: &str) -> Vec<ExecutionTrace> {
    trace_path(name).map(|path| execution_trace::read(&path).unwrap()).unwrap_or_default()
}

fn named<'a>(trace: &'a ExecutionTrace, name: &str) -> Vec<&'a Node> {
    trace.nodes.iter().filter(|node| trace.name(node) == name).collect()
}

/// Counts all nodes, nodes with a schema, operators, outermost operators, and nodes that are
/// enclosed only by labels.
fn counts(trace: &ExecutionTrace) -> [usize; 5] {
    let tree = NodeForest::build(&trace.nodes);
    let has_schema = |node: &&Node| !trace.text(node.op_schema).is_empty();
    [
        trace.nodes.len(),
        trace.nodes.iter().filter(has_schema).count(),
        trace.nodes.iter().filter(|node| trace.is_operator(node)).count(),
        tree.operators(trace).len(),
        tree.below_labels(trace).len(),
    ]
}

/// Counts the nodes of threads 1 and 2, including their roots.
fn threads(trace: &ExecutionTrace) -> [usize; 2] {
    [1, 2].map(|thread| trace.nodes.iter().filter(|node| node.thread == thread).count())
}

fn names_of(trace: &ExecutionTrace, places: &[u32]) -> usize {
    let names = places.iter().map(|at| trace.name(&trace.nodes[*at as usize]));
    names.collect::<BTreeSet<_>>().len()
}

#[test]
fn dlrm_ranks_have_the_expected_nodes() {
    let traces = traces("dlrm8/dlrm_pytorch_et.tar.gz");
    for (rank, trace) in traces.iter().enumerate() {
        assert_eq!(trace.rank, rank as u32);
        assert_eq!(trace.schema, "1.0.1");
        assert_eq!(trace.pid, Some(59811 + rank as u64));
        assert_eq!(trace.time, "2023-09-07 16:09:59");
        assert!(trace.losses.is_empty(), "{:?}", trace.losses);
        assert_eq!(counts(trace), [1675, 1485, 1490, 650, 484]);
        assert_eq!(threads(trace), [989, 685]);
        let tree = NodeForest::build(&trace.nodes);
        assert_eq!(names_of(trace, &tree.operators(trace)), 63);
        let below = tree.below_labels(trace);
        let thread = |at: &u32| trace.nodes[*at as usize].thread;
        let on = [1, 2].map(|number| below.iter().filter(|at| thread(at) == number).count());
        assert_eq!(on, [386, 98]);
        let named = |name| named(trace, name).len();
        assert_eq!(named("record_param_comms"), 13);
        assert_eq!(named("nccl:all_to_all"), 5);
        assert_eq!(named("nccl:all_reduce"), 3);
        let device = format!("cuda:{rank}");
        let all = trace.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs));
        let devices: BTreeSet<&str> = all
            .flat_map(|argument| argument.value.tensors())
            .map(|tensor| trace.text(tensor.device))
            .collect();
        assert_eq!(devices, BTreeSet::from(["", "cpu", &device]));
    }
}

#[test]
fn dlrm_collectives_have_the_expected_sizes() {
    for trace in traces("dlrm8/dlrm_pytorch_et.tar.gz") {
        let collectives: Vec<_> =
            trace.nodes.iter().filter_map(|node| node.collective.as_deref()).collect();
        let moved: Vec<(&str, &str, Option<u64>)> = collectives
            .iter()
            .filter(|moved| trace.text(moved.name) != "wait")
            .map(|moved| (trace.text(moved.name), trace.text(moved.dtype), moved.elements_in))
            .collect();
        assert_eq!(moved.len(), 8);
        assert_eq!(moved[0], ("all_to_allv", "float", Some(6144)));
        assert_eq!(moved[1], ("all_to_all", "long int", Some(24)));
        assert_eq!(moved[2], ("all_to_allv", "int", Some(384)));
        assert_eq!(moved[3], ("all_to_allv", "int", Some(3392)));
        assert_eq!(moved[4], ("allreduce", "float", Some(394_241)));
        assert_eq!(moved[5], ("all_to_allv", "float", Some(6144)));
        assert_eq!(moved[6], ("allreduce", "float", Some(112)));
        assert_eq!(moved[7], ("allreduce", "float", Some(226_960)));
        assert!(collectives.iter().all(|moved| moved.rank == Some(trace.rank)));
    }
}

fn tensor_input(node: &Node, at: usize) -> &NodeTensor {
    node.inputs[at].value.tensor().unwrap()
}

#[test]
fn dlrm_tables_are_on_the_expected_ranks() {
    let traces = traces("dlrm8/dlrm_pytorch_et.tar.gz");
    let weights = [
        (640_649_648, 768, 3),
        (640_339_856, 1792, 3),
        (640_279_200, 2304, 3),
        (640_209_296, 13312, 3),
        (640_192_016, 4736, 3),
        (49_206_656, 768, 3),
        (9_556_608, 1536, 3),
        (6_520_016, 1920, 3),
    ];
    let mut total = 0;
    for (trace, (elements, indices, tables)) in traces.iter().zip(weights) {
        let lookups = named(trace, "fbgemm::split_embedding_codegen_lookup_adagrad_function");
        let [lookup] = lookups[..] else { panic!("{} lookups", lookups.len()) };
        let weight = tensor_input(lookup, 1);
        assert_eq!(weight.elements, elements);
        assert_eq!(weight.shape[..], [elements as i64]);
        total += elements;
        let values = lookup.inputs.iter().find_map(|input| {
            input.value.tensor().filter(|t| trace.text(t.dtype) == "long int" && t.elements > 100)
        });
        assert_eq!(values.unwrap().elements, indices);
        let pooled = lookup.outputs[0].value.tensor().unwrap();
        // The pooled output has 128 samples of all ranks, and 16 columns of each table.
        assert_eq!(pooled.shape[..], [128, 16 * tables]);
        let dense = named(trace, "fbgemm::dense_embedding_codegen_lookup_function");
        assert_eq!(tensor_input(dense[0], 0).elements, 112);
    }
    if !traces.is_empty() {
        assert_eq!(total, 3_266_953_296);
        assert_eq!(total, 16 * (204_184_588 - 7));
    }
}

#[test]
fn dlrm_model_can_be_derived_from_shapes() {
    for trace in traces("dlrm8/dlrm_pytorch_et.tar.gz") {
        let layers: Vec<[i64; 3]> = named(&trace, "aten::linear")
            .iter()
            .map(|node| {
                let (input, weight) = (tensor_input(node, 0), tensor_input(node, 1));
                [input.shape[0], weight.shape[1], weight.shape[0]]
            })
            .collect();
        let (bottom, over) = (
            vec![[16, 13, 256], [16, 256, 128], [16, 128, 16]],
            [[16, 367, 512], [16, 512, 512], [16, 512, 256], [16, 256, 1]],
        );
        assert_eq!(layers, [bottom, over.to_vec()].concat());
        let dense: i64 = layers.iter().map(|[_, input, output]| (input + 1) * output).sum();
        let reduced: u64 = trace
            .nodes
            .iter()
            .filter_map(|node| node.collective.as_deref())
            .filter(|moved| trace.text(moved.name) == "allreduce")
            .filter_map(|moved| moved.elements_in)
            .sum();
        // The remaining 112 elements are the two replicated tables, which have 3 and 4 rows.
        assert_eq!((dense + 112, reduced), (621_313, 621_313));
    }
}

#[test]
fn linear_has_the_expected_nodes() {
    for trace in traces("linear/linear_et.json.gz") {
        assert_eq!((trace.rank, trace.pid), (0, Some(24248)));
        assert_eq!((trace.start_ms, trace.finish_ms), (Some(69_838_573), Some(69_840_401)));
        assert_eq!(counts(&trace)[..4], [931, 710, 710, 320]);
        assert_eq!(names_of(&trace, &NodeForest::build(&trace.nodes).operators(&trace)), 16);
        assert_eq!(threads(&trace), [312, 618]);
        assert_eq!(named(&trace, "aten::linear").len(), 21);
        assert!(trace.losses.is_empty());
        for node in named(&trace, "aten::linear") {
            assert_eq!(tensor_input(node, 0).shape[..], [512, 1024]);
            assert_eq!(tensor_input(node, 1).shape[..], [1024, 1024]);
        }
    }
}

#[test]
fn first_chakra_schema_has_the_expected_nodes() {
    for trace in traces("odd/1.0.2-chakra.0.0.4.tgz") {
        assert_eq!(trace.schema, "1.0.2-chakra.0.0.4");
        assert_eq!((trace.nodes.len(), trace.rank), (263, 0));
        assert!(trace.losses.is_empty());
        let [group] = &trace.groups[..] else { panic!("{:?}", trace.groups) };
        assert_eq!((group.name.as_str(), group.size), ("0", Some(2)));
        assert_eq!(group.backend, "cuda:nccl");
        let collectives: Vec<_> =
            trace.nodes.iter().filter_map(|node| node.collective.as_deref()).collect();
        assert_eq!(collectives.len(), 20);
        let gathers: Vec<_> =
            collectives.iter().filter(|moved| trace.text(moved.name) == "all_gather").collect();
        assert_eq!(gathers.len(), 10);
        for gather in gathers {
            assert_eq!((gather.elements_in, gather.elements_out), (Some(1), Some(2)));
            assert_eq!((gather.group_size, gather.rank), (Some(2), Some(0)));
            assert_eq!(trace.text(gather.group), "82149104");
        }
    }
}

/// An execution trace with two nodes in the newest schema.
const NEWEST: &str = r#"{
  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2024-12-01 00:00:00", "start_ts": 5,
  "nodes": [
    {
      "id": 9, "name": "record_param_comms", "ctrl_deps": 2,
      "inputs": {"values": [[3,18446744073709551615,2,6,2,"cuda:1"],[12,false],["0","default_pg"],1,"allreduce",[],[],0,1,2,"inf",[1.5,"-inf"]], "shapes": [[2,3],[[],[]],[[],[]],[],[],[],[],[],[],[],[],[[],[]]], "types": ["Tensor(c10::Half)","Tuple[Int,Bool]","Tuple[String,String]","Int","String","GenericList[]","GenericList[]","Int","Int","Int","Double","GenericList[Double,Double]"], "strides": [[1,2]]},
      "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
      "attrs": [{"name": "rf_id", "type": "uint64", "value": 3},{"name": "fw_parent", "type": "uint64", "value": 0},{"name": "seq_id", "type": "int64", "value": -1},{"name": "scope", "type": "uint64", "value": 0},{"name": "tid", "type": "uint64", "value": 1},{"name": "fw_tid", "type": "uint64", "value": 0},{"name": "op_schema", "type": "string", "value": ""},{"name": "kernel_backend", "type": "string", "value": ""},{"name": "kernel_file", "type": "string", "value": ""},{"name": "tensor_range", "type": "string", "value": "{\"0\":[-1,1]}"}, {"name": "collective_name", "type": "string", "value": "allreduce"},{"name": "dtype", "type": "string", "value": "Half"},{"name": "in_msg_nelems", "type": "uint64", "value": 6},{"name": "out_msg_nelems", "type": "uint64", "value": 6},{"name": "pg_name", "type": "string", "value": "0"},{"name": "pg_desc", "type": "string", "value": "default_pg"},{"name": "pg_size", "type": "uint64", "value": 2}]
    },
    {
      "id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1,
      "inputs": {"values": [], "shapes": [], "types": []},
      "outputs": {"values": [], "shapes": [], "types": []},
      "attrs": [{"name": "rf_id", "type": "uint64", "value": 0},{"name": "scope", "type": "uint64", "value": 7}]
    }
  ],
  "finish_ts": 6
}"#;

#[test]
fn values_of_the_newest_schema_keep_their_types() {
    let trace = execution_trace::read_text(
        NEWEST.replace("\"ctrl_deps\": 2", "\"ctrl_deps\": 1").as_bytes(),
    )
    .unwrap();
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    let node = &trace.nodes[0];
    let tensor = tensor_input(node, 0);
    assert_eq!((tensor.id, tensor.storage, tensor.offset), (3, u64::MAX, 2));
    assert_eq!((tensor.elements, tensor.element_bytes), (6, 2));
    assert_eq!((trace.text(tensor.device), trace.text(tensor.dtype)), ("cuda:1", "c10::Half"));
    assert_eq!((&tensor.shape[..], &tensor.strides[..]), (&[2, 3][..], &[1, 2][..]));
    assert_eq!(node.inputs[10].value, TraceValue::Float(f64::INFINITY));
    let list = [TraceValue::Float(1.5), TraceValue::Float(f64::NEG_INFINITY)];
    assert_eq!(node.inputs[11].value.list(), list);
    let moved = node.collective.as_deref().unwrap();
    assert_eq!((trace.text(moved.name), trace.text(moved.dtype)), ("allreduce", "Half"));
    assert_eq!((trace.text(moved.group), moved.request), ("0", Some(12)));
    assert_eq!(trace.text(moved.group_description), "default_pg");
    assert_eq!((moved.elements_in, moved.group_size, moved.rank), (Some(6), Some(2), Some(1)));
    assert_eq!((moved.rank_start, moved.rank_stride), (Some(0), Some(1)));
    let rest: BTreeMap<&str, &TraceValue> =
        node.rest.iter().map(|(name, value)| (trace.text(*name), value)).collect();
    let range = rest["tensor_range"].text().unwrap();
    assert_eq!(trace.text(range), "{\"0\":[-1,1]}");
    assert_eq!(trace.nodes[1].scope, RecordScope::User);
}

#[test]
fn tensors_of_five_entries_have_no_device() {
    let text = r#"{"schema": "1.0.0", "nodes": [
        {"name": "aten::relu", "id": 3, "rf_id": 1, "parent": 1, "fw_parent": 0, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "",
         "inputs": [[1,2,0,8,4], "<None>", [5,6,7,8,9]], "input_shapes": [[2,4],[],[[],[],[],[],[]]], "input_types": ["Tensor(float)", "None", "GenericList[Int,Int,Int,Int,Int]"],
         "outputs": [], "output_shapes": [], "output_types": []},
        {"name": "[pytorch|profiler|execution_graph|process]", "id": 1, "rf_id": 0, "parent": 1}]}"#;
    let trace = execution_trace::read_text(text.as_bytes()).unwrap();
    let node = &trace.nodes[0];
    assert_eq!(tensor_input(node, 0).shape[..], [2, 4]);
    assert_eq!(trace.text(tensor_input(node, 0).device), "");
    assert_eq!(node.inputs[1].value, TraceValue::None);
    assert_eq!(node.inputs[2].value.list().len(), 5);
    assert_eq!(node.sequence, -1);
    assert!(trace.losses.is_empty());
}

/// Changes the text of the newest trace, then checks the ids that are read and the losses that are
/// counted.
fn check(change: impl Fn(String) -> String, ids: &[u64], losses: &[(Loss, u64)]) {
    let text = change(NEWEST.replace("\"ctrl_deps\": 2", "\"ctrl_deps\": 1"));
    let trace = execution_trace::read_text(text.as_bytes()).unwrap();
    let found: Vec<u64> = trace.nodes.iter().map(|node| node.id).collect();
    assert_eq!(found, ids, "{:?}", trace.losses);
    let counted: Vec<(Loss, u64)> =
        trace.losses.iter().map(|(loss, counted)| (loss, counted.count)).collect();
    assert_eq!(counted, losses, "{:?}", trace.losses);
}

#[test]
fn broken_texts_are_repaired_or_lose_one_node() {
    let both: &[u64] = &[9, 1];
    let replaced = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        }
    };
    check(|text| text, both, &[]);
    // The first three texts lack a comma: between nodes, between attributes, and between fields.
    // The fourth text has a superfluous comma, the fifth an unquoted infinity, and the sixth a line
    // break in a string.
    check(replaced("    },\n", "    }\n"), both, &[(Loss::BrokenText, 1)]);
    check(
        replaced("},{\"name\": \"seq_id\"", "}{\"name\": \"seq_id\""),
        both,
        &[(Loss::BrokenText, 1)],
    );
    check(replaced("\"ctrl_deps\": 1,", "\"ctrl_deps\": 1"), both, &[(Loss::BrokenText, 1)]);
    check(replaced("\"attrs\": [{", "\"attrs\": [, {"), both, &[(Loss::BrokenText, 1)]);
    check(replaced("\"inf\"", "inf"), both, &[(Loss::BrokenText, 1)]);
    check(replaced("default_pg\"]", "default\npg\"]"), both, &[(Loss::BrokenText, 1)]);
    // The next text lacks a closing bracket, and the one after it has a superfluous bracket.
    check(
        replaced("\"value\": 2}]\n    },", "\"value\": 2}]\n    ,"),
        both,
        &[(Loss::BrokenText, 1)],
    );
    check(replaced("    },\n", "    }},\n"), both, &[(Loss::BrokenText, 1)]);
    // Half of a node is followed by the next node, so only the first one is lost.
    let half = |text: String| text.replacen("record_param_comms\", \"ctrl_deps\": 1,", "rec", 1);
    check(half, &[1], &[(Loss::BrokenEvent, 1)]);
    // The end of the file is missing in both texts. The second text also lacks a part of the last
    // node.
    let without = |text: String| text[..text.find("\n  ],").unwrap()].to_owned();
    check(without, both, &[(Loss::Truncated, 1)]);
    check(
        |text| text[..text.len() - 60].to_owned(),
        &[9],
        &[(Loss::Truncated, 1), (Loss::DanglingParent, 1)],
    );
    check(replaced("\"finish_ts\": 6\n}", "\"finish_ts\": "), both, &[(Loss::BrokenHeader, 1)]);
}

#[test]
fn odd_parents_and_ids_are_counted() {
    let both: &[u64] = &[9, 1];
    let renumber =
        |from: &'static str, to: &'static str| move |text: String| text.replace(from, to);
    check(renumber("\"id\": 9", "\"id\": 1"), &[1], &[(Loss::DuplicateNode, 1)]);
    check(
        renumber("comms\", \"ctrl_deps\": 1", "comms\", \"ctrl_deps\": 5"),
        both,
        &[(Loss::DanglingParent, 1)],
    );
    check(
        renumber("process]\", \"ctrl_deps\": 1", "process]\", \"ctrl_deps\": 9"),
        both,
        &[(Loss::CyclicParent, 1)],
    );
}

#[test]
fn other_content_is_rejected_as_execution_trace() {
    for text in ["", "{}", "{\"traceEvents\": []}", "\u{89}PNG\r\n", "{\"nodes\": 3}"] {
        let refused = execution_trace::read_text(text.as_bytes());
        assert!(refused.is_err(), "{text}");
    }
}

#[test]
fn written_execution_traces_can_be_read() {
    let recorder = crate::recording::regular(crate::recording::info(), 1, 25);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.json");
    recorder.write_execution_trace(10, &path).unwrap();
    let [trace] = &execution_trace::read(&path).unwrap()[..] else { panic!("not one trace") };
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    assert_eq!(trace.nodes.len(), crate::recording::all_ops().len() + 3);
    assert_eq!(
        NodeForest::build(&trace.nodes).below_labels(trace).len(),
        crate::recording::all_ops().len()
    );
    let sizes: Vec<_> = trace
        .nodes
        .iter()
        .flat_map(|node| node.inputs.iter().chain(&node.outputs))
        .flat_map(|argument| argument.value.tensors())
        .map(|tensor| (tensor.elements as i64, tensor.shape.iter().product::<i64>()))
        .collect();
    assert!(sizes.iter().all(|(elements, product)| elements == product));
    assert!(!sizes.is_empty());
}

#[test]
fn errors_name_the_file_that_is_not_an_execution_trace() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        execution_trace::read(&path)
            .unwrap_err()
            .to_string()
            .replace(folder.path().to_str().unwrap(), "")
    };
    assert_eq!(refusal("a.json", ""), "/a.json: expected a trace, got an empty file");
    let kineto = refusal("b.json", r#"{"schemaVersion": 1, "traceEvents": []}"#);
    assert_eq!(kineto, "/b.json: expected a trace, got a Kineto trace");
    let none = execution_trace::read(folder.path()).unwrap_err().to_string();
    assert!(none.contains("found none among 2 files"), "{none}");
    assert!(execution_trace::read(&folder.path().join("absent.json")).is_err());
}

#[test]
fn execution_traces_of_a_folder_are_ordered_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    for rank in [10, 2, 0] {
        let text = NEWEST
            .replace("\"ctrl_deps\": 2", "\"ctrl_deps\": 1")
            .replace("\"default_pg\"],1,", "\"default_pg\"],null,");
        fs::write(folder.path().join(format!("dlrm_eg_{rank}.json")), text).unwrap();
    }
    let traces = execution_trace::read(folder.path()).unwrap();
    assert_eq!(traces.iter().map(|trace| trace.rank).collect::<Vec<_>>(), [0, 2, 10]);
    assert!(traces.iter().all(|trace| trace.losses.is_empty()));
}

/// Checks that all ids and indices are valid.
fn holds_together(trace: &ExecutionTrace) {
    let tree = NodeForest::build(&trace.nodes);
    let children: usize = (0..trace.nodes.len() as u32).map(|at| tree.children(at).len()).sum();
    let roots = (0..trace.nodes.len() as u32).filter(|at| tree.parent(*at).is_none()).count();
    assert_eq!(children + roots, trace.nodes.len());
    assert!(tree.operators(trace).len() <= trace.nodes.len());
    for node in &trace.nodes {
        trace.name(node);
    }
}

/// Number of truncations and of wrong bytes to try. `ROWMILL_CORRUPTION=full` increases both
/// numbers.
pub fn effort() -> (usize, usize) {
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    if is_full { (200, 1000) } else { (20, 50) }
}

/// Returns the unpacked texts of a fixture.
pub fn texts(name: &str) -> Vec<Vec<u8>> {
    let Some(path) = trace_path(name) else { return Vec::new() };
    let mut text = Vec::new();
    let file = fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut text).unwrap();
    if text.get(257..262) != Some(b"ustar") {
        return vec![text];
    }
    let mut members = Vec::new();
    for entry in tar::Archive::new(text.as_slice()).entries().unwrap() {
        let mut member = Vec::new();
        entry.unwrap().read_to_end(&mut member).unwrap();
        members.push(member);
    }
    members.retain(|member| member.len() > 1000);
    members
}

#[test]
fn truncation_loses_one_node_and_a_wrong_byte_at_most_two() {
    let mut random = Random(1);
    let (cuts, flips) = effort();
    for mut text in texts("linear/linear_et.json.gz") {
        for _ in 0..cuts {
            let end = random.below(text.len());
            let Ok(trace) = execution_trace::read_text(&text[..end]) else { continue };
            assert_eq!(trace.losses.count_of(Loss::Truncated), 1);
            let begun = text[..end].windows(4).filter(|window| *window == b"\"id\"").count();
            assert!(begun - trace.nodes.len() <= 1, "{end}: {} of {begun}", trace.nodes.len());
            holds_together(&trace);
        }
        for _ in 0..flips {
            let at = random.below(text.len());
            let kept = std::mem::replace(&mut text[at], random.below(256) as u8);
            if let Ok(trace) = execution_trace::read_text(&text) {
                let wrong = text[at];
                assert!(trace.nodes.len() >= 929, "{at}: {wrong}: {:?}", trace.losses);
                holds_together(&trace);
            }
            text[at] = kept;
        }
    }
}

#[test]
fn damaged_input_never_panics() {
    let files = [
        "odd/1.0.2-chakra.0.0.4.tgz",
        "odd/benchmark_simple_add_et.json.gz",
        "dlrm8/dlrm_pytorch_et.tar.gz",
    ];
    let (cuts, flips) = effort();
    let mut random = Random(1);
    for file in files {
        // The ranks of a job are similar, so one rank is enough.
        for mut text in texts(file).into_iter().take(1) {
            for case in 0..cuts + flips {
                let is_cut = case < cuts;
                let at = random.below(text.len());
                let end = if is_cut { at } else { text.len() };
                let wrong = if is_cut { text[at] } else { random.below(256) as u8 };
                let kept = std::mem::replace(&mut text[at], wrong);
                if let Ok(trace) = execution_trace::read_text(&text[..end]) {
                    holds_together(&trace);
                }
                text[at] = kept;
            }
        }
    }
}
