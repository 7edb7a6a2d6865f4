use schema::random::CounterRng;

use super::{
    DAY_S, HostBudgets, SkipReason, TraceBudgets, USERS_MAX, WallTime, Workflow, WorkflowBudget,
    choose, seed_of,
};
use crate::periodic::step_times::{Slowdown, StepTimes, StepTotals};

const LIMITS: TraceBudgets =
    TraceBudgets { traces: 24, bytes: 1000, share: 0.01, iterations: 5, slowdown: 0.03 };
const MIDNIGHT: u64 = 20_000 * DAY_S;

fn at(second: u64) -> WallTime {
    WallTime { unix_s: MIDNIGHT + second }
}

/// Simulates one day of a job with `steps` steps per second, second by second. Returns the start
/// times of the job's traces.
fn day(budget: &mut WorkflowBudget, steps: u64, bytes: u64, seed: u64) -> Vec<u64> {
    let mut begun = Vec::new();
    for second in 0..DAY_S {
        budget.add_steps(steps);
        match budget.allowance(at(second), &LIMITS, seed) {
            Ok(_) => {
                budget.begin(at(second), &LIMITS);
                budget.keep(bytes, LIMITS.iterations);
                begun.push(second);
            }
            Err(why) => budget.wait(at(second), &LIMITS, why),
        }
    }
    begun
}

#[test]
fn each_slot_of_a_day_has_a_trace_at_a_random_time() {
    let mut budget = WorkflowBudget::default();
    let begun = day(&mut budget, 10, 1, 7);
    let slots: Vec<u64> = begun.iter().map(|second| second / 3600).collect();
    assert_eq!(slots, (0..24).collect::<Vec<u64>>());
    let other = day(&mut WorkflowBudget::default(), 10, 1, 8);
    assert!(begun.iter().zip(&other).filter(|(a, b)| a == b).count() < 3, "{begun:?} {other:?}");
    assert!(budget.totals.skipped.is_empty(), "{:?}", budget.totals);
}

#[test]
fn every_step_is_represented_exactly_once() {
    let mut budget = WorkflowBudget::default();
    let (mut weighed, mut made, mut draw) = (0.0, 0, 1);
    for second in 0..DAY_S {
        // The job's step rate varies over the day, and every third trace is lost.
        let steps = 5 + second / 7000;
        made += steps;
        budget.add_steps(steps);
        if budget.allowance(at(second), &LIMITS, 1).is_ok() {
            budget.begin(at(second), &LIMITS);
            draw += 1;
            if draw % 3 == 0 {
                budget.lose("killed".to_owned());
            } else {
                weighed += budget.weight(5) * 5.0;
                budget.keep(1, 5);
            }
        }
    }
    assert_eq!((budget.traces, budget.lost), (16, 8));
    assert!((weighed + budget.since as f64 - made as f64).abs() < 1e-6, "{weighed} of {made}");
}

#[test]
fn budgets_are_never_exceeded() {
    // Each trace has 300 bytes. Three traces fit into the budget of 1000 bytes, but a fourth might
    // not.
    let mut bytes = WorkflowBudget::default();
    assert_eq!(day(&mut bytes, 10, 300, 1).len(), 3);
    assert_eq!(bytes.totals.skipped[&SkipReason::Bytes], 20, "the day's last slot has not ended");
    // At one step every 100 seconds, a day has 864 steps, of which at most 8 may be recorded.
    let mut steps = WorkflowBudget::default();
    let mut begun = 0;
    for second in 0..DAY_S {
        steps.add_steps(u64::from(second % 100 == 0));
        if steps.allowance(at(second), &LIMITS, 1).is_ok() {
            steps.begin(at(second), &LIMITS);
            steps.keep(1, 5);
            begun += 1;
        }
    }
    assert_eq!((begun, steps.recorded), (1, 5));
    let off = TraceBudgets { traces: 0, ..LIMITS };
    assert_eq!(WorkflowBudget::default().allowance(at(9), &off, 1), Err(SkipReason::Off));
    // If the number of slots per day is increased during a day, the new slots must be used
    // immediately.
    let mut more = WorkflowBudget::default();
    more.add_steps(1_000_000);
    more.begin(at(7200), &TraceBudgets { traces: 86_400, ..LIMITS });
    assert_eq!(more.allowance(at(3 * 3600 + 3599), &LIMITS, 1), Ok(1000));
}

