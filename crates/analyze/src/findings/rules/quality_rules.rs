//! Rules Q01 to Q10 report the issues of `quality` as findings. These rules come first, because
//! they decide how far the other findings can be trusted.

use crate::facts::job::JobFacts;
use crate::facts::quality::{self, Issue, losses};
use crate::findings::finding::{Confidence, Evidence, FindingCategory, RuleFindings, Severity};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, page};

macro_rules! quality_rule {
    ($name:ident, $id:literal, $title:literal, [$($issue:literal),*]) => {
        pub(super) const $name: Rule = Rule {
            id: $id,
            title: $title,
            category: FindingCategory::Quality,
            side: CureSide::Device,
            confidence: Confidence::High,
            limits: &[],
            page: page!($id),
            detect: Detect::Job(|job, limits| found(job, limits, &[$($issue),*])),
        };
    };
}

quality_rule!(Q01, "Q01", "waits were not recorded", ["missing-sync-events"]);
quality_rule!(
    Q02,
    "Q02",
    "parts of the recording are missing",
    [
        "cut-recording",
        "lost-device-rows",
        "no-correlation-ids",
        "no-device-work",
        "no-events",
        "unknown-rows",
        "losses",
        "profiler-messages"
    ]
);
quality_rule!(
    Q03,
    "Q03",
    "clocks disagree",
    ["clock-offset", "ranks-apart", "mixed-jobs", "mixed-steps"]
);
quality_rule!(
    Q04,
    "Q04",
    "times that cannot be",
    ["stream-overlaps", "absurd-durations", "far-device-work", "zero-times", "bad-nesting"]
);
quality_rule!(Q05, "Q05", "the profiler slows the job", ["profiler-overhead"]);
quality_rule!(Q06, "Q06", "too few or unsteady steps", ["few-steps", "unsteady-steps", "no-steps"]);
quality_rule!(Q07, "Q07", "set-up in the window", ["warm-up"]);
quality_rule!(
    Q08,
    "Q08",
    "device work without an operator",
    ["low-coverage", "orphans", "repeated-correlation-ids"]
);
quality_rule!(
    Q09,
    "Q09",
    "details were not recorded",
    [
        "no-shapes",
        "no-stacks",
        "missing-ranks",
        "duplicate-ranks",
        "identical-ranks",
        "more-ranks-than-world",
        "candidate-communication"
    ]
);

quality_rule!(Q10, "Q10", "work of graphs was not recorded", ["partial-graphs"]);

/// Builds one finding from all issues of the kinds that a rule covers.
fn found(
    job: &JobFacts<'_>,
    _limits: &RuleLimits<'_>,
    kinds: &[&str],
) -> Vec<(Vec<u32>, RuleFindings)> {
    let issues: Vec<&Issue> =
        job.issues().iter().filter(|issue| kinds.contains(&issue.id)).collect();
    let Some(worst) = issues.iter().min_by_key(|issue| issue.severity) else { return Vec::new() };
    let mut ranks: Vec<u32> = issues.iter().filter_map(|issue| issue.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let own: Vec<Issue> = issues.iter().map(|issue| (*issue).clone()).collect();
    let of_ranks = job.ranks.len() as u64;
    // An issue that all ranks have is reported for the job, without naming ranks.
    let words = |kind: &quality::IssueKind| match kind.rank_count == of_ranks {
        true => sentence(&kind.what),
        false => sentence(&kind.words(of_ranks)),
    };
    let whats: Vec<String> = quality::by_kind(&own).iter().map(words).collect();
    let what = format!("{} Hurts: {}.", whats.join(" "), worst.matters);
    let evidence = issues.iter().filter(|issue| !issue.place.is_empty()).take(5);
    let evidence = evidence.map(|issue| Evidence {
        rank: issue.rank.unwrap_or_default(),
        row: None,
        name: issue.place.clone(),
        within: Vec::new(),
        source: None,
        start_ns: None,
        count: issue.count,
        total_ns: 0,
    });
    let found = RuleFindings::new(what, sentence(worst.hint))
        .titled(title(worst))
        .about(worst.id)
        .number("count", worst.count as f64)
        .at_least(match worst.severity {
            quality::Severity::Broken => Severity::Critical,
            quality::Severity::Error => Severity::High,
            quality::Severity::Warning => Severity::Medium,
            quality::Severity::Info => Severity::Info,
        });
    vec![(ranks, found.shown_by(evidence.collect()))]
}

/// Returns a more specific title for an issue if the title of its rule is too general.
fn title(worst: &Issue) -> Option<&'static str> {
    Some(match (worst.id, worst.loss) {
        ("losses", loss) => losses::title(loss?),
        ("cut-recording", _) => "the recording is cut off",
        ("lost-device-rows", _) => "device work was lost",
        ("no-correlation-ids", _) => "device work without a launch",
        ("no-device-work", _) => "no device was recorded",
        ("no-events", _) => "nothing was recorded",
        ("unknown-rows", _) => "rows of unknown meaning",
        ("profiler-messages", _) => "the profiler reports problems",
        _ => return None,
    })
}

/// Makes a sentence from a text by adding a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map_or_else(String::new, |first| first.to_uppercase().to_string());
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}
