//! The command `rowmill explain`, which prints the page of a rule of `rowmill trace findings`, or
//! the reference of the configuration keys.

mod config;

use analyze::findings::{self, Rule};
use serde::Serialize;

use crate::args::Explain;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::render;

/// A rule, in the form in which `rowmill explain` prints it as JSON.
#[derive(Serialize)]
struct ExplainedRule {
    rule: &'static str,
    title: &'static str,
    category: findings::FindingCategory,
    confidence: findings::Confidence,
    limits: Vec<LimitRow>,
    page: &'static str,
}

/// A threshold of a rule, in the form in which `rowmill explain` prints it as JSON.
#[derive(Serialize)]
struct LimitRow {
    name: &'static str,
    default: f64,
    meaning: &'static str,
}

/// Prints the page of a rule, the list of all rules, or the reference of the configuration.
pub fn run(args: &Explain, session: &Session) -> Result<(), Error> {
    let topic = args.topic.as_deref();
    if topic.is_some_and(|topic| topic.eq_ignore_ascii_case("config")) || args.document.is_some() {
        return config::run(args.key.as_deref(), args.document, session);
    }
    let Some(id) = topic else {
        let all: Vec<ExplainedRule> = findings::rules().map(explain_rule).collect();
        return session.console.report(&all, |all| {
            let row = |one: &ExplainedRule| vec![one.rule.to_owned(), one.title.to_owned()];
            render::grid(&["rule", "finds"], &all.iter().map(row).collect::<Vec<_>>())
        });
    };
    let rule = findings::rules().find(|rule| rule.id.eq_ignore_ascii_case(id));
    let rule = rule.ok_or_else(|| UsageError::NoSuchRule { rule: id.to_owned() })?;
    session.console.report(&explain_rule(rule), |one| one.page.trim_end().to_owned())
}

fn explain_rule(rule: &'static Rule) -> ExplainedRule {
    let limit = |limit: &findings::Limit| LimitRow {
        name: limit.name,
        default: limit.default,
        meaning: limit.meaning,
    };
    ExplainedRule {
        rule: rule.id,
        title: rule.title,
        category: rule.category,
        confidence: rule.confidence,
        limits: rule.limits.iter().map(limit).collect(),
        page: rule.page,
    }
}
