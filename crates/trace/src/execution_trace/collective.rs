//! Extracts the message of a collective from a node's attributes or, in older schemas, from its
//! inputs.

use super::value::{Argument, NodeTensor, TraceValue};
use crate::store::{StringId, Strings};

/// The message of a collective and its process group. A text is empty if the file does not state
/// it, and a number is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCollective {
    /// Name of the operation, such as `allreduce`, `all_to_allv` or `wait`.
    pub name: StringId,
    /// Element type as PyTorch spells it.
    pub dtype: StringId,
    /// Number of elements that this rank sends.
    pub elements_in: Option<u64>,
    /// Number of elements that this rank receives.
    pub elements_out: Option<u64>,
    /// Number of elements sent to each peer. The list is empty if all peers get equally many
    /// elements.
    pub splits_in: Vec<u64>,
    /// Number of elements received from each peer. The list is empty if all peers send equally many
    /// elements.
    pub splits_out: Vec<u64>,
    pub rank: Option<u32>,
    /// Number of the request, which a collective shares with its `wait`.
    pub request: Option<u64>,
    pub group: StringId,
    pub group_description: StringId,
    pub group_size: Option<u32>,
    /// Global rank of the process group's first member.
    pub rank_start: Option<u32>,
    /// Difference between the global ranks of neighboring members of the process group.
    pub rank_stride: Option<u32>,
}

impl NodeCollective {
    /// Name of the nodes that record collectives.
    pub const RECORD: &str = "record_param_comms";

    /// Decodes a node named [`Self::RECORD`] from its inputs, outputs and attributes.
    ///
    /// The inputs have the same order in every schema: tensors, request, process group, rank, name,
    /// input splits, output splits, then up to three numbers. The last number is the group size.
    pub fn recorded(
        inputs: &[Argument],
        outputs: &[Argument],
        attributes: &[(StringId, TraceValue)],
        strings: &mut Strings,
    ) -> Self {
        let mut collective = Self::default();
        let (arguments, outputs) = (inputs, tensors(outputs));
        let inputs: Vec<&TraceValue> = arguments.iter().map(|input| &input.value).collect();
        // The number of tensors varies, so the other inputs are found relative to the name, which
        // is the last text.
        if let Some(at) = inputs.iter().rposition(|value| value.text().is_some()) {
            let before = |back: usize| at.checked_sub(back).map(|place| inputs[place]);
            collective.name = inputs[at].text().unwrap_or_default();
            collective.rank = before(1).and_then(small);
            collective.group =
                before(2).map(|group| group_name(group, strings)).unwrap_or_default();
            collective.request = before(3).and_then(|value| unsigned(request(value)));
            collective.splits_in = inputs.get(at + 1).map(|list| numbers(list)).unwrap_or_default();
            collective.splits_out =
                inputs.get(at + 2).map(|list| numbers(list)).unwrap_or_default();
            let numbers: Vec<u32> = inputs.iter().skip(at + 3).filter_map(|v| small(v)).collect();
            collective.group_size = numbers.last().copied();
            if let [start, stride, _] = numbers[..] {
                collective.rank_start = Some(start);
                collective.rank_stride = Some(stride);
            }
        }
        let inputs = tensors(arguments);
        let sum =
            |of: &[NodeTensor]| of.iter().map(|tensor| tensor.elements).reduce(u64::saturating_add);
        collective.elements_in = sum(&inputs);
        collective.elements_out = sum(&outputs);
        collective.dtype = inputs.first().map(|tensor| tensor.dtype).unwrap_or_default();
        for (name, value) in attributes {
            collective.set(strings.get(*name), value);
        }
        collective
    }

    /// Overwrites a value with an attribute, which is more precise than the inputs.
    fn set(&mut self, name: &str, value: &TraceValue) {
        let text = value.text();
        match name {
            "collective_name" => self.name = text.unwrap_or(self.name),
            "dtype" => self.dtype = text.unwrap_or(self.dtype),
            "in_msg_nelems" => self.elements_in = unsigned(value).or(self.elements_in),
            "out_msg_nelems" => self.elements_out = unsigned(value).or(self.elements_out),
            "pg_name" => self.group = text.unwrap_or(self.group),
            "pg_desc" => self.group_description = text.unwrap_or(self.group_description),
            "pg_size" => self.group_size = small(value).or(self.group_size),
            "global_rank_start" => self.rank_start = small(value).or(self.rank_start),
            "global_rank_stride" => self.rank_stride = small(value).or(self.rank_stride),
            _ => {}
        }
    }
}

fn tensors(values: &[Argument]) -> Vec<NodeTensor> {
    values.iter().flat_map(|value| value.value.tensors()).cloned().collect()
}

/// Returns the name of the process group. Old schemas store a handle of the group, and new ones
/// store a pair of name and description.
fn group_name(value: &TraceValue, strings: &mut Strings) -> StringId {
    match value {
        TraceValue::Text(name) => *name,
        TraceValue::List(pair) => pair.first().and_then(TraceValue::text).unwrap_or_default(),
        TraceValue::Int(0) => StringId::default(),
        TraceValue::Int(handle) => strings.intern(&handle.to_string()),
        TraceValue::Unsigned(handle) => strings.intern(&handle.to_string()),
        _ => StringId::default(),
    }
}

/// Returns the request, which is a number or the first element of a list.
fn request(value: &TraceValue) -> &TraceValue {
    value.list().first().unwrap_or(value)
}

fn unsigned(value: &TraceValue) -> Option<u64> {
    match value {
        TraceValue::Int(int) => u64::try_from(*int).ok(),
        TraceValue::Unsigned(int) => Some(*int),
        _ => None,
    }
}

fn small(value: &TraceValue) -> Option<u32> {
    unsigned(value).and_then(|number| u32::try_from(number).ok())
}

fn numbers(value: &TraceValue) -> Vec<u64> {
    value.list().iter().filter_map(unsigned).collect()
}
