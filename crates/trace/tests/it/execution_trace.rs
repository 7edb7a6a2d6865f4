//! Tests execution traces that the recorder writes: their nodes, and their links to the Kineto
//! rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use expect_test::expect;
use schema::{GemmProduct, Nanos, Op, Precision};
use serde_json::Value;
use trace::Recorder;

use crate::recording::{all_ops, info, read, regular, span};

fn attribute<'a>(node: &'a Value, name: &str) -> &'a Value {
    let attributes = node["attrs"].as_array().unwrap();
    attributes
        .iter()
        .find(|attribute| attribute["name"] == name)
        .map(|found| &found["value"])
        .unwrap()
}

#[test]
fn small_step_is_written_as_expected_nodes() {
    let mut recorder = Recorder::new(info());
    recorder.begin_step(7, Nanos(1_000_000));
    let op = Op::Gemm {
        product: GemmProduct::BackwardWeight,
        precision: Precision::F32,
        m: 2,
        n: 3,
        k: 5,
    };
    recorder.push(span(op, [1_000_000, 1_001_000, 2_000_000, 2_100_000]));
    recorder
        .push(span(Op::AllReduce { elements: 6 }, [2_200_000, 2_210_000, 2_900_000, 3_000_000]));
    recorder.end_step(Nanos(3_000_000));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("et.json");
    recorder.write_execution_trace(7, &path).unwrap();
    expect![[r#"
        {
          "schema": "1.1.1-chakra.0.0.4", "pid": 4711, "time": "2023-11-14 22:13:20",
          "start_ts": 1,
          "nodes": [
            {"id":2,"name":"[pytorch|profiler|execution_trace|thread]","ctrl_deps":1,"inputs":{"values":[],"shapes":[],"types":[],"strides":[]},"outputs":{"values":[],"shapes":[],"types":[],"strides":[]},"attrs":[{"name":"rf_id","type":"uint64","value":0},{"name":"fw_parent","type":"uint64","value":0},{"name":"seq_id","type":"int64","value":-1},{"name":"scope","type":"uint64","value":7},{"name":"tid","type":"uint64","value":1},{"name":"fw_tid","type":"uint64","value":0},{"name":"op_schema","type":"string","value":""},{"name":"kernel_backend","type":"string","value":""},{"name":"kernel_file","type":"string","value":""}]},
            {"id":8,"name":"rowmill::gemm_backward_weight","ctrl_deps":3,"inputs":{"values":[[4,5,0,10,4,"cpu"],[6,7,0,15,4,"cpu"]],"shapes":[[5,2],[5,3]],"types":["Tensor(float)","Tensor(float)"],"strides":[[2,1],[3,1]]},"outputs":{"values":[[9,10,0,6,4,"cpu"]],"shapes":[[2,3]],"types":["Tensor(float)"],"strides":[[3,1]]},"attrs":[{"name":"rf_id","type":"uint64","value":2},{"name":"fw_parent","type":"uint64","value":0},{"name":"seq_id","type":"int64","value":-1},{"name":"scope","type":"uint64","value":1},{"name":"tid","type":"uint64","value":1},{"name":"fw_tid","type":"uint64","value":1},{"name":"op_schema","type":"string","value":"rowmill::gemm_backward_weight(Tensor input_0, Tensor input_1) -> Tensor"},{"name":"kernel_backend","type":"string","value":""},{"name":"kernel_file","type":"string","value":""}]},
            {"id":13,"name":"rowmill::all_reduce","ctrl_deps":3,"inputs":{"values":[[11,12,0,6,4,"cpu"]],"shapes":[[6]],"types":["Tensor(float)"],"strides":[[1]]},"outputs":{"values":[[14,15,0,6,4,"cpu"]],"shapes":[[6]],"types":["Tensor(float)"],"strides":[[1]]},"attrs":[{"name":"rf_id","type":"uint64","value":3},{"name":"fw_parent","type":"uint64","value":0},{"name":"seq_id","type":"int64","value":-1},{"name":"scope","type":"uint64","value":0},{"name":"tid","type":"uint64","value":1},{"name":"fw_tid","type":"uint64","value":0},{"name":"op_schema","type":"string","value":"rowmill::all_reduce(Tensor input_0) -> Tensor"},{"name":"kernel_backend","type":"string","value":""},{"name":"kernel_file","type":"string","value":""},{"name":"collective_name","type":"string","value":"allreduce"},{"name":"dtype","type":"string","value":"Float"},{"name":"in_msg_nelems","type":"uint64","value":6},{"name":"out_msg_nelems","type":"uint64","value":6},{"name":"global_rank_start","type":"uint64","value":0},{"name":"global_rank_stride","type":"uint64","value":1},{"name":"pg_name","type":"string","value":"0"},{"name":"pg_desc","type":"string","value":"default_pg"},{"name":"pg_size","type":"uint64","value":2}]},
            {"id":3,"name":"ProfilerStep#7","ctrl_deps":2,"inputs":{"values":[],"shapes":[],"types":[],"strides":[]},"outputs":{"values":[],"shapes":[],"types":[],"strides":[]},"attrs":[{"name":"rf_id","type":"uint64","value":1},{"name":"fw_parent","type":"uint64","value":0},{"name":"seq_id","type":"int64","value":-1},{"name":"scope","type":"uint64","value":7},{"name":"tid","type":"uint64","value":1},{"name":"fw_tid","type":"uint64","value":0},{"name":"op_schema","type":"string","value":""},{"name":"kernel_backend","type":"string","value":""},{"name":"kernel_file","type":"string","value":""}]},
            {"id":1,"name":"[pytorch|profiler|execution_trace|process]","ctrl_deps":1,"inputs":{"values":[],"shapes":[],"types":[],"strides":[]},"outputs":{"values":[],"shapes":[],"types":[],"strides":[]},"attrs":[{"name":"rf_id","type":"uint64","value":0},{"name":"fw_parent","type":"uint64","value":0},{"name":"seq_id","type":"int64","value":-1},{"name":"scope","type":"uint64","value":7},{"name":"tid","type":"uint64","value":1},{"name":"fw_tid","type":"uint64","value":0},{"name":"op_schema","type":"string","value":""},{"name":"kernel_backend","type":"string","value":""},{"name":"kernel_file","type":"string","value":""}]}
          ],
          "finish_ts": 3
        }
    "#]].assert_eq(&fs::read_to_string(path).unwrap());
}

#[test]
fn nodes_match_the_kineto_rows_of_the_same_step() {
    let recorder = regular(info(), 3, 25);
    let folder = tempfile::tempdir().unwrap();
    let (kineto, execution) = (folder.path().join("k.json"), folder.path().join("e.json"));
    recorder.write_kineto(&kineto).unwrap();
    recorder.write_execution_trace(11, &execution).unwrap();

    let file = read(&kineto);
    let rows = file["traceEvents"].as_array().unwrap().iter();
    let by_record_function: BTreeMap<u64, &str> = rows
        .filter(|row| row["cat"] == "cpu_op" || row["cat"] == "user_annotation")
        .map(|row| {
            (row["args"]["Record function id"].as_u64().unwrap(), row["name"].as_str().unwrap())
        })
        .collect();

    let file = read(&execution);
    let nodes = file["nodes"].as_array().unwrap();
    let linked: Vec<&Value> = nodes.iter().filter(|node| *attribute(node, "rf_id") != 0).collect();
    assert_eq!(linked.len(), all_ops().len() + 1);
    for node in linked {
        let row = by_record_function[&attribute(node, "rf_id").as_u64().unwrap()];
        assert_eq!(node["name"], row);
    }
    assert!(nodes.iter().any(|node| node["name"] == "ProfilerStep#11"));
}

#[test]
fn ids_are_unique_and_every_parent_exists() {
    let recorder = regular(info(), 1, 25);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.json");
    recorder.write_execution_trace(10, &path).unwrap();
    let file = read(&path);
    let nodes = file["nodes"].as_array().unwrap();
    let ids: BTreeSet<u64> = nodes.iter().map(|node| node["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), nodes.len());
    let mut numbers: Vec<u64> = ids.iter().copied().collect();
    for node in nodes {
        assert!(ids.contains(&node["ctrl_deps"].as_u64().unwrap()));
        for side in ["inputs", "outputs"] {
            let values = node[side]["values"].as_array().unwrap();
            for list in ["shapes", "types", "strides"] {
                assert_eq!(node[side][list].as_array().unwrap().len(), values.len());
            }
            for value in values {
                numbers.extend([value[0].as_u64().unwrap(), value[1].as_u64().unwrap()]);
            }
        }
    }
    // Nodes, tensors and storages share one counter, so their ids have no gaps.
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}
