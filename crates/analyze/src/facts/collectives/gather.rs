//! Collects the communication rows of all ranks, each with the key that identifies its collective.
//! Joining the rows of different ranks is left to `collectives`.

use std::collections::{BTreeMap, HashMap};

use trace::store::{Collective, EventKind, StringId, Trace, TrackId};

use super::message::{self, CollectiveOperation};
use crate::facts::classify::WorkClass;
use crate::facts::scope::Scope;

/// The kernel of a collective on one rank.
#[derive(Clone, Debug)]
pub(super) struct CollectiveCall {
    pub key: CollectiveKey,
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    pub row: u32,
    pub start: i64,
    pub end: i64,
    pub name: String,
    pub operation: CollectiveOperation,
    pub group: CollectiveGroup,
    pub group_size: Option<u32>,
    pub sequence: Option<u64>,
    pub bytes: Option<u64>,
    pub dtype: String,
}

/// Identity of a collective. Kernels of several ranks with the same key belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CollectiveKey {
    /// Index of the process group in the list of all groups.
    pub group: u32,
    operation: CollectiveOperation,
    /// Index of the kernel name among all names, set if the operation is unknown.
    name: u32,
    bytes: u64,
    step: i64,
    sequence: Option<u64>,
    ordinal: u32,
}

/// A process group as a trace describes it, by its name and its list of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectiveGroup {
    pub name: String,
    /// The members of the group, in the spelling of the trace.
    pub ranks: String,
    pub description: String,
}

pub(super) fn calls(scopes: &[Scope<'_>]) -> Vec<CollectiveCall> {
    let all_have_steps = scopes.iter().all(|scope| !scope.window.steps.is_empty());
    let mut groups: BTreeMap<(String, String), u32> = BTreeMap::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut all = Vec::new();
    for scope in scopes {
        let mut ordinals: HashMap<(i32, CollectiveKey), u32> = HashMap::new();
        let recorded = recorded(scope.trace);
        let rows = scope.device_rows.iter().zip(&scope.classes);
        for (&row, _) in rows.filter(|(_, class)| **class == WorkClass::Communication) {
            let mut call = describe(scope, row, &recorded);
            let next = groups.len() as u32;
            let id = (call.group.name.clone(), call.group.ranks.clone());
            call.key.group = *groups.entry(id).or_insert(next);
            if call.operation == CollectiveOperation::Other {
                let next = names.len() as u32;
                call.key.name = *names.entry(call.name.clone()).or_insert(next);
            }
            if call.sequence.is_none() && all_have_steps {
                call.key.step = step(scope, row);
            }
            let ordinal = ordinals.entry((call.device, call.key)).or_insert(0);
            call.key.ordinal = *ordinal;
            *ordinal += 1;
            // The end of a kernel that runs past the covered part of a cut recording is unknown.
            let is_whole =
                scope.trace.cut.is_none() || scope.trace.slices.unfinished.get(row).is_none();
            if is_whole {
                all.push(call);
            }
        }
    }
    all
}

fn describe(scope: &Scope<'_>, row: u32, recorded: &[CollectiveRow]) -> CollectiveCall {
    let trace = scope.trace;
    // Some profilers write the arguments of a collective at its kernel. Other profilers write the
    // arguments only at the host row around the launch.
    let own = trace.slices.collective.get(row);
    let collective = own.or_else(|| {
        let around = around(trace, recorded, scope.links().call(row)?)?;
        trace.slices.collective.get(around)
    });
    let text = |id: StringId| trace.strings.get(id);
    let name_from = |take: fn(&Collective) -> StringId| {
        collective.map_or_else(String::new, |collective| text(take(collective)).to_owned())
    };
    let operation = message::operation(collective.map(|c| text(c.name)), trace.name(row));
    let bytes = collective.and_then(|collective| message::bytes(trace, collective));
    let sequence = collective.and_then(|collective| collective.sequence);
    // Ranks may send different amounts in some operations, such as all-to-all, so only operations
    // of one size are matched by size.
    let is_sized = sequence.is_none() && message::is_of_one_size(operation);
    let key = CollectiveKey {
        group: 0,
        operation,
        name: 0,
        bytes: bytes.filter(|_| is_sized).unwrap_or(0),
        step: 0,
        sequence,
        ordinal: 0,
    };
    CollectiveCall {
        key,
        rank: trace.rank,
        device: trace.device(row),
        stream: trace.stream(row),
        row,
        start: trace.slices.start(row),
        end: trace.slices.end(row),
        name: plain_name(trace.name(row)),
        operation,
        group: CollectiveGroup {
            name: name_from(|c| c.group),
            ranks: name_from(|c| c.group_ranks),
            description: name_from(|c| c.group_description),
        },
        group_size: collective.and_then(|collective| collective.group_size),
        sequence,
        bytes,
        dtype: name_from(|c| c.dtype),
    }
}

/// Returns the name of a kernel without its parameters.
fn plain_name(kernel: &str) -> String {
    let named = kernel.replace("(anonymous namespace)::", "");
    let plain = named.split_once('(').map_or(named.as_str(), |(plain, _)| plain).trim_end();
    if plain.is_empty() { kernel.to_owned() } else { plain.to_owned() }
}

/// Returns the step that launched a kernel, or the step in which it began if its launch is unknown,
/// or −1 outside all steps.
fn step(scope: &Scope<'_>, row: u32) -> i64 {
    let time = scope.trace.slices.start(scope.links().call(row).unwrap_or(row));
    let steps = &scope.window.steps;
    let begun = steps.partition_point(|step| step.start <= time);
    let last = begun.checked_sub(1).map(|at| &steps[at]);
    last.filter(|step| time < step.end).map_or(-1, |step| step.number)
}

/// A host row that describes a collective (`record_param_comms`), as (track, start, row).
type CollectiveRow = (TrackId, i64, u32);

/// Returns the host rows that describe collectives, sorted by thread and start.
fn recorded(trace: &Trace) -> Vec<CollectiveRow> {
    let slices = &trace.slices;
    let place = |row: u32| (slices.track[row as usize], slices.start(row), row);
    let rows = slices.collective.iter().map(|(row, _)| row);
    let mut recorded: Vec<_> =
        rows.filter(|row| trace.kind(*row) == EventKind::Operator).map(place).collect();
    recorded.sort_unstable();
    recorded
}

/// Returns the description of a collective that contains a call: the last one that began before the
/// call on its thread.
fn around(trace: &Trace, recorded: &[CollectiveRow], call: u32) -> Option<u32> {
    let slices = &trace.slices;
    let (track, start) = (slices.track[call as usize], slices.start(call));
    let begun = recorded.partition_point(|(on, from, _)| (*on, *from) <= (track, start));
    let (on, _, row) = recorded[begun.checked_sub(1)?];
    (on == track && start <= slices.end(row)).then_some(row)
}
