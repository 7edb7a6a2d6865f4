use std::collections::BTreeSet;

use prost::Message;

use super::{Body, Entry, EntryBatch, GpuInterval, Orders, TraceOrder, VERSION};
use crate::wire::{self, RecordWhen};

const RUST: &str = include_str!("../proto.rs");
const PROTO: &str = include_str!("../../proto/hub.proto");

/// Lists the fields in the proto file as `Message.field = number`.
fn described() -> BTreeSet<String> {
    let (mut found, mut message) = (BTreeSet::new(), "");
    for line in PROTO.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("message ") {
            message = rest.trim_end_matches(" {");
        }
        let field = line.strip_suffix(';').and_then(|line| line.rsplit_once(" = "));
        let Some((field, number)) = field.filter(|_| !line.starts_with("syntax")) else { continue };
        let name = field.rsplit(' ').next().unwrap();
        found.insert(format!("{message}.{name} = {number}"));
    }
    found
}

/// Lists the fields of the Rust types in the same form. Variants of a choice belong to the message
/// that contains it.
fn written() -> BTreeSet<String> {
    let choices = [("Body", "Entry"), ("Wanted", "Order")];
    let (mut found, mut message, mut number) = (BTreeSet::new(), "", None);
    for line in RUST.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum ")) {
            let name = rest.trim_end_matches(" {");
            let owner = choices.iter().find(|(choice, _)| *choice == name);
            message = owner.map_or(name, |(_, owner)| owner);
        }
        if let Some((_, rest)) = line.split_once("tag = \"") {
            number = rest.split_once('"').map(|(number, _)| number);
            continue;
        }
        let field = line.strip_prefix("pub ").and_then(|line| line.split_once(':'));
        let case = line.split_once('(').filter(|_| line.ends_with("),"));
        if let (Some(taken), Some((name, _))) = (number, field.or(case)) {
            found.insert(format!("{message}.{} = {taken}", name.to_lowercase()));
            number = None;
        }
    }
    found
}

#[test]
fn proto_file_matches_the_rust_types() {
    let (described, written) = (described(), written());
    assert_eq!(described, written);
    assert!(written.contains("Order.cancel = 3") && written.len() > 80, "{}", written.len());
}

fn batch() -> EntryBatch {
    let interval = GpuInterval {
        start_unix_s: 1_700_000_000,
        uuid: "GPU-1".into(),
        observed_s: 9.5,
        sums: [("busy_s".to_owned(), 4.75)].into(),
        ..GpuInterval::default()
    };
    let body = Some(Body::Gpu(Box::new(interval)));
    let entries = vec![Entry { sequence: 7, body }];
    let (version, host, queue) = (VERSION, "a".into(), vec![3; 16]);
    EntryBatch { version, host, queue, gone_through: 6, entries, sent_unix_ms: Some(7) }
}

#[test]
fn batch_round_trips_and_truncation_never_panics() {
    let bytes = batch().encode_to_vec();
    assert_eq!(EntryBatch::decode(bytes.as_slice()).unwrap(), batch());
    for length in 0..bytes.len() {
        // A message truncated between two fields is a valid shorter message, so decoding may
        // succeed. Decoding must not panic.
        let _ = EntryBatch::decode(&bytes[..length]);
    }
}

#[test]
fn order_converts_to_the_wire_type_without_loss() {
    let order =
        TraceOrder { token: "a".into(), iterations: 5, align: 100, ..TraceOrder::default() };
    let wire: wire::TraceOrder = order.clone().into();
    assert_eq!((wire.when, wire.job), (RecordWhen::Iterations { count: 5, align: 100 }, None));
    let span = TraceOrder { iterations: 0, length_ms: 500, warmup_s: 2, ..order };
    let wire: wire::TraceOrder = span.into();
    assert_eq!(wire.when, RecordWhen::Duration { length_ms: 500, warmup_s: 2, start_unix_ms: 0 });
    assert_eq!(Orders::decode(&[][..]).unwrap().orders.len(), 0);
}
