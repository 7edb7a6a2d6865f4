//! Evaluates custom rules, which are conditions on the columns of the tables that `rowmill trace`
//! prints.

use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::custom_rule::{CustomRule, TraceTable, wrong};
use super::finding::{Confidence, Evidence, Finding, FindingCategory, Number};
use crate::error::Error;
use crate::facts::job::{JobFacts, RankFacts};
use crate::tables::bandwidth;
use crate::tables::kernels;
use crate::tables::ops;
use crate::tables::queue;
use crate::tables::steps;
use crate::text::{agreeing, counted};

/// A comparison of a table column with a value.
#[derive(Clone, Debug)]
pub struct Condition {
    column: String,
    comparison: Comparison,
}

/// The comparison of a condition, with the value on its right-hand side.
#[derive(Clone, Debug)]
enum Comparison {
    Is(String),
    IsNot(String),
    Matches(Regex),
    Below(f64),
    AtMost(f64),
    Above(f64),
    AtLeast(f64),
}

const FORM: &str = "COLUMN and one of = != =~ < <= > >= and a value, such as total_ns>1000000";

/// Parses conditions separated by blanks. Double quotes around a value, as in `"…"`, allow blanks
/// inside it.
///
/// # Errors
/// Returns [`Error::Rules`] for an invalid condition and [`Error::Pattern`] for an invalid regular
/// expression.
pub(super) fn parse(text: &str) -> Result<Vec<Condition>, Error> {
    let words = words(text);
    if words.is_empty() {
        return Err(wrong("rule.where", FORM.to_owned(), text));
    }
    words.iter().map(|word| condition(word)).collect()
}

fn condition(word: &str) -> Result<Condition, Error> {
    // Longer signs come first, because `<` is also the beginning of `<=`.
    const SIGNS: [&str; 7] = ["!=", "=~", "<=", ">=", "=", "<", ">"];
    let refused = || wrong("rule.where", FORM.to_owned(), word);
    let at = word.find(['!', '=', '<', '>']).ok_or_else(refused)?;
    let (column, rest) = word.split_at(at);
    let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign)).ok_or_else(refused)?;
    let value = &rest[sign.len()..];
    if column.is_empty() || value.is_empty() {
        return Err(refused());
    }
    let number = || {
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| wrong("rule.where", format!("a number behind {sign}"), word))
    };
    let comparison = match sign {
        "=" => Comparison::Is(value.to_owned()),
        "!=" => Comparison::IsNot(value.to_owned()),
        "=~" => Comparison::Matches(
            Regex::new(value)
                .map_err(|source| Error::Pattern { pattern: value.to_owned(), source })?,
        ),
        "<" => Comparison::Below(number()?),
        "<=" => Comparison::AtMost(number()?),
        ">" => Comparison::Above(number()?),
        _ => Comparison::AtLeast(number()?),
    };
    Ok(Condition { column: column.to_owned(), comparison })
}

/// Splits a text into words at blanks. Blanks inside quotes stay part of the word, and the quotes
/// are removed.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut is_quoted = false;
    for letter in text.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            _ if letter.is_whitespace() && !is_quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

impl Condition {
    fn holds(&self, value: &Value) -> bool {
        let text = || match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let compare = |is: fn(f64, f64) -> bool, limit: f64| {
            value.as_f64().is_some_and(|number| is(number, limit))
        };
        match &self.comparison {
            Comparison::Is(expected) => text() == *expected,
            Comparison::IsNot(expected) => text() != *expected,
            Comparison::Matches(pattern) => pattern.is_match(&text()),
            Comparison::Below(limit) => compare(|a, b| a < b, *limit),
            Comparison::AtMost(limit) => compare(|a, b| a <= b, *limit),
            Comparison::Above(limit) => compare(|a, b| a > b, *limit),
            Comparison::AtLeast(limit) => compare(|a, b| a >= b, *limit),
        }
    }
}

