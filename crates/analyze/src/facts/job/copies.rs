//! Collects the copies between host and devices, with their direction, kind of host memory and
//! launch call.

use trace::store::EventKind;

use crate::facts::calls::{self, Direction};
use crate::facts::scope::Scope;

/// A copy in the analyzed window, with its direction and the kind of its host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub row: u32,
    pub call: Option<u32>,
    pub direction: Direction,
    pub is_pageable: bool,
    pub bytes: u64,
    pub device: i32,
    pub stream: i32,
}

/// Returns the copies of a window, sorted by start.
pub(super) fn copies(scope: &Scope<'_>) -> Vec<Copy> {
    let trace = scope.trace;
    let rows = scope.device_rows.iter().filter(|row| trace.kind(**row) == EventKind::Memcpy);
    rows.map(|row| Copy {
        row: *row,
        call: scope.links().call(*row),
        direction: calls::direction(trace.name(*row)),
        is_pageable: calls::is_pageable(trace.name(*row)),
        bytes: trace.slices.bytes.get(*row).copied().unwrap_or_default(),
        device: trace.device(*row),
        stream: trace.stream(*row),
    })
    .collect()
}
