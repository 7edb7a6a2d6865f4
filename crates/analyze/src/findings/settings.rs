//! Defines the user's settings for the rules: changed thresholds, suppressions and custom rules,
//! independent of any file format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::custom_rule::{CustomRule, wrong};
use super::custom_rules::{self, Condition};
use super::rule::Rule;
use super::rules::rules;
use crate::error::Error;

/// Settings of the user for the rules, as read from a rules file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSettings {
    /// Changed thresholds, by id of the rule and name of the threshold.
    #[serde(default)]
    pub limits: BTreeMap<String, BTreeMap<String, f64>>,
    /// Known findings that must not be reported.
    #[serde(default, rename = "suppress")]
    pub suppressions: Vec<Suppression>,
    #[serde(default, rename = "rule")]
    pub custom: Vec<CustomRule>,
}

/// A known finding that must not be reported, with the reason.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Suppression {
    /// Key of a finding, or id of a rule to suppress all its findings.
    pub key: String,
    pub reason: String,
}

impl RuleSettings {
    /// Validates the settings and parses the conditions of the custom rules.
    ///
    /// # Errors
    /// Returns [`Error::Rules`] for an unknown rule or threshold, a name that is already taken, a
    /// threshold that is not a number, and a condition that cannot be parsed. Returns
    /// [`Error::Pattern`] for an invalid regular expression.
    pub fn conditions(&self) -> Result<Vec<(&CustomRule, Vec<Condition>)>, Error> {
        for (id, limits) in &self.limits {
            let rule = known(id)?;
            for (name, value) in limits {
                check_limit(rule, name, *value)?;
            }
        }
        for suppression in &self.suppressions {
            let rule = suppression.key.split(':').next().unwrap_or_default();
            let is_own = self.custom.iter().any(|own| own.id == rule);
            if !is_own {
                known(rule)?;
            }
        }
        let read = |(at, rule): (usize, &'_ CustomRule)| {
            let is_taken = rules().any(|known| known.id == rule.id)
                || self.custom[..at].iter().any(|other| other.id == rule.id);
            if is_taken || rule.id.is_empty() || rule.id.contains(':') {
                let expected = "an id that no other rule has, without a colon";
                return Err(wrong("rule.id", expected.to_owned(), &rule.id));
            }
            custom_rules::parse(&rule.condition)
        };
        let mut found = Vec::new();
        for (at, rule) in self.custom.iter().enumerate() {
            found.push((rule, read((at, rule))?));
        }
        Ok(found)
    }

    /// Returns the suppression that applies to a finding, if there is one.
    pub(super) fn suppression(&self, rule: &str, key: &str) -> Option<&Suppression> {
        self.suppressions.iter().find(|one| one.key == rule || one.key == key)
    }
}

fn known(id: &str) -> Result<&'static Rule, Error> {
    let ids = || rules().map(|rule| rule.id).collect::<Vec<_>>().join(", ");
    let found = rules().find(|rule| rule.id == id);
    found.ok_or_else(|| wrong("rule", format!("one of {}", ids()), id))
}

fn check_limit(rule: &Rule, name: &str, value: f64) -> Result<(), Error> {
    if !rule.limits.iter().any(|limit| limit.name == name) {
        let names: Vec<&str> = rule.limits.iter().map(|limit| limit.name).collect();
        let expected = match names.is_empty() {
            true => "no limit: the rule has none".to_owned(),
            false => format!("one of {}", names.join(", ")),
        };
        return Err(wrong(&format!("limits.{}", rule.id), expected, name));
    }
    if !value.is_finite() || value < 0.0 {
        let place = format!("limits.{}.{name}", rule.id);
        return Err(wrong(&place, "a number, 0 or more".to_owned(), &value.to_string()));
    }
    Ok(())
}
