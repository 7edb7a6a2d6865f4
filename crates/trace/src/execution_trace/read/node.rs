//! Converts one JSON node to a [`Node`]. Up to schema 1.0.1, the fields of a node are flat. Later
//! schemas store most fields in a list of attributes.

use serde_json::Value as Json;

use crate::execution_trace::{Argument, Node, NodeTensor, RecordScope, TraceValue};
use crate::store::{StringId, Strings};

/// Converts a JSON node to a [`Node`]. Returns `None` if it has no id, no name or no parent.
pub fn read(json: &Json, strings: &mut Strings) -> Option<Node> {
    let id = unsigned(&json["id"])?;
    let name = strings.intern(json["name"].as_str()?);
    let parent = ["ctrl_deps", "parent"].into_iter().find_map(|key| first_unsigned(&json[key]));
    let mut node = Node {
        id,
        parent: parent?,
        name,
        record_function: 0,
        forward_parent: 0,
        sequence: -1,
        scope: RecordScope::Function,
        thread: 0,
        forward_thread: 0,
        op_schema: StringId::default(),
        kernel_backend: StringId::default(),
        kernel_file: StringId::default(),
        inputs: sided(json, ["inputs", "input_shapes", "input_types"], strings),
        outputs: sided(json, ["outputs", "output_shapes", "output_types"], strings),
        collective: None,
        rest: Vec::new(),
    };
    for (key, value) in json.as_object()? {
        attribute(&mut node, key, value, strings);
    }
    for entry in json["attrs"].as_array().into_iter().flatten() {
        let Some(key) = entry["name"].as_str() else { continue };
        if !attribute(&mut node, key, &entry["value"], strings) {
            let kind = entry["type"].as_str().unwrap_or_default();
            let value = value(&entry["value"], kind, &Json::Null, &Json::Null, strings);
            node.rest.push((strings.intern(key), value));
        }
    }
    Some(node)
}

/// Sets the field of a known attribute. Returns whether the attribute is known.
fn attribute(node: &mut Node, key: &str, value: &Json, strings: &mut Strings) -> bool {
    let number = || unsigned(value).unwrap_or_default();
    let mut text = || strings.intern(value.as_str().unwrap_or_default());
    match key {
        "rf_id" => node.record_function = number(),
        "fw_parent" => node.forward_parent = number(),
        "seq_id" => node.sequence = signed(value).unwrap_or(-1),
        "scope" => node.scope = RecordScope::new(number()),
        "tid" => node.thread = number(),
        "fw_tid" => node.forward_thread = number(),
        "op_schema" => node.op_schema = text(),
        "kernel_backend" => node.kernel_backend = text(),
        "kernel_file" => node.kernel_file = text(),
        _ => return false,
    }
    true
}

/// Reads the inputs or outputs of a node. Depending on the schema, a node's inputs are three
/// parallel lists, or one object with four lists.
fn sided(json: &Json, keys: [&str; 3], strings: &mut Strings) -> Vec<Argument> {
    let [side, shapes, types] = keys;
    let side = &json[side];
    let lists = match side {
        Json::Object(_) => [&side["values"], &side["shapes"], &side["types"], &side["strides"]],
        _ => [side, &json[shapes], &json[types], &Json::Null],
    };
    let [values, shapes, types, strides] = lists;
    let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut arguments = Vec::with_capacity(values.len());
    for (at, given) in values.iter().enumerate() {
        let kind = types[at].as_str().unwrap_or_default();
        let value = value(given, kind, &shapes[at], &strides[at], strings);
        arguments.push(Argument { kind: strings.intern(kind), value });
    }
    arguments
}

