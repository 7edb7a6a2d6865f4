//! Tests the reader of Chakra execution traces on a public file and on damaged files.

use std::collections::BTreeSet;

use prost::Message;
use trace::chakra::{
    self, Attribute, AttributeValue, ChakraNode, CollectiveKind, Graph, Int32s, NodeKind,
};
use trace::store::Loss;

use crate::execution_trace_read::{effort, texts};
use crate::trace_path;

fn feeder() -> Option<Graph> {
    let path = trace_path("odd/chakra_feeder.tar.gz")?;
    let [graph] = <[Graph; 1]>::try_from(chakra::read(&path).unwrap()).unwrap();
    Some(graph)
}

#[test]
fn feeder_file_has_the_expected_nodes() {
    let Some(graph) = feeder() else { return };
    assert!(graph.losses.is_empty(), "{:?}", graph.losses);
    assert_eq!(graph.origin.text_bytes, 2_978_371);
    assert_eq!(graph.origin.member.as_deref(), Some("tests/data/chakra.0.et"));
    assert_eq!(graph.attribute("schema").unwrap().text(), Some("1.0.1"));
    assert_eq!(graph.attribute("pid").unwrap().unsigned(), Some(114_598));
    assert_eq!(graph.attribute("time").unwrap().text(), Some("2023-12-14 11:55:01"));
    assert_eq!(graph.attribute("start_ts").unwrap().unsigned(), Some(216_405_745));
    assert_eq!(graph.attribute("finish_ts").unwrap().unsigned(), Some(216_433_101));

    assert_eq!(graph.nodes.len(), 3664);
    let nodes_of_kind = |kind| graph.nodes.iter().filter(move |node| node.kind() == kind);
    assert_eq!(nodes_of_kind(NodeKind::Compute).count(), 3643);
    assert_eq!(nodes_of_kind(NodeKind::Collective).count(), 21);
    let microseconds = [NodeKind::Compute, NodeKind::Collective]
        .map(|kind| nodes_of_kind(kind).map(|node| node.duration_us).sum::<u64>());
    assert_eq!(microseconds, [343_769, 38_026]);
    assert_eq!(graph.nodes.iter().filter_map(ChakraNode::collective).count(), 7);
    assert_eq!(graph.nodes.iter().map(|node| node.ctrl_deps.len()).sum::<usize>(), 3664);
    assert_eq!(graph.nodes.iter().map(|node| node.data_deps.len()).sum::<usize>(), 181_878);
    let ids: BTreeSet<u64> = graph.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids.len(), 3664);
    assert!(graph.nodes.iter().all(|node| node.is_on_host().is_some()));
}

#[test]
fn seven_collectives_of_the_feeder_file_have_a_kind_and_a_size() {
    let Some(graph) = feeder() else { return };
    let collectives: Vec<(CollectiveKind, u64)> = graph
        .nodes
        .iter()
        .filter_map(|node| Some((node.collective()?, node.collective_bytes()?)))
        .collect();
    let (broadcast, reduce) = (CollectiveKind::Broadcast, CollectiveKind::AllReduce);
    assert_eq!(
        collectives,
        [
            (broadcast, 212_480),
            (broadcast, 424),
            (reduce, 8_196_000),
            (reduce, 31_502_336),
            (reduce, 26_255_360),
            (reduce, 26_550_272),
            (reduce, 9_724_160),
        ]
    );
}

fn attribute(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.to_owned(), documentation: String::new(), value: Some(value) }
}

/// Encodes metadata and three collectives whose sizes have three different integer types.
fn small() -> Vec<u8> {
    let mut bytes = Vec::new();
    let schema = attribute("schema", AttributeValue::Text("1.0.2-chakra.0.0.4".to_owned()));
    // The first message is a `GlobalMetadata { attr = 2 }`, encoded by hand because the type is
    // private.
    let inner = schema.encode_to_vec();
    let mut message = vec![0x12, inner.len() as u8];
    message.extend(inner);
    bytes.push(message.len() as u8);
    bytes.extend(message);
    for (id, size) in
        [AttributeValue::Int64(4096), AttributeValue::Uint64(4096), AttributeValue::Int32(4096)]
            .into_iter()
            .enumerate()
    {
        let node = ChakraNode {
            id: id as u64,
            kind_number: 7,
            attributes: vec![
                attribute("comm_size", size),
                attribute("comm_type", AttributeValue::Int64(6)),
            ],
            ..ChakraNode::default()
        };
        node.encode_length_delimited(&mut bytes).unwrap();
    }
    bytes
}

#[test]
fn sizes_may_have_any_integer_type() {
    let graph = chakra::read_bytes(&small()).unwrap();
    let sizes: Vec<_> = graph.nodes.iter().map(ChakraNode::collective_bytes).collect();
    assert_eq!(sizes, [Some(4096); 3]);
    assert!(graph.nodes.iter().all(|node| node.collective() == Some(CollectiveKind::AllToAll)));
}

#[test]
fn every_kind_of_attribute_is_read() {
    let list = AttributeValue::Int32List(Int32s { values: vec![1, -2] });
    let values = [
        AttributeValue::Double(0.5),
        list,
        AttributeValue::Sfixed64(-9),
        AttributeValue::Bytes(vec![1, 2]),
    ];
    let attributes = values.iter().map(|value| attribute("x", value.clone())).collect();
    let mut bytes = small();
    let node = ChakraNode { id: 9, attributes, ..ChakraNode::default() };
    node.encode_length_delimited(&mut bytes).unwrap();
    let graph = chakra::read_bytes(&bytes).unwrap();
    let read: Vec<_> = graph.nodes[3].attributes.iter().map(|a| a.value.clone().unwrap()).collect();
    assert_eq!(read, values);
}

#[test]
fn truncated_file_keeps_its_complete_nodes() {
    let bytes = small();
    let graph = chakra::read_bytes(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(graph.nodes.len(), 2);
    assert_eq!(graph.losses.count_of(Loss::Truncated), 1);
}

#[test]
fn other_content_is_rejected_as_chakra() {
    for bytes in [&b""[..], b"{\"schema\": 1}", b"\x89PNG\r\n\x1a\n", &[0, 0, 0], &[0xff; 40]] {
        assert!(chakra::read_bytes(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn damaged_input_never_panics() {
    let (cuts, flips) = effort();
    let mut random = testkit::Random(1);
    for mut bytes in texts("odd/chakra_feeder.tar.gz") {
        // The file is shortened so that many cases can be tested.
        bytes.truncate(500_000);
        let whole = chakra::read_bytes(&bytes).unwrap().nodes.len();
        for case in 0..cuts + flips {
            let at = random.below(bytes.len());
            if case < cuts {
                let cut = chakra::read_bytes(&bytes[..at]);
                assert!(cut.is_err() || cut.is_ok_and(|graph| graph.nodes.len() <= whole));
                continue;
            }
            let kept = std::mem::replace(&mut bytes[at], random.below(256) as u8);
            let _ = chakra::read_bytes(&bytes);
            bytes[at] = kept;
        }
    }
}
