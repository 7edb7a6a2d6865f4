use std::collections::BTreeMap;
use std::sync::Arc;

use testkit::Folder;

use super::readings::{RunInterval, StepSum};
use super::rules::{TraceSchedule, WatchRules};
use super::{RunWatch, WATCH};
use crate::orders::OrderBoard;
use crate::orders::limits::TraceLimits;
use crate::store::StoreFolder;

const BEGIN_S: u64 = 1_800_000_000;

fn interval(run: &str, minute: u64, step_s: f64) -> RunInterval {
    RunInterval {
        start_s: BEGIN_S + minute * 60,
        run: format!("slurm/{run}"),
        workflow: "ranking".to_owned(),
        user: "ada".to_owned(),
        steps: BTreeMap::from([(
            "gpu-1".to_owned(),
            StepSum { steps: 100, time_s: 100.0 * step_s },
        )]),
        busy_s: 30.0,
        observed_s: 60.0,
    }
}

fn watch(root: &Folder, rules: WatchRules) -> RunWatch {
    let folder = Arc::new(StoreFolder::open(&root.path("store")).unwrap());
    let board = OrderBoard::open(Arc::clone(&folder), TraceLimits::default()).unwrap();
    RunWatch::new(rules, folder, Arc::new(board))
}

/// Adds one minute of a run and lets the watch decide. Returns the number of all orders.
fn minute(watch: &mut RunWatch, run: &str, minute: u64, step_s: f64) -> usize {
    let end_s = BEGIN_S + (minute + 1) * 60;
    watch.add(vec![interval(run, minute, step_s)], end_s);
    watch.order_traces(end_s, end_s);
    watch.board.list(0).len()
}

#[test]
fn a_run_that_stays_slow_is_traced_once_and_noise_is_not() {
    let root = Folder::new();
    let mut watch = watch(&root, WatchRules::default());
    for at in 0..40 {
        // Noise of 5 %, and single slow intervals.
        let step_s = if at % 7 == 6 { 0.5 } else { 0.1 + 0.005 * (at % 3) as f64 };
        assert_eq!(minute(&mut watch, "1", at, step_s), 0, "{at}");
    }
    let counts: Vec<usize> = (40..50).map(|at| minute(&mut watch, "1", at, 0.2)).collect();
    assert_eq!(counts, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    let order = watch.board.list(0).remove(0);
    assert!(order.why.starts_with("step time in s: 0.2000 to 0.2000 in 5 intervals"), "{order:?}");
    assert_eq!((order.by.as_str(), order.run.as_str()), (WATCH, "slurm/1"));
    assert_eq!(order.left_band_unix_s, Some(BEGIN_S + 40 * 60));
}

#[test]
fn a_new_run_is_compared_with_earlier_runs_of_its_workflow() {
    let root = Folder::new();
    let mut watch = watch(&root, WatchRules::default());
    assert!((0..30).all(|at| minute(&mut watch, "1", at, 0.1) == 0));
    let counts: Vec<usize> = (30..36).map(|at| minute(&mut watch, "2", at, 0.3)).collect();
    assert_eq!(counts, [0, 0, 0, 0, 1, 1]);
    assert!(watch.board.list(0)[0].why.contains("of earlier runs"));
}

#[test]
fn schedules_order_within_the_budget() {
    let root = Folder::new();
    let every = std::time::Duration::from_secs(600);
    let schedules = vec![TraceSchedule { workflow: "rank*".to_owned(), every }];
    let rules = WatchRules { schedules, per_day: 2, ..WatchRules::default() };
    let mut watch = watch(&root, rules);
    let counts: Vec<usize> = (0..31).map(|at| minute(&mut watch, "1", at, 0.1)).collect();
    assert_eq!([0, 9, 10, 20, 30].map(|at| counts[at]), [1, 1, 2, 2, 2]);
    assert_eq!(watch.board.list(0)[0].why, "schedule: every 600 s");
}
