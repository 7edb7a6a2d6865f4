//! Runs the rules that find problems in a job, after reading the tensor shapes that the rules need.

use analyze::Scope;
use analyze::findings::{self, Finding, FindingReport, RuleSettings};
use analyze::job::{JobFacts, OperatorTensors};
use predict::recording::Span;

use crate::error::Error;
use crate::shapes::{each_with_shapes, tensors};

/// Reads tensor shapes from the files of a job and runs the rules on the job.
pub fn find_findings(job: &JobFacts<'_>, settings: &RuleSettings) -> Result<FindingReport, Error> {
    std::thread::scope(|scope| {
        // The dependency graph takes the longest and needs no shapes.
        scope.spawn(|| job.measured());
        job.know_shapes(find_shapes(job));
        Ok(findings::collect_findings(job, settings)?)
    })
}

/// Reads the sizes and types of the tensors of the operators with the longest kernels. Operators
/// whose tensors were not recorded are left out.
fn find_shapes(job: &JobFacts<'_>) -> OperatorTensors {
    let traces = job.ranks.iter().map(|rank| rank.scope.trace);
    let mut shapes = OperatorTensors::new();
    each_with_shapes(traces, &findings::rows_with_shapes(job), |place, arguments| {
        let tensors = tensors(arguments.get("Input Dims"), arguments.get("Input type"));
        shapes.extend(tensors.map(|tensors| (place, tensors)));
    });
    shapes
}

/// Finds the problems of a recording for which a saving is known.
pub fn with_savings(scopes: &[Scope<'_>]) -> Result<Vec<Finding>, Error> {
    let mut findings = find_findings(&JobFacts::new(scopes), &RuleSettings::default())?.findings;
    findings.retain(|finding| finding.saving.is_some());
    Ok(findings)
}

/// Returns a function that tests whether a row of a rank starts within the span of that rank.
pub fn is_inside<'a>(scopes: &'a [Scope<'a>], spans: &'a [Span]) -> impl Fn(u32, u32) -> bool + 'a {
    move |rank, row| {
        let place = scopes.iter().position(|scope| scope.trace.rank == rank);
        place.is_some_and(|at| {
            let start = scopes[at].trace.slices.start(row);
            spans[at].start <= start && start < spans[at].end
        })
    }
}
