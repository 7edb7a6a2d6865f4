//! Defines a rule as data: its title, thresholds, documentation page and detector.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, Number, RuleFindings};
use crate::facts::job::{JobFacts, RankFacts};

/// A built-in rule that detects one cause of waste.
pub struct Rule {
    pub id: &'static str,
    /// Title of the rule, such as `tiny-kernel storm`.
    pub title: &'static str,
    pub category: FindingCategory,
    pub side: CureSide,
    /// Upper bound of the confidence of the rule's findings.
    pub confidence: Confidence,
    /// Thresholds of the rule, which users may change.
    pub limits: &'static [Limit],
    /// The page that explains the rule, in Markdown.
    pub page: &'static str,
    pub(super) detect: Detect,
}

/// The side (host or device) whose time the cure of a rule saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CureSide {
    /// The cure saves host time, which is worth nothing while the device is busy all the time.
    Host,
    /// The cure saves time of a device or of a link between devices.
    Device,
}

/// Threshold of a rule, with its default value. The name of the threshold ends in its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub name: &'static str,
    /// Value that applies unless the user changes it.
    pub default: f64,
    pub meaning: &'static str,
}

/// A finding together with the ranks that share it.
pub(super) type OnRanks = (Vec<u32>, RuleFindings);

/// The function that detects a rule's findings. The type of its argument decides whether the
/// function examines one rank or the whole job.
pub(super) enum Detect {
    /// The function examines each rank separately.
    Rank(fn(&RankFacts<'_>, &RuleLimits<'_>) -> Option<RuleFindings>),
    /// The function examines the whole job and returns the affected ranks with each finding.
    Job(fn(&JobFacts<'_>, &RuleLimits<'_>) -> Vec<OnRanks>),
}

/// Thresholds of a rule in this run, including the changes by the user.
pub(super) struct RuleLimits<'a> {
    pub rule: &'a Rule,
    pub changed: Option<&'a BTreeMap<String, f64>>,
}

impl RuleLimits<'_> {
    /// Returns the value of a threshold by its name.
    pub fn value(&self, name: &str) -> f64 {
        let changed = self.changed.and_then(|changed| changed.get(name).copied());
        let default = || self.rule.limits.iter().find(|limit| limit.name == name);
        debug_assert!(default().is_some(), "{} has a limit {name}", self.rule.id);
        changed.or_else(|| default().map(|limit| limit.default)).unwrap_or_default()
    }

    /// Returns a threshold, which is given in nanoseconds, as an integer.
    pub fn ns(&self, name: &str) -> i64 {
        self.value(name) as i64
    }

    /// Returns all thresholds of the rule with their values in this run, so that a report can list
    /// them.
    pub fn used(&self) -> Vec<Number> {
        let used = |limit: &Limit| Number { name: limit.name, value: self.value(limit.name) };
        self.rule.limits.iter().map(used).collect()
    }
}

/// Creates a [`Limit`], so that the tables of thresholds in the rule files stay short.
pub(super) const fn limit(name: &'static str, default: f64, meaning: &'static str) -> Limit {
    Limit { name, default, meaning }
}

/// Embeds the Markdown page that documents a rule.
macro_rules! page {
    ($id:literal) => {
        include_str!(concat!("../../../../../docs/rules/", $id, ".md"))
    };
}
pub(super) use page;
