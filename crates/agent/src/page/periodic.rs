//! Metrics of periodic traces: their cost per workflow type, and the reasons for slots without a
//! trace.

use fleet::allocation;

use super::{Families, Metric, MetricLabel};
use crate::state::{AgentState, lock};

/// Adds the metrics of periodic traces to a page.
pub fn add(out: &mut Families, state: &AgentState) {
    let counter = |name, help| Metric::counter(name, help);
    let budgets = lock(&state.periodic);
    let names = allocation::user_names();
    for (uid, workflow, budget) in budgets.all() {
        let user = names.get(&uid).cloned().unwrap_or_else(|| uid.to_string());
        let label =
            || -> Vec<MetricLabel> { vec![("workflow", workflow.clone()), ("user", user.clone())] };
        let with =
            |name: &'static str, value: &str| [label(), vec![(name, value.to_owned())]].concat();
        let totals = &budget.totals;
        let traces = counter("rowmill_periodic_traces", "Number of periodic traces, by outcome.");
        out.add(traces, with("outcome", "kept"), totals.written as f64);
        out.add(traces, with("outcome", "lost"), totals.lost as f64);
        let bytes =
            counter("rowmill_periodic_bytes", "Bytes that profilers wrote for periodic traces.");
        out.add(bytes, label(), totals.bytes as f64);
        let help =
            "Number of steps of traceable processes (made), and of recorded steps (recorded).";
        let steps = counter("rowmill_periodic_steps", help);
        out.add(steps, with("kind", "made"), totals.steps as f64);
        out.add(steps, with("kind", "recorded"), totals.recorded as f64);
        let help = "Number of scheduled slots without a trace, by reason.";
        let skipped = counter("rowmill_periodic_skipped", help);
        for (why, count) in &totals.skipped {
            out.add(skipped, with("reason", why.word()), *count as f64);
        }
        let help = "Slowdown of steps during the last trace, as a share of the step time.";
        let slowdown = Metric::gauge("rowmill_periodic_slowdown_ratio", help);
        out.add(slowdown, label(), budget.slowdown);
    }
}
