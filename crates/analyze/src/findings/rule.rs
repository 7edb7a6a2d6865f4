//! A rule as data: what it is called, what it is held against, what finds it.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, Number, RuleFindings};
use crate::facts::job::{JobFacts, RankFacts};

/// An antipattern that can be found.
pub struct Rule {
    pub id: &'static str,
    /// Such as `tiny-kernel storm`.
    pub title: &'static str,
    pub category: FindingCategory,
    /// Whose time its cure saves.
    pub side: CureSide,
    /// How sure it can be.
    pub confidence: Confidence,
    /// What it is held against.
    pub limits: &'static [Limit],
    /// The page that explains it, Markdown.
    pub page: &'static str,
    pub(super) detect: Detect,
}

/// Whose time a cure saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CureSide {
    /// The host's: worth nothing while the device is busy all the time.
    Host,
    /// A device's, or the wires'.
    Device,
}

/// A number above or below which a rule fires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub name: &'static str,
    /// Unless the user says otherwise.
    pub default: f64,
    pub meaning: &'static str,
}

/// The ranks that have something, and what.
pub(super) type OnRanks = (Vec<u32>, RuleFindings);

pub(super) enum Detect {
    /// Of each rank by itself.
    Rank(fn(&RankFacts<'_>, &RuleLimits<'_>) -> Option<RuleFindings>),
    /// Of all together; with the ranks that have it.
    Job(fn(&JobFacts<'_>, &RuleLimits<'_>) -> Vec<OnRanks>),
}

/// The limits a rule is held against in this run.
pub(super) struct RuleLimits<'a> {
    pub rule: &'a Rule,
    pub changed: Option<&'a BTreeMap<String, f64>>,
}

impl RuleLimits<'_> {
    /// A limit of the rule, by name.
    pub fn value(&self, name: &str) -> f64 {
        let changed = self.changed.and_then(|changed| changed.get(name).copied());
        let default = || self.rule.limits.iter().find(|limit| limit.name == name);
        debug_assert!(default().is_some(), "{} has a limit {name}", self.rule.id);
        changed.or_else(|| default().map(|limit| limit.default)).unwrap_or_default()
    }

    /// The same in nanoseconds.
    pub fn ns(&self, name: &str) -> i64 {
        self.value(name) as i64
    }

    pub fn used(&self) -> Vec<Number> {
        let used = |limit: &Limit| Number { name: limit.name, value: self.value(limit.name) };
        self.rule.limits.iter().map(used).collect()
    }
}

/// A [`Limit`], short.
pub(super) const fn limit(name: &'static str, default: f64, meaning: &'static str) -> Limit {
    Limit { name, default, meaning }
}

/// The page of a rule.
macro_rules! page {
    ($id:literal) => {
        include_str!(concat!("../../../../../docs/rules/", $id, ".md"))
    };
}
pub(super) use page;
