//! `rowmill explain RULE`: what a rule of `rowmill trace findings` means, and what to do.

use analyze::antipattern::{self, Rule};
use serde::Serialize;

use crate::error::Error;
use crate::render;
use crate::resolve::Session;

/// A rule, for programs.
#[derive(Serialize)]
struct Explained {
    rule: &'static str,
    title: &'static str,
    category: antipattern::Category,
    confidence: antipattern::Confidence,
    limits: Vec<LimitRow>,
    page: &'static str,
}

#[derive(Serialize)]
struct LimitRow {
    name: &'static str,
    default: f64,
    meaning: &'static str,
}

/// Prints the page of a rule, or the list of all.
pub fn run(rule: Option<&str>, session: &Session) -> Result<(), Error> {
    let Some(id) = rule else {
        let all: Vec<Explained> = antipattern::rules().map(explained).collect();
        return session.console.report(&all, |all| {
            let row = |one: &Explained| vec![one.rule.to_owned(), one.title.to_owned()];
            render::grid(&["rule", "finds"], &all.iter().map(row).collect::<Vec<_>>())
        });
    };
    let found = antipattern::rules().find(|rule| rule.id.eq_ignore_ascii_case(id));
    let found = found.ok_or_else(|| Error::NoSuchRule { rule: id.to_owned() })?;
    session.console.report(&explained(found), |one| one.page.trim_end().to_owned())
}

fn explained(rule: &'static Rule) -> Explained {
    let limit = |limit: &antipattern::Limit| LimitRow {
        name: limit.name,
        default: limit.default,
        meaning: limit.meaning,
    };
    Explained {
        rule: rule.id,
        title: rule.title,
        category: rule.category,
        confidence: rule.confidence,
        limits: rule.limits.iter().map(limit).collect(),
        page: rule.page,
    }
}
