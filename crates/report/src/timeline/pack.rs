//! Packs events as variable-length integers of seven bits per byte. The lowest bits come first, and
//! the high bit is set on all bytes but the last.
//!
//! The events of a lane are in order of start. Each event consists of the time since the end of the
//! previous event, its duration and its label. For the first event, the time counts from the zero
//! of the page's clock. On device lanes, two values follow. The first identifies the launching call
//! by its index over all lanes. The index is encoded as the zigzag difference to the previous index
//! plus one, and 0 means that the launching call is unknown. The second value is the index of the
//! note.

use std::collections::BTreeMap;

use analyze::Scope;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::lay::PackedLane;

/// The packed bytes of all lanes, with the index of each event.
pub(super) struct Packed {
    pub bytes: Vec<u8>,
    /// Index of each row's event, by rank and row.
    places: BTreeMap<u32, Vec<u32>>,
}

const NONE: u32 = u32::MAX;

impl Packed {
    /// Returns the sorted indices of the events of the given rows. Rows that are not drawn are
    /// skipped.
    pub fn places(&self, scopes: &[Scope<'_>], rows: &[(u32, u32)]) -> Vec<u32> {
        let known = |rank: &u32| scopes.iter().any(|scope| scope.trace.rank == *rank);
        let place = |(rank, row): &(u32, u32)| {
            known(rank).then(|| self.places[rank][*row as usize]).filter(|place| *place != NONE)
        };
        let mut places: Vec<u32> = rows.iter().filter_map(place).collect();
        places.sort_unstable();
        places
    }
}

/// Packs the lanes. `labels` maps each interned label to its position by frequency.
pub(super) fn events(scopes: &[Scope<'_>], lines: &[PackedLane], labels: &[u32]) -> Packed {
    let rows = |scope: &Scope<'_>| (scope.trace.rank, vec![NONE; scope.trace.slices.len()]);
    let mut places: BTreeMap<u32, Vec<u32>> = scopes.iter().map(rows).collect();
    // All events get their positions first, because work on a device refers to calls on other
    // lanes.
    let mut next = 0;
    for line in lines {
        if let Some(of_rank) = places.get_mut(&line.rank) {
            for event in &line.events {
                of_rank[event.row as usize] = next;
                next += 1;
            }
        }
    }
    let mut bytes = Vec::new();
    for line in lines {
        let scope = scopes.iter().find(|scope| scope.trace.rank == line.rank);
        let (Some(scope), Some(of_rank)) = (scope, places.get(&line.rank)) else { continue };
        let (mut end, mut last_call) = (0, 0i64);
        for event in &line.events {
            put(&mut bytes, unsigned(event.start - end));
            put(&mut bytes, unsigned(event.end - event.start));
            put(&mut bytes, u64::from(labels[event.label as usize]));
            end = event.end;
            if line.is_device {
                let call = scope.links().call(event.row).map(|call| of_rank[call as usize]);
                let code = match call.filter(|call| *call != NONE) {
                    Some(call) => {
                        let step = i64::from(call) - last_call;
                        last_call = i64::from(call);
                        1 + zigzag(step)
                    }
                    None => 0,
                };
                put(&mut bytes, code);
                put(&mut bytes, u64::from(event.note));
            }
        }
    }
    Packed { bytes, places }
}

/// Packs ascending numbers as the differences between neighbors.
pub(super) fn ascending(values: &[u32]) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for value in values {
        put(&mut bytes, u64::from(value - before));
        before = *value;
    }
    bytes
}

/// Encodes bytes as base64, because the page embeds them in text.
pub(super) fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Converts a difference to an unsigned number. Events of a lane do not overlap and start after the
/// page's zero, so differences are not negative.
fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
