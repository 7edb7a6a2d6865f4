//! Findings of a job: attaches the shapes of tensors that the rules need, then runs the rules.

use analyze::Scope;
use analyze::findings::{self, Finding, FindingReport, RuleSettings};
use analyze::job::{JobFacts, OperatorTensors};
use predict::recording::Span;

use crate::error::Error;
use crate::shapes::{each_with_shapes, tensors};

/// The findings of a job; what its files know of tensors is read for them.
pub fn find_findings(
    job: &mut JobFacts<'_>,
    settings: &RuleSettings,
) -> Result<FindingReport, Error> {
    job.know_shapes(find_shapes(job));
    Ok(findings::collect_findings(job, settings)?)
}

/// Sizes and types of the tensors of operators whose kernels take longest, as far as the files
/// have them.
fn find_shapes(job: &JobFacts<'_>) -> OperatorTensors {
    let traces = job.ranks.iter().map(|rank| rank.scope.trace);
    let mut shapes = OperatorTensors::new();
    each_with_shapes(traces, &findings::rows_with_shapes(job), |place, arguments| {
        let tensors = tensors(arguments.get("Input Dims"), arguments.get("Input type"));
        shapes.extend(tensors.map(|tensors| (place, tensors)));
    });
    shapes
}

/// The findings of a recording that say what they save.
pub fn with_savings(scopes: &[Scope<'_>]) -> Result<Vec<Finding>, Error> {
    let mut findings =
        find_findings(&mut JobFacts::new(scopes), &RuleSettings::default())?.findings;
    findings.retain(|finding| finding.saving.is_some());
    Ok(findings)
}

/// Whether a row of a rank starts within its span.
pub fn is_inside<'a>(scopes: &'a [Scope<'a>], spans: &'a [Span]) -> impl Fn(u32, u32) -> bool + 'a {
    move |rank, row| {
        let place = scopes.iter().position(|scope| scope.trace.rank == rank);
        place.is_some_and(|at| {
            let start = scopes[at].trace.slices.start(row);
            spans[at].start <= start && start < spans[at].end
        })
    }
}