/// The slowdown of a trace by `share`, of a job whose untraced windows vary by 1 %.
fn slowdown(share: f64) -> Slowdown {
    Slowdown { share, spread: Some(0.01) }
}

#[test]
fn one_noisy_trace_does_not_back_off() {
    let mut budget = WorkflowBudget::default();
    for turn in 0..10 {
        for share in [0.5, 0.4, 0.0] {
            budget.record_slowdown(at(turn), &LIMITS, slowdown(share));
            assert_eq!(budget.backs_off(at(turn)), 0, "{turn} {share}");
        }
    }
    // If there were no untraced windows, a slowdown proves nothing. Such a slowdown must neither
    // continue nor end a series of slow traces.
    for spread in [Some(0.01), None, Some(0.01), None] {
        budget.record_slowdown(at(20), &LIMITS, Slowdown { share: 0.5, spread });
        assert_eq!(budget.backs_off(at(20)), 0, "{spread:?}");
    }
    budget.record_slowdown(at(20), &LIMITS, slowdown(0.5));
    assert_eq!(budget.backs_off(at(20)), 3600);
}

#[test]
fn repeated_slow_traces_back_off_longer_each_time() {
    let mut budget = WorkflowBudget::default();
    budget.add_steps(1_000_000);
    let limits = TraceBudgets { traces: 86_400, ..LIMITS };
    for _ in 0..5 {
        budget.record_slowdown(at(0), &limits, slowdown(0.029));
    }
    budget.record_slowdown(at(0), &limits, slowdown(0.031));
    budget.record_slowdown(at(0), &limits, slowdown(0.031));
    assert!(budget.allowance(at(1), &limits, 1).is_ok());
    for (length, from) in [(3600, 10), (7200, 4000), (14_400, 12_000)] {
        budget.record_slowdown(at(from), &limits, slowdown(0.031));
        assert_eq!(budget.allowance(at(from + length - 1), &limits, 1), Err(SkipReason::BackedOff));
        assert_eq!(budget.backs_off(at(from + length - 1)), 1);
        assert!(budget.allowance(at(from + length), &limits, 1).is_ok());
    }
    let row = budget.row("ranking", at(12_001), &limits);
    assert_eq!((row.state.as_str(), row.backs_off_s), ("backs off", Some(14_399)));
    assert_eq!((row.slow_in_row, row.spread), (5, Some(0.01)));
    budget.record_slowdown(at(40_000), &limits, slowdown(0.0));
    budget.record_slowdown(at(40_001), &limits, slowdown(0.1));
    assert_eq!(budget.backs_off(at(40_001)), 0, "a trace without a slowdown ends the row");
    budget.record_slowdown(at(0), &limits, Slowdown { share: f64::MAX, spread: Some(0.0) });
    for _ in 0..100 {
        budget.record_slowdown(at(0), &limits, slowdown(0.1));
    }
    assert_eq!(budget.backs_off(at(0)), DAY_S, "no back-off is longer than a day");
}

/// Simulates a thousand traces of a job, and returns the first one after which tracing backs off.
/// The job's step times vary from second to second by the share `noise`. Traced steps take longer
/// by the share `cost`.
fn first_back_off(noise: f64, cost: f64, seed: u64) -> Option<usize> {
    let draw = CounterRng::new(seed, 0);
    let mut budget = WorkflowBudget::default();
    let mut times = StepTimes::default();
    let mut now = StepTotals::default();
    let mut make_steps = |second: u64, factor: f64| {
        let varied = 1.0 + noise * (2.0 * draw.below(second, 1000) as f64 / 999.0 - 1.0);
        now = StepTotals { steps: now.steps + 30, ns: now.ns + (30e6 * varied * factor) as u64 };
        now
    };
    (0..1000_u64).position(|trace| {
        for second in 0..120 {
            times.add_untraced(make_steps(trace * 200 + second, 1.0));
        }
        let before = times.clone();
        for second in 120..130 {
            times.add_traced(make_steps(trace * 200 + second, 1.0 + cost));
        }
        budget.record_slowdown(at(0), &LIMITS, before.slowdown_until(times.now()).unwrap());
        budget.backs_off(at(0)) > 0
    })
}

