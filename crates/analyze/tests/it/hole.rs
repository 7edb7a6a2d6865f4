//! Checks recordings that lack a range of bytes in the middle but have an intact end. No figure may
//! be far off, while whole recordings keep their figures.

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule, breakdown, coverage};
use trace::open;
use trace::store::Trace;

use crate::cut;
use crate::fixture;

/// Maximum error of a share of the window that needs no warning, in percentage points.
const POINTS: f64 = 2.0;
/// Parts of the names of ten recordings from all profiler versions and device vendors.
const RECORDINGS: [&str; 10] = [
    "alexnet/",
    "linear/linear_kineto",
    "nccl/",
    "a100_full_queue",
    "h100_timesformer",
    "mi300_resnet_act_checkpoint",
    "mtia_inference",
    "resnet50_2021_workers0",
    "sglang_decode.json",
    "trace_diff/test",
];
/// The two recordings that everyday checks use.
const SHORT: [&str; 2] = ["alexnet/", "sglang_decode.json"];
/// Places at which the holes begin, in percent of the text.
const PLACES: [usize; 6] = [8, 25, 45, 62, 78, 93];

#[test]
fn figures_of_a_recording_with_a_hole_are_close() {
    let Some(folder) = fixture::path("traces") else { return };
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    let names: &[&str] = if is_full { &RECORDINGS } else { &SHORT };
    let is_wanted = |name: &str| names.iter().any(|part| name.contains(part));
    let (mut files, mut with_figures, mut wrong) = (0, 0, Vec::new());
    for (name, text) in cut::texts(&folder).into_iter().filter(|(name, _)| is_wanted(name)) {
        let whole = shares(&text).expect("a trace");
        assert!(whole.is_some(), "{name} is whole");
        for (at, place) in PLACES.into_iter().enumerate() {
            // The holes have 200 bytes to a tenth of the text. Each recording has each size at
            // another place.
            let sizes =
                [200, 2000, text.len() / 100, text.len() / 30, text.len() / 15, text.len() / 10];
            let start = text.len() * place / 100;
            let end =
                (start + sizes[(at + files / PLACES.len()) % sizes.len()]).min(text.len() - 200);
            files += 1;
            let damaged = [&text[..start], &text[end..]].concat();
            // A text whose beginning is lost is not a trace, so the parser rejects it.
            let Some(Some(found)) = shares(&damaged) else { continue };
            with_figures += 1;
            let off = found.iter().zip(whole.iter().flatten()).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0_f64, f64::max);
            println!("{name}: {} bytes at {place} %: {off:.2} points off", end - start);
            if off > POINTS {
                wrong.push(format!("{name}: {} bytes at {place} %: {off:.2} points", end - start));
            }
        }
    }
    println!("{files} files, {with_figures} with figures");
    assert!(wrong.is_empty(), "{} of {files}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns shares of the window: busy, compute, communication, memory, exposed communication and
/// exposed memory. The outer `None` stands for a text that is not a trace, and the inner one for a
/// trace without figures.
fn shares(text: &[u8]) -> Option<Option<Vec<f64>>> {
    let mut trace: Trace = open::parse(text).ok()?;
    coverage::judge(&mut trace);
    if coverage::missing([&trace]).is_some() {
        return Some(None);
    }
    coverage::trim(&mut trace);
    let classifier = Classifier::new(ClassRule::Category);
    let scope = Scope::new(&trace, WindowRule::Steps, &classifier);
    let row = breakdown::compute_recorded_breakdown(&scope);
    let parts = [
        row.busy_ns,
        row.compute_ns,
        row.communication_ns,
        row.memory_ns,
        row.exposed_communication_ns,
        row.exposed_memory_ns,
    ];
    Some(Some(parts.iter().map(|ns| 100.0 * *ns as f64 / row.window_ns.max(1) as f64).collect()))
}
