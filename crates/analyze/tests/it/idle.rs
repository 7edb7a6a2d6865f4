//! Checks that the idle times, launches, queues and rates of real traces add up.

use std::collections::BTreeMap;

use analyze::classify::ClassRule;
use analyze::{
    Classifier, Scope, WindowRule, bandwidth, breakdown, idle, launches, overlap, queue, tree,
};

use crate::fixture;

const TRACES: [&str; 10] = [
    "simple_add/benchmark_result_493459_1694039959_trace.json.gz",
    "alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "linear/linear_kineto.json.gz",
    "nccl/nccl_data.json.gz",
    "timeline_sampled/sampled_rank-0.json.gz",
    "trace_diff/control.json.gz",
    "trace_diff/test.json.gz",
    "dlrm8/dlrm_kineto.tar.gz",
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "odd/rank_non_gpu.json.gz",
];

fn each(mut check: impl FnMut(&str, &Scope<'_>)) {
    for path in TRACES {
        let Some(job) = fixture::job(path) else { return };
        for trace in &job.traces {
            for rule in [WindowRule::All, WindowRule::Steps, WindowRule::Hta] {
                check(path, &Scope::new(trace, rule, &Classifier::new(ClassRule::Category)));
            }
        }
    }
}

#[test]
fn idle_time_by_cause_sums_to_the_breakdown() {
    each(|path, scope| {
        let tree = tree::build(scope.trace);
        let idle = idle::compute_idle_time(scope, &tree, &idle::IdleSettings::USUAL);
        for device in breakdown::by_device(scope) {
            let rows = idle.devices.iter().filter(|row| Some(row.device) == device.device);
            assert_eq!(rows.map(|row| row.idle_ns).sum::<i64>(), device.idle_ns, "{path}");
            let gaps = idle.gaps.iter().filter(|gap| Some(gap.device) == device.device);
            assert_eq!(gaps.map(|gap| gap.idle_ns).sum::<i64>(), device.idle_ns, "{path}");
        }
        assert!(idle.devices.iter().all(|row| row.min_ns > 0), "{path}");
        let mut busy = BTreeMap::<(i32, i32), Vec<(i64, i64)>>::new();
        for row in &scope.device_rows {
            let key = (scope.trace.device(*row), scope.trace.stream(*row));
            busy.entry(key).or_default().push(scope.clipped(*row));
        }
        for ((device, stream), spans) in busy {
            let rows =
                idle.streams.iter().filter(|row| (row.device, row.stream) == (device, stream));
            let idle_ns: i64 = rows.map(|row| row.idle_ns).sum();
            let busy_ns = analyze::interval::length(&analyze::interval::union(spans));
            assert_eq!(idle_ns + busy_ns, scope.window.length(), "{path} {device} {stream}");
        }
    });
}

#[test]
fn parts_of_every_window_and_device_sum_to_it() {
    each(|path, scope| {
        let all =
            [breakdown::compute_breakdown(scope)].into_iter().chain(breakdown::by_device(scope));
        for row in all {
            let exposed =
                row.exposed_communication_ns + row.exposed_memory_ns + row.exposed_other_ns;
            assert_eq!(row.compute_ns + exposed + row.idle_ns, row.window_ns, "{path}");
            let classes = if row.device.is_some() {
                overlap::by_device(scope)
            } else {
                overlap::compute_overlap(scope)
            };
            let mine = classes.iter().filter(|class| class.device == row.device);
            assert_eq!(mine.map(|class| class.exclusive_ns).sum::<i64>(), row.busy_ns, "{path}");
        }
    });
}

#[test]
fn launches_queues_and_rates_agree_with_the_rows() {
    each(|path, scope| {
        let rows = || launches::list_launches(scope, &launches::LaunchSettings::USUAL);
        let summary = launches::summary(scope, rows());
        let all = summary.work_count + summary.work_without_call_count;
        assert_eq!(all, scope.device_rows.len() as u64, "{path}");
        let rows: Vec<_> = rows().collect();
        let calls = launches::distributions(&rows, launches::GroupedBy::Call).into_iter();
        let calls = calls.filter(|row| row.quantity == launches::Quantity::Device);
        assert_eq!(calls.map(|row| row.total_ns).sum::<i64>(), summary.device_ns, "{path}");
        let mut area = BTreeMap::<(i32, i32), i64>::new();
        let series = queue::series(scope);
        for (at, point) in series.iter().enumerate() {
            let next = series.get(at + 1).filter(|next| next.time_ns > point.time_ns);
            let end = next.map_or(scope.window.end, |next| next.time_ns);
            let area = area.entry((point.device, point.stream)).or_default();
            *area += (end - point.time_ns) * i64::from(point.length);
        }
        for queue in queue::measure_queues(scope) {
            let area = area.get(&(queue.device, queue.stream)).copied().unwrap_or_default();
            assert_eq!(area, queue.waiting_ns, "{path}");
        }
        let bytes: u64 = bandwidth::measure_bandwidth(scope).iter().map(|row| row.bytes).sum();
        let sized: u64 = bandwidth::by_size(scope).iter().map(|row| row.bytes).sum();
        assert_eq!(bytes, sized, "{path}");
    });
}