/// Converts a value according to its type name. Without a type name, a list of six entries that
/// ends in a text is a tensor.
fn value(
    json: &Json,
    kind: &str,
    shape: &Json,
    strides: &Json,
    strings: &mut Strings,
) -> TraceValue {
    match json {
        Json::Null => TraceValue::None,
        Json::Bool(truth) => TraceValue::Bool(*truth),
        Json::Number(number) => number
            .as_i64()
            .map(TraceValue::Int)
            .or_else(|| number.as_u64().map(TraceValue::Unsigned))
            .unwrap_or_else(|| TraceValue::Float(number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) if text == "<None>" => TraceValue::None,
        Json::String(text) => match real(text, kind) {
            Some(real) => TraceValue::Float(real),
            None => TraceValue::Text(strings.intern(text)),
        },
        Json::Array(parts) if is_tensor(parts, kind) => {
            TraceValue::Tensor(Box::new(tensor(parts, kind, shape, strides, strings)))
        }
        Json::Array(parts) => {
            let mut kinds = ElementKinds::from_name(kind);
            let element = |(at, part): (usize, &Json)| {
                let kind = kinds.next().unwrap_or_default();
                value(part, kind, &shape[at], &strides[at], strings)
            };
            TraceValue::List(parts.iter().enumerate().map(element).collect())
        }
        Json::Object(_) => TraceValue::Text(strings.intern(&json.to_string())),
    }
}

/// Parses an infinite or NaN value, which JSON can only store as a text.
fn real(text: &str, kind: &str) -> Option<f64> {
    let is_real = matches!(kind, "Double" | "Float" | "double" | "float" | "Scalar");
    is_real.then(|| text.parse().ok()).flatten()
}

fn is_tensor(parts: &[Json], kind: &str) -> bool {
    let numbers = || parts.iter().take(5).all(Json::is_number);
    if kind.is_empty() {
        return parts.len() == 6 && numbers() && parts[5].is_string();
    }
    kind.starts_with("Tensor(") && matches!(parts.len(), 5 | 6) && numbers()
}

fn tensor(
    parts: &[Json],
    kind: &str,
    shape: &Json,
    strides: &Json,
    strings: &mut Strings,
) -> NodeTensor {
    let number = |at: usize| unsigned(&parts[at]).unwrap_or_default();
    let dtype = kind.strip_prefix("Tensor(").and_then(|rest| rest.strip_suffix(')'));
    NodeTensor {
        id: number(0),
        storage: number(1),
        offset: number(2),
        elements: number(3),
        element_bytes: number(4),
        device: strings.intern(parts.get(5).and_then(Json::as_str).unwrap_or_default()),
        dtype: strings.intern(dtype.unwrap_or_default()),
        shape: sizes(shape),
        strides: sizes(strides),
    }
}

fn sizes(json: &Json) -> Box<[i64]> {
    json.as_array().into_iter().flatten().filter_map(signed).collect()
}

fn first_unsigned(json: &Json) -> Option<u64> {
    unsigned(json.as_array().and_then(|list| list.first()).unwrap_or(json))
}

fn unsigned(json: &Json) -> Option<u64> {
    json.as_u64().or_else(|| json.as_str()?.parse().ok())
}

fn signed(json: &Json) -> Option<i64> {
    json.as_i64().or_else(|| json.as_str()?.parse().ok())
}

/// Iterates over the element types in a type name such as `GenericList[Int,Tensor(float)]`.
struct ElementKinds<'a> {
    rest: &'a str,
}

impl<'a> ElementKinds<'a> {
    fn from_name(kind: &'a str) -> Self {
        let inner = kind.split_once('[').and_then(|(_, inner)| inner.strip_suffix(']'));
        Self { rest: inner.unwrap_or_default() }
    }
}

impl<'a> Iterator for ElementKinds<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        // Element types may have brackets and commas of their own, so only outer commas separate.
        let mut depth = 0_i32;
        let is_end = |character: char| {
            match character {
                '[' | '(' => depth += 1,
                ']' | ')' => depth -= 1,
                _ => {}
            }
            character == ',' && depth == 0
        };
        let end = self.rest.find(is_end).unwrap_or(self.rest.len());
        let (kind, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default();
        Some(kind)
    }
}