/// Applies one custom rule. All rows that meet the conditions of the rule become one finding.
///
/// # Errors
/// Returns [`Error::Rules`] if the table lacks a column that a condition names.
pub(super) fn find(
    job: &JobFacts<'_>,
    rule: &CustomRule,
    conditions: &[Condition],
) -> Result<Option<Finding>, Error> {
    let rows = table(job, rule.table);
    // All rows of a table have the same columns, so the first row is enough to check the names.
    if let Some(first) = rows.first() {
        for condition in conditions {
            if !first.contains_key(&condition.column) {
                let columns: Vec<&str> = first.keys().map(String::as_str).collect();
                let expected = format!("a column of the table: {}", columns.join(", "));
                return Err(wrong(&format!("rule {}", rule.id), expected, &condition.column));
            }
        }
    }
    let meets = |row: &&Map<String, Value>| {
        conditions.iter().all(|one| row.get(&one.column).is_some_and(|value| one.holds(value)))
    };
    let met: Vec<&Map<String, Value>> = rows.iter().filter(meets).collect();
    let Some(first) = met.first() else { return Ok(None) };
    let mut ranks: Vec<u32> = met.iter().filter_map(|row| rank(row)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let subject = name(first);
    let what = format!(
        "{} of {} {} `{}`, the first one {subject}.",
        met.len(),
        counted(rows.len() as f64, "row"),
        agreeing(met.len() as f64, "meets", "meet"),
        rule.condition
    );
    Ok(Some(Finding {
        rule: rule.id.clone(),
        title: rule.title.clone(),
        category: FindingCategory::Own,
        severity: rule.severity,
        confidence: Confidence::High,
        steps: Vec::new(),
        what,
        advice: rule.advice.clone(),
        held_back: None,
        limiting_factor: None,
        saving: None,
        split: None,
        numbers: vec![Number { name: "rows", value: met.len() as f64 }],
        evidence: met.iter().take(5).map(|row| build_evidence(row)).collect(),
        limits: Vec::new(),
        key: format!("{}:{subject}", rule.id),
        remedy: None,
        ranks,
    }))
}

fn rank(row: &Map<String, Value>) -> Option<u32> {
    row.get("rank")?.as_u64().and_then(|rank| u32::try_from(rank).ok())
}

fn name(row: &Map<String, Value>) -> String {
    const NAMES: [&str; 6] = ["name", "kind", "cause", "number", "stream", "rank"];
    let value = NAMES.iter().find_map(|column| row.get(*column));
    value.map_or_else(String::new, |value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

fn build_evidence(row: &Map<String, Value>) -> Evidence {
    const TIMES: [&str; 5] = ["total_ns", "host_ns", "idle_ns", "time_ns", "duration_ns"];
    let number = |column: &str| row.get(column).and_then(Value::as_i64);
    Evidence {
        rank: rank(row).unwrap_or_default(),
        row: None,
        name: name(row),
        within: Vec::new(),
        source: None,
        start_ns: None,
        count: number("count").map_or(1, i64::unsigned_abs),
        total_ns: TIMES.iter().find_map(|column| number(column)).unwrap_or_default(),
    }
}

fn table(job: &JobFacts<'_>, table: TraceTable) -> Vec<Map<String, Value>> {
    if table == TraceTable::Collectives {
        return flat(job.collectives().rows());
    }
    let rank_rows = |rank: &RankFacts<'_>| match table {
        TraceTable::Breakdown => flat([rank.breakdown()]),
        TraceTable::Idle => flat(&rank.idle().devices),
        TraceTable::Kernels => flat(kernels::list_kernels(rank.scope)),
        TraceTable::Ops => flat(ops::list_operators(rank.scope, rank.tree(), rank.attribution())),
        TraceTable::Launches => flat(rank.launches()),
        TraceTable::Queue => flat(queue::measure_queues(rank.scope)),
        TraceTable::Memory => flat(bandwidth::measure_bandwidth(rank.scope)),
        TraceTable::Steps => flat(steps::list_steps(rank.scope)),
        TraceTable::Collectives => Vec::new(),
    };
    job.ranks.iter().flat_map(rank_rows).collect()
}

/// Serializes each row to a map from column name to value.
fn flat<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Vec<Map<String, Value>> {
    let map = |row: T| match serde_json::to_value(row) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    };
    rows.into_iter().filter_map(map).collect()
}