#[test]
fn a_noisy_job_does_not_back_off_but_a_steadily_slowed_one_does() {
    for seed in 0..5 {
        assert_eq!(first_back_off(0.5, 0.0, seed), None, "±50 % from second to second");
        assert_eq!(first_back_off(0.02, 0.0, seed), None, "±2 %");
        assert_eq!(first_back_off(0.02, 0.1, seed), Some(2), "10 % slower in every trace");
        let slowed = first_back_off(0.5, 0.5, seed);
        assert!(
            slowed.is_some_and(|trace| trace < 10),
            "more than the spread explains: {slowed:?}"
        );
    }
}

fn workflow(uid: u32, name: &str) -> Workflow {
    Workflow { uid, name: name.to_owned() }
}

#[test]
fn a_new_day_resets_budgets_but_a_clock_set_back_does_not() {
    let mut budgets = HostBudgets::default();
    let a = workflow(7, "a");
    budgets.start_day(at(0));
    budgets.budget(&a).add_steps(1000);
    budgets.budget(&workflow(7, "idle"));
    budgets.budget(&a).begin(at(1), &LIMITS);
    budgets.budget(&a).keep(400, 5);
    budgets.start_day(WallTime { unix_s: MIDNIGHT - 60 });
    assert_eq!((budgets.budget(&a).traces, budgets.budget(&a).bytes), (1, 400));
    budgets.budget(&a).add_steps(70);
    budgets.start_day(at(DAY_S));
    let budget = budgets.budget(&a).clone();
    assert_eq!((budget.traces, budget.bytes, budget.steps, budget.recorded), (0, 0, 0, 0));
    assert_eq!((budget.since, budget.largest, budget.totals.steps), (70, 400, 1070));
    assert_eq!(budgets.all().count(), 1, "a type without steps is forgotten");
    let mut again = HostBudgets::parse(&serde_json::to_vec(&budgets).unwrap()).unwrap();
    assert_eq!(again.budget(&a).since, 70);
    assert!(
        HostBudgets::parse(b"{\"version\": 1}").is_none() && HostBudgets::parse(b"x").is_none()
    );
}

#[test]
fn users_have_separate_workflow_types_and_budgets() {
    let mut budgets = HostBudgets::default();
    for at in 0..200 {
        let name = budgets.workflow(7, &format!("w{at}")).unwrap();
        budgets.budget(&name).add_steps(1);
    }
    assert_eq!(budgets.all().count(), 17);
    assert_eq!(budgets.budget(&workflow(7, "(others)")).since, 184);
    let other = budgets.workflow(8, "w0").unwrap();
    assert_eq!((other.name.as_str(), budgets.budget(&other).since), ("w0", 0));
    for uid in 0..1000 {
        if let Some(name) = budgets.workflow(uid, "x") {
            budgets.budget(&name);
        }
    }
    assert!(budgets.users.len() == USERS_MAX && budgets.workflow(999, "x").is_none());
}

#[test]
fn processes_are_drawn_in_proportion_to_their_steps() {
    let draw = CounterRng::new(seed_of(&["host", "ranking"]), 0);
    let steps = [(7, 10), (8, 0), (9, 30)];
    let mut counts = [0; 3];
    for counter in 0..4000 {
        let pid = choose(&steps, draw, counter).unwrap();
        counts[usize::try_from(pid - 7).unwrap()] += 1;
    }
    assert!(counts[1] == 0 && (900..1100).contains(&counts[0]), "{counts:?}");
    assert_eq!(choose(&[(7, 0)], draw, 0), Some(7));
    assert_eq!(choose(&[], draw, 0), None);
    assert_ne!(seed_of(&["ab", "c"]), seed_of(&["a", "bc"]));
}
