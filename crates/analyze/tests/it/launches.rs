//! Compares launches, idle streams and queues with Holistic Trace Analysis, on traces where that
//! tool is right: whole microseconds, no graphs, no overlaps within a stream.

use std::collections::BTreeMap;

use analyze::classify::ClassRule;
use analyze::idle::StreamCause;
use analyze::launches::LaunchSummary;
use analyze::{Classifier, Scope, WindowRule, idle, launches, queue, tree};
use trace::store::Trace;

use crate::fixture;

const RIGHT: [(&str, &str); 6] = [
    ("simple_add", "simple_add/benchmark_result_493459_1694039959_trace.json.gz"),
    ("alexnet", "alexnet/benchmark_result_2869224_1695835535_trace.json.gz"),
    ("linear_kineto", "linear/linear_kineto.json.gz"),
    ("timeline_sampled", "timeline_sampled/sampled_rank-0.json.gz"),
    ("trace_diff_control", "trace_diff/control.json.gz"),
    ("dlrm8", "dlrm8/dlrm_kineto.tar.gz"),
];
const GRAPHS: (&str, &str) = ("trace_diff_test", "trace_diff/test.json.gz");

/// Returns the cells of a table of expected values, without the header.
fn table(name: &str) -> Vec<Vec<String>> {
    let text = fixture::text(&format!("hta_truth/{name}.csv")).unwrap();
    let is_row = |line: &&str| line.contains(|c: char| c.is_ascii_digit()) && !line.contains('%');
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().filter(is_row).map(cells).collect()
}

/// Converts a cell of whole microseconds to nanoseconds.
fn ns(cell: &str) -> i64 {
    cell.parse::<f64>().unwrap() as i64 * 1000
}

fn scope(trace: &Trace) -> Scope<'_> {
    Scope::new(trace, WindowRule::Hta, &Classifier::new(ClassRule::Hta))
}

fn summary(trace: &Trace) -> LaunchSummary {
    let scope = scope(trace);
    launches::summary(&scope, launches::list_launches(&scope, &launches::LaunchSettings::USUAL))
}

/// Returns nanoseconds by stream and cause.
fn idle_streams(trace: &Trace) -> BTreeMap<(i32, &'static str), i64> {
    let idle =
        idle::compute_idle_time(&scope(trace), &tree::build(trace), &idle::IdleSettings::USUAL);
    let mut streams = BTreeMap::new();
    for row in idle.streams {
        let cause = match row.cause {
            // Holistic Trace Analysis counts gaps before work of an unknown launch as `host_wait`.
            StreamCause::HostWait | StreamCause::Unlinked => "host_wait",
            StreamCause::KernelWait => "kernel_wait",
            StreamCause::Other => "other",
            StreamCause::Head | StreamCause::Tail => continue,
        };
        *streams.entry((row.stream, cause)).or_default() += row.idle_ns;
    }
    streams
}

#[test]
fn launch_statistics_are_those_of_hta() {
    for (name, path) in RIGHT {
        let Some(job) = fixture::job(path) else { return };
        let truth = table(&format!("{name}.launch_stats_summary"));
        assert_eq!(truth.len(), job.traces.len(), "{name}");
        for (trace, truth) in job.traces.iter().zip(truth) {
            let ours = summary(trace);
            let times = [ours.call_ns, ours.device_ns, ours.delay_ns];
            assert_eq!(times.to_vec(), truth[2..5].iter().map(|c| ns(c)).collect::<Vec<_>>());
            let counts = [ours.work_count, ours.short_count, ours.slow_call_count, ours.late_count];
            let truth = [1, 5, 6, 7].map(|at| truth[at].parse::<u64>().unwrap());
            assert_eq!(counts, truth, "{name} {}", trace.rank);
        }
    }
}

#[test]
fn idle_streams_are_those_of_hta() {
    for (name, path) in RIGHT {
        let Some(job) = fixture::job(path) else { return };
        let truth = table(&format!("{name}.idle_time_breakdown"));
        for trace in &job.traces {
            let ours = idle_streams(trace);
            for row in truth.iter().filter(|row| row[0] == trace.rank.to_string()) {
                let key = (row[1].parse().unwrap(), row[2].as_str());
                let found = ours.iter().find(|((stream, cause), _)| (*stream, *cause) == key);
                assert_eq!(found.map_or(0, |(_, ns)| *ns), ns(&row[3]), "{name} {row:?}");
            }
        }
    }
}

#[test]
fn queues_grow_as_long_as_in_hta() {
    for (name, path) in RIGHT.into_iter().chain([GRAPHS]) {
        let Some(job) = fixture::job(path) else { return };
        let truth = table(&format!("{name}.queue_length_summary"));
        for trace in &job.traces {
            let ours = queue::measure_queues(&scope(trace));
            let ours = ours.iter().map(|row| (row.stream.to_string(), row.length_max));
            let truth = truth.iter().filter(|row| row[0] == trace.rank.to_string());
            let truth = truth.map(|row| (row[1].clone(), ns(&row[9]) as u32 / 1000));
            assert_eq!(ours.collect::<BTreeMap<_, _>>(), truth.collect(), "{name}");
        }
    }
}

/// Holistic Trace Analysis leaves out the 10 graph launches and the 4,205 rows that they launched,
/// and it counts the overlaps of stream 7 as negative gaps.
#[test]
fn graphs_and_overlaps_are_where_we_differ_from_hta() {
    let Some(job) = fixture::job(GRAPHS.1) else { return };
    let ours = summary(&job.traces[0]);
    let truth = table("trace_diff_test.launch_stats_summary");
    let without_graphs = ours.work_count - ours.graph_work_count;
    assert_eq!(without_graphs, truth[0][1].parse::<u64>().unwrap());
    assert_eq!((ours.graph_call_count, ours.graph_work_count), (10, 4205));
    let idle = idle_streams(&job.traces[0]);
    let truth = table("trace_diff_test.idle_time_breakdown");
    for row in truth {
        let ours = idle.iter().find(|((stream, cause), _)| {
            (stream.to_string().as_str(), *cause) == (row[1].as_str(), row[2].as_str())
        });
        let more = ours.map_or(0, |(_, ns)| *ns) - ns(&row[3]);
        let negative =
            if (row[1].as_str(), row[2].as_str()) == ("7", "kernel_wait") { 114_000 } else { 0 };
        assert_eq!(more, negative, "{row:?}");
    }
}
