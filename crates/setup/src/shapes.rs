//! Reads the shapes of tensors from the arguments of recorded operators. A trace in memory does not
//! keep them, so they are read again from the files, for selected rows only.

use analyze::job::Tensors;
use serde_json::{Map, Value};
use trace::open::{self, TraceRows};
use trace::store::Trace;

/// Reads the arguments about shapes for the `rows` of each trace, and calls `each` with the rank,
/// the row and the arguments. Traces without recorded shapes are left out, and so is standard
/// input, which cannot be read again.
pub fn each_with_shapes<'a>(
    traces: impl Iterator<Item = &'a Trace>,
    rows: &'a [Vec<u32>],
    mut each: impl FnMut((u32, u32), &Map<String, Value>),
) {
    let has_shapes = |events: &TraceRows<'_>| {
        let header = &events.trace.header.rest;
        header.get("record_shapes").and_then(Value::as_i64) != Some(0) && !events.rows.is_empty()
    };
    let is_read = |name: &str| matches!(name, "Input Dims" | "Input type" | "flops" | "bytes");
    let asked: Vec<TraceRows<'_>> = traces
        .zip(rows)
        .map(|(trace, rows)| TraceRows { trace, rows })
        .filter(has_shapes)
        .collect();
    for (TraceRows { trace, rows }, found) in
        asked.iter().zip(open::selected_arguments(&asked, &is_read))
    {
        for (row, arguments) in rows.iter().zip(&found.unwrap_or_default()) {
            each((trace.rank, *row), arguments);
        }
    }
}

/// Parses the dimensions and the types of an operator's inputs.
pub fn tensors(dims: Option<&Value>, types: Option<&Value>) -> Option<Tensors> {
    let sizes = |of: &Value| {
        let sizes = of.as_array().map_or(&[][..], Vec::as_slice);
        sizes.iter().filter_map(Value::as_u64).collect()
    };
    let dims: Vec<Vec<u64>> = dims?.as_array()?.iter().map(sizes).collect();
    let named = types.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let types = named.iter().map(|of| of.as_str().unwrap_or_default().to_owned()).collect();
    Some(Tensors { dims, types })
}
