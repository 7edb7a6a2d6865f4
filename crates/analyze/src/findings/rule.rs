//! A rule as data: its title, thresholds, page and detector.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, Number, RuleFindings};
use crate::facts::job::{JobFacts, RankFacts};

/// A built-in rule that detects one cause of waste.
pub struct Rule {
    pub id: &'static str,
    /// Such as `tiny-kernel storm`.
    pub title: &'static str,
    pub category: FindingCategory,
    pub side: CureSide,
    /// Upper bound of the confidence of its findings.
    pub confidence: Confidence,
    /// Thresholds of the rule; users may change them.
    pub limits: &'static [Limit],
    /// The page that explains it, Markdown.
    pub page: &'static str,
    pub(super) detect: Detect,
}

/// The side whose time a cure saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CureSide {
    /// The host's: worth nothing while the device is busy all the time.
    Host,
    /// A device's, or the wires'.
    Device,
}

/// Threshold of a rule, with its default. The name ends in the unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub name: &'static str,
    /// Used unless the user changes it.
    pub default: f64,
    pub meaning: &'static str,
}

/// Affected ranks with the finding that they share.
pub(super) type OnRanks = (Vec<u32>, RuleFindings);

/// The function that detects a rule's findings. Its input decides whether the rule sees one rank or
/// the whole job.
pub(super) enum Detect {
    /// Examines each rank separately.
    Rank(fn(&RankFacts<'_>, &RuleLimits<'_>) -> Option<RuleFindings>),
    /// Examines the whole job; returns the affected ranks of each finding.
    Job(fn(&JobFacts<'_>, &RuleLimits<'_>) -> Vec<OnRanks>),
}

/// Thresholds of a rule in this run, with the user's changes applied.
pub(super) struct RuleLimits<'a> {
    pub rule: &'a Rule,
    pub changed: Option<&'a BTreeMap<String, f64>>,
}

impl RuleLimits<'_> {
    /// Returns a threshold by name.
    pub fn value(&self, name: &str) -> f64 {
        let changed = self.changed.and_then(|changed| changed.get(name).copied());
        let default = || self.rule.limits.iter().find(|limit| limit.name == name);
        debug_assert!(default().is_some(), "{} has a limit {name}", self.rule.id);
        changed.or_else(|| default().map(|limit| limit.default)).unwrap_or_default()
    }

    /// Returns a threshold in nanoseconds.
    pub fn ns(&self, name: &str) -> i64 {
        self.value(name) as i64
    }

    /// Returns all thresholds of the rule with the values of this run, so that a report can list
    /// them.
    pub fn used(&self) -> Vec<Number> {
        let used = |limit: &Limit| Number { name: limit.name, value: self.value(limit.name) };
        self.rule.limits.iter().map(used).collect()
    }
}

/// Creates a [`Limit`]; short for the tables of the rule files.
pub(super) const fn limit(name: &'static str, default: f64, meaning: &'static str) -> Limit {
    Limit { name, default, meaning }
}

/// Embeds the documentation page of a rule.
macro_rules! page {
    ($id:literal) => {
        include_str!(concat!("../../../../../docs/rules/", $id, ".md"))
    };
}
pub(super) use page;
