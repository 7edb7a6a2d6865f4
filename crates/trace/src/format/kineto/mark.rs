//! Defines the header key of a file that was written from a truncated recording. The JSON text of
//! such a file is complete, so without this key it would pass as a whole recording.

use serde_json::{Value, json};

use crate::merge::MergedPart;
use crate::store::{Covered, CutRecording, Ending, TraceHeader};

/// Name of the header key that marks a truncated recording.
pub const KEY: &str = "rowmillCut";

/// Decodes the header's entry about the truncation. Returns `None` if there is no such entry.
pub fn read(header: &TraceHeader) -> Option<CutRecording> {
    let mark = header.rest.get(KEY)?;
    let until = mark["covered_until_ns"].as_i64();
    Some(CutRecording {
        ending: Ending::WithinEvents,
        byte: mark["byte"].as_u64().unwrap_or_default(),
        why: mark["why"].as_str().unwrap_or("it was written from a cut recording").to_owned(),
        covered: Some(until.map_or(Covered::Nothing, Covered::Until)),
        span: None,
    })
}

/// Creates the entry for a file with these parts. If several recordings were truncated, the entry
/// states the period that all of them cover.
pub fn marks(parts: &[MergedPart<'_>]) -> Option<Value> {
    let cuts = || parts.iter().filter_map(|part| Some((part, part.trace.cut.as_ref()?)));
    let (_, first) = cuts().next()?;
    let until = |(part, cut): (&MergedPart<'_>, &CutRecording)| match cut.covered {
        Some(Covered::Until(end)) => Some(part.time(end)),
        _ => None,
    };
    let all: Option<Vec<i64>> = cuts().map(until).collect();
    let until = all.and_then(|all| all.into_iter().min());
    let why = match parts {
        [_] => first.why.clone(),
        _ => {
            let ranks: Vec<String> = cuts().map(|(part, _)| part.trace.rank.to_string()).collect();
            format!("the recordings of ranks {} were cut", ranks.join(", "))
        }
    };
    Some(json!({ "byte": first.byte, "why": why, "covered_until_ns": until }))
}
