//! Tests that the times of training steps are reported, and agree with a trace of the same steps.

use serde_json::Value;

use crate::fixture::Place;

const STEPS: usize = 12;

#[test]
fn exposed_times_agree_with_the_trace_of_the_same_steps() {
    let place = Place::new();
    let set = format!("--set rows_cap=1000 --set batch_size=256 --set steps={STEPS}");
    let words = format!("train dlrm-ddp {set} --set log_every=4 --synthetic 4000 --ranks 2");
    let trace = format!("--trace traces --trace-steps 0..{STEPS}");
    let finished = place.done(&format!("{words} --run run {trace} --format json")).last();
    let table = place.done("trace overlap traces --window all --top 100 --format csv").stdout;
    let ns = |rank: u32, classes: &str| {
        let start = format!("{rank},,{classes},");
        let row = table.lines().find_map(|line| line.strip_prefix(&start));
        row.and_then(|row| row.split(',').next()?.parse::<f64>().ok()).unwrap_or_else(|| {
            panic!("{classes} of rank {rank}: {table}");
        })
    };
    let timing = finished["timing"].as_array().unwrap();
    assert_eq!(timing.len(), 2, "{finished}");
    for (rank, row) in (0..).zip(timing) {
        let sum_ms = |is_part: &dyn Fn(&str) -> bool| {
            let parts = row.as_object().unwrap().iter().filter(|(name, _)| is_part(name));
            STEPS as f64 * parts.map(|(_, value)| value.as_f64().unwrap()).sum::<f64>()
        };
        // Sums of losses and commands may end after the last step.
        let exposed_ms = sum_ms(&|name| name.starts_with("exposed") && !name.contains("control"));
        let trace_ms = ns(rank, "communication") / 1e6;
        let name = format!("rank {rank}: {exposed_ms} ms, {trace_ms} ms in the trace, {row}");
        let slack_ms = 0.15 * exposed_ms + STEPS as f64;
        assert!(exposed_ms > 0.0 && (trace_ms - exposed_ms).abs() < slack_ms, "{name}");
        assert!(ns(rank, "compute+communication") > 0.0, "{name}");
        let parts = sum_ms(&|name| ["device_ms", "host_ms"].contains(&name));
        assert!((parts - sum_ms(&|name| name == "step_ms")).abs() < 1e-6, "{name}");
    }
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let interval: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    assert_eq!(interval["timing"].as_array().unwrap().len(), 2, "{interval}");
    let shown = place.done(&format!("{words} --run shown --timing")).stdout;
    assert!(shown.contains("exposed all-reduce") && shown.contains("rank 1"), "{shown}");
    assert!(!place.done(&format!("{words} --run plain")).stdout.contains("exposed"));
    let alone =
        place.done(&format!("{words} --run alone --timing --ranks 1").replace("--ranks 2 ", ""));
    let shows = |row: &str| alone.stdout.lines().any(|line| line.trim_start().starts_with(row));
    assert!(shows("device") && !shows("exposed") && !shows("host without"), "{}", alone.stdout);
}
