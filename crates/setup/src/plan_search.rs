//! Runs a search for a sharding plan and shows its progress on stderr.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use plan::{PlanOptions, PlanProblem, PlanResult, SearchProgress};

use crate::Session;
use crate::progress::{Meter, ProgressUnit};

/// Searches for a plan and shows how many plans were priced. When `stop` is set, the search ends
/// with the best plan so far.
///
/// # Errors
/// Those of [`plan::plan_observed`].
pub fn search(
    problem: &PlanProblem<'_>,
    options: &PlanOptions,
    stop: &AtomicBool,
    session: &Session,
) -> Result<PlanResult, plan::Error> {
    let meter = Meter::start(session.console, "searching", ProgressUnit::Plans, None);
    let meter = RefCell::new(meter);
    let observe = |SearchProgress { priced, expected }: SearchProgress| {
        let mut meter = meter.borrow_mut();
        meter.set_total(Some(expected));
        meter.advance(priced, "");
        match stop.load(Ordering::SeqCst) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let result = plan::plan_observed(problem, options, &observe);
    meter.into_inner().finish();
    result
}
