//! Table by table, every trace.

use analyze::hta::{self, Cutoffs, IDLE_THRESHOLD_NS, KernelType, View};
use serde::Serialize;
use serde_json::Value;

use super::{Line, check, ns, number, rank};

#[test]
fn temporal_breakdown_is_that_tools() {
    check("temporal_breakdown", |trace, views, truth| {
        let rows = hta::temporal(views);
        assert_eq!(rows.len(), truth.len(), "{trace}");
        for (row, truth) in rows.iter().zip(truth) {
            assert_eq!(row.rank, rank(truth), "{trace}");
            assert_eq!(row.window_ns, ns(truth, "kernel_time(us)"), "{trace}");
            assert_eq!(row.idle_ns, ns(truth, "idle_time(us)"), "{trace}");
            assert_eq!(row.compute_ns, ns(truth, "compute_time(us)"), "{trace}");
            assert_eq!(row.non_compute_ns, ns(truth, "non_compute_time(us)"), "{trace}");
            assert_eq!(row.idle_pct, number(truth, "idle_time_pctg"), "{trace}");
            assert_eq!(row.compute_pct, number(truth, "compute_time_pctg"), "{trace}");
            assert_eq!(row.non_compute_pct, number(truth, "non_compute_time_pctg"), "{trace}");
        }
    });
}

#[test]
fn overlap_of_communication_is_that_tools() {
    check("comm_comp_overlap", |trace, views, truth| {
        let rows = hta::overlap(views);
        assert_eq!(rows.len(), truth.len(), "{trace}");
        for (row, truth) in rows.iter().zip(truth) {
            assert_eq!(row.rank, rank(truth), "{trace}");
            assert_eq!(row.overlap_pct, number(truth, "comp_comm_overlap_pctg"), "{trace}");
        }
    });
}

#[test]
fn kernel_types_are_that_tools() {
    check("kernel_type_breakdown", |trace, views, truth| {
        let truth: Vec<KernelType> = truth
            .iter()
            .map(|line| KernelType {
                classes: ours(&line["kernel_type"]),
                exclusive_ns: ns(line, "sum"),
                busy_pct: number(line, "percentage"),
            })
            .collect();
        assert_eq!(hta::kernel_types(views), truth, "{trace}");
    });
}

#[test]
fn kernels_are_that_tools_to_the_printed_digits() {
    check("kernel_breakdown_all", |trace, views, truth| {
        let rows = hta::kernels(views);
        // The truth of the eight ranks was cut.
        assert!(rows.len() == truth.len() || (trace, truth.len()) == ("dlrm8", 419), "{trace}");
        for (row, truth) in rows.iter().zip(truth) {
            let place = format!("{trace}: {} of rank {}", row.name, row.rank);
            assert_eq!((&row.name, row.rank), (&truth["name"], rank(truth)), "{place}");
            assert_eq!(text(&row.class), ours(&truth["kernel_type"]), "{place}");
            assert_eq!(row.total_ns, ns(truth, "sum (us)"), "{place}");
            assert_eq!(row.max_ns, ns(truth, "max (us)"), "{place}");
            assert_eq!(row.min_ns, ns(truth, "min (us)"), "{place}");
            same_digits(row.mean_ns, truth, "mean (us)", &place);
            same_digits(row.std_ns, truth, "stddev", &place);
        }
    });
}

#[test]
fn idle_time_is_that_tools() {
    check("idle_time_breakdown", |trace, views, truth| {
        let rows = hta::idle(views, IDLE_THRESHOLD_NS);
        assert_eq!(rows.len(), truth.len(), "{trace}");
        for (row, truth) in rows.iter().zip(truth) {
            let place = format!("{trace}: stream {} of rank {}", row.stream, row.rank);
            assert_eq!((row.rank, row.stream.to_string()), (rank(truth), truth["stream"].clone()));
            assert_eq!(text(&row.cause), truth["idle_category"], "{place}");
            assert_eq!(row.idle_ns, ns(truth, "idle_time"), "{place}");
            assert_eq!(row.idle_pct, number(truth, "idle_time_ratio").map(percent), "{place}");
        }
    });
}

#[test]
fn launches_sum_to_that_tools() {
    check("launch_stats_summary", |trace, views, truth| {
        let rows = hta::launch_summary(&hta::launches(views), Cutoffs::HTA);
        assert_eq!(rows.len(), truth.len(), "{trace}");
        for (row, truth) in rows.iter().zip(truth) {
            let place = format!("{trace}: rank {}", row.rank);
            let count = |column: &str| truth[column].parse::<u64>().expect(column);
            assert_eq!((row.rank, row.work_count), (rank(truth), count("n")), "{place}");
            assert_eq!(row.call_ns, ns(truth, "sum_cpu"), "{place}");
            assert_eq!(row.device_ns, ns(truth, "sum_gpu"), "{place}");
            assert_eq!(row.delay_ns, ns(truth, "sum_delay"), "{place}");
            assert_eq!(row.short_count, count("short_kernels"), "{place}");
            assert_eq!(row.slow_call_count, count("runtime_outliers"), "{place}");
            assert_eq!(row.late_count, count("launch_delay_outliers"), "{place}");
        }
    });
}

