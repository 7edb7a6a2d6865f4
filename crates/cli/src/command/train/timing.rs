//! Formats the table of `rowmill train --timing`. The trainer measures the times.

use setup::render;
use train::RankTiming;

/// A figure of a rank's timing.
type TimingFigure = fn(&RankTiming) -> f64;

/// Formats the mean times of a step, with a column for each rank.
pub fn format_table(timings: &[RankTiming]) -> String {
    let mut header = vec!["ms per step".to_owned()];
    header.extend(timings.iter().map(|timing| format!("rank {}", timing.rank)));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let row = |(name, value): &(&str, TimingFigure)| {
        let values = timings.iter().map(|timing| format!("{:.3}", value(timing)));
        std::iter::once((*name).to_owned()).chain(values).collect()
    };
    let mut rows: Vec<(&str, TimingFigure)> =
        vec![("step", |timing| timing.step_ms), ("device", |timing| timing.device_ms)];
    // An asynchronous device does not report the time of each stage.
    if timings.iter().any(|timing| timing.lookup_ms > 0.0) {
        let stage_rows: [(&str, TimingFigure); 3] = [
            ("  lookups", |timing| timing.lookup_ms),
            ("  dense layers", |timing| timing.dense_ms),
            ("  row updates", |timing| timing.update_ms),
        ];
        rows.extend(stage_rows);
    }
    rows.push(("host", |timing| timing.host_ms));
    if timings.iter().any(|timing| timing.row_fetch_ms > 0.0) {
        rows.push(("  rows of tables in files", |timing| timing.row_fetch_ms));
    }
    let exchange_rows: [(&str, TimingFigure); 10] = [
        ("host without waits", |timing| timing.host_without_waits_ms),
        ("input distribution", |timing| timing.input_distribution_ms),
        ("pooled exchange", |timing| timing.pooled_exchange_ms),
        ("gradient exchange", |timing| timing.gradient_exchange_ms),
        ("all-reduce", |timing| timing.all_reduce_ms),
        ("exposed input distribution", |timing| timing.exposed_input_distribution_ms),
        ("exposed pooled exchange", |timing| timing.exposed_pooled_exchange_ms),
        ("exposed gradient exchange", |timing| timing.exposed_gradient_exchange_ms),
        ("exposed all-reduce", |timing| timing.exposed_all_reduce_ms),
        ("exposed control", |timing| timing.exposed_control_ms),
    ];
    // A single rank exchanges nothing, so it never waits for others.
    if timings.len() > 1 {
        rows.extend(exchange_rows);
    }
    render::grid(&header, &rows.iter().map(row).collect::<Vec<_>>())
}