#[test]
fn launches_one_by_one_are_that_tools_and_in_its_order() {
    let compare = |trace: &str, views: &[View<'_>], file: &str| {
        let Some(text) = crate::fixture::text(&format!("hta_truth/{file}")) else { return };
        let truth = super::lines(&text);
        let rows = hta::launches(&views[..1]);
        // Longer tables were cut.
        assert!(rows.len() == truth.len() || truth.len() == 3000, "{trace}: {}", rows.len());
        for (row, truth) in rows.iter().zip(&truth) {
            let place = format!("{trace}: correlation {}", row.correlation);
            assert_eq!(Some(row.correlation as f64), number(truth, "correlation"), "{place}");
            assert_eq!(row.call_ns, ns(truth, "cpu_duration"), "{place}");
            assert_eq!(row.device_ns, ns(truth, "gpu_duration"), "{place}");
            assert_eq!(row.delay_ns, ns(truth, "launch_delay"), "{place}");
        }
    };
    check("temporal_breakdown", |trace, views, _| {
        compare(trace, views, &format!("{trace}.launch_stats_rank{}.csv", views[0].rank()));
    });
}

#[test]
fn queue_lengths_are_that_tools_in_count_min_and_max() {
    check("queue_length_summary", |trace, views, truth| {
        // Two lines of column names, then one with the names of the index.
        let truth: Vec<Vec<f64>> = truth.iter().filter_map(stream_line).collect();
        let rows: Vec<Vec<f64>> = hta::queue(views)
            .iter()
            .map(|row| {
                let counts =
                    [row.change_count as f64, row.length_min as f64, row.length_max as f64];
                [f64::from(row.rank), f64::from(row.stream)].into_iter().chain(counts).collect()
            })
            .collect();
        assert_eq!(rows, truth, "{trace}");
    });
}

#[test]
fn a_trace_of_amd_is_that_tools() {
    let Some(text) = crate::fixture::text("hta_truth/amd_mi250.all.json") else { return };
    let path = "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz";
    let Some(job) = super::job(path, 0) else { return };
    let truth: Value = serde_json::from_str(&text).unwrap();
    let views = hta::views(&job.traces);
    let us = |value: &Value| Some((value.as_f64()? * 1e3) as i64);
    let row = &hta::temporal(&views)[0];
    let temporal = &truth["temporal"][0];
    assert_eq!(Some(row.idle_ns), us(&temporal["idle_time(us)"]));
    assert_eq!(Some(row.compute_ns), us(&temporal["compute_time(us)"]));
    assert_eq!(Some(row.non_compute_ns), us(&temporal["non_compute_time(us)"]));
    assert_eq!(Some(row.window_ns), us(&temporal["kernel_time(us)"]));
    assert_eq!(row.idle_pct, temporal["idle_time_pctg"].as_f64());
    assert_eq!(row.compute_pct, temporal["compute_time_pctg"].as_f64());
    assert_eq!(row.non_compute_pct, temporal["non_compute_time_pctg"].as_f64());
    assert_eq!(hta::overlap(&views)[0].overlap_pct, None);
    for (row, truth) in
        hta::kernel_types(&views).iter().zip(truth["kernel_type"].as_array().unwrap())
    {
        assert_eq!(row.classes, ours(truth["kernel_type"].as_str().unwrap()));
        assert_eq!(Some(row.exclusive_ns), us(&truth["sum"]));
        assert_eq!(row.busy_pct, truth["percentage"].as_f64());
    }
    let idle = hta::idle(&views, IDLE_THRESHOLD_NS);
    assert_eq!(idle.len(), truth["idle"].as_array().unwrap().len());
    for (row, truth) in idle.iter().zip(truth["idle"].as_array().unwrap()) {
        assert_eq!(i64::from(row.stream), truth["stream"].as_i64().unwrap());
        assert_eq!(text_of(truth, "idle_category"), self::text(&row.cause));
        assert_eq!(Some(row.idle_ns), us(&truth["idle_time"]));
        assert_eq!(row.idle_pct, truth["idle_time_ratio"].as_f64().map(percent));
    }
    let queue = &hta::queue(&views)[0];
    assert_eq!(Some(queue.change_count as f64), truth["queue"][0]["queue_length_count"].as_f64());
    assert_eq!(Some(queue.length_min as f64), truth["queue"][0]["queue_length_min"].as_f64());
    assert_eq!(Some(queue.length_max as f64), truth["queue"][0]["queue_length_max"].as_f64());
    assert!(hta::launches(&views).is_empty(), "that tool knows no launches of AMD");
}

/// `[rank, stream, count, min, max]` of a line of the queue's table.
fn stream_line(line: &Line) -> Option<Vec<f64>> {
    let fields: Vec<f64> =
        line["line"].split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [rank, stream, count, _, _, min, _, _, _, max] = fields.as_slice() else { return None };
    Some(vec![*rank, *stream, *count, *min, *max])
}

/// Our spelling of a type's name.
fn ours(kernel_type: &str) -> String {
    let short = kernel_type.replace("COMPUTATION", "compute").replace(" overlapping ", "+");
    short.to_lowercase()
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().unwrap().to_owned()
}

fn text_of<'a>(truth: &'a Value, key: &str) -> &'a str {
    truth[key].as_str().unwrap()
}

/// A ratio of two decimals as percent.
fn percent(ratio: f64) -> f64 {
    (100.0 * ratio).round()
}

/// Microseconds are nanoseconds over 1000 but for the last bit.
fn same_digits(ns: f64, truth: &Line, column: &str, place: &str) {
    let us = number(truth, column).expect(column);
    assert!((ns / 1e3 - us).abs() <= us.abs() * 1e-14, "{place}: {column}: {} for {us}", ns / 1e3);
}
