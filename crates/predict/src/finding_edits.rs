//! Translates the remedy of a finding into edits of a program. A remedy names rows of a recording,
//! and the edits name operators and kernels, so that people can read and change them.

use std::collections::BTreeMap;

use analyze::findings::{Action, Finding, RowEdit};
use analyze::job::{JobFacts, RankFacts};
use trace::store::EventKind;

use crate::edit::{Edit, Edits};

/// Share of the occurrences of an operator that a remedy must change to count as all of them.
const ALL: f64 = 0.9;

/// The rows of a remedy that have one name.
#[derive(Debug, Default)]
struct Changed {
    rows: usize,
    /// Time that the rows lose, in nanoseconds.
    saved_ns: f64,
    /// Whether only the gaps before the rows are removed.
    closes_gaps: bool,
}

/// The rows of a remedy by the kind of edit that changes them.
#[derive(Debug, Default)]
struct ByName<'a> {
    works: BTreeMap<&'a str, Changed>,
    operators: BTreeMap<&'a str, Changed>,
    /// Operators whose calls, but not their kernels, are saved.
    fused: BTreeMap<&'a str, Changed>,
    pins_copies: bool,
}

/// Returns the edits that do to a step what the remedy of a finding does to the recording.
///
/// # Errors
/// The reason why no edits do the same.
pub fn edits_of_finding(finding: &Finding, job: &JobFacts<'_>) -> Result<Edits, String> {
    let remedy = finding.remedy.as_ref().ok_or("the finding has no remedy that saves time")?;
    let mut found = ByName::default();
    for edit in &remedy.edits {
        let rank = job.ranks.iter().find(|rank| rank.rank() == edit.rank);
        found.add(edit, rank.ok_or("the remedy changes a rank that was not recorded")?)?;
    }
    let mut edits = if found.pins_copies { vec![Edit::PinCopies {}] } else { Vec::new() };
    for name in found.fused.into_keys() {
        edits.push(Edit::Fuse { operators: name.to_owned(), factor: 1.0 });
    }
    for (name, changed) in found.operators {
        edits.push(edit_operators(name, &changed, job)?);
    }
    for (name, changed) in found.works {
        let works = |rank: &RankFacts<'_>| rank.scope.device_rows.clone();
        let whole_ns: i64 = rows_named(job, name, works).iter().sum();
        let factor = (1.0 - changed.saved_ns / whole_ns.max(1) as f64).clamp(0.0, 1.0);
        edits.push(Edit::Scale { kernels: name.to_owned(), factor });
    }
    if edits.is_empty() {
        return Err("the remedy changes no operator and no kernel".to_owned());
    }
    Ok(Edits { edit: edits })
}

impl<'a> ByName<'a> {
    fn add(&mut self, edit: &RowEdit, rank: &RankFacts<'a>) -> Result<(), String> {
        if !edit.spans.is_empty() {
            return Err("the remedy changes host time outside operators".to_owned());
        }
        let trace = rank.scope.trace;
        for row in edit.rows.iter().copied() {
            let ns = trace.slices.end(row) - trace.slices.start(row);
            let saved_ns = match edit.action {
                Action::Scale(factor) => ns as f64 * (1.0 - factor),
                Action::ShortenTo(to) => (ns - to).max(0) as f64,
                Action::Overlap => ns as f64,
                Action::CloseGap => 0.0,
                Action::Unblock if trace.name(row).contains("Memcpy") => {
                    self.pins_copies = true;
                    continue;
                }
                Action::Unblock => {
                    return Err(format!("no edit removes the wait of {}", trace.name(row)));
                }
                Action::ArriveEarlier(_) => {
                    return Err("the remedy lets a rank arrive earlier at a collective".to_owned());
                }
            };
            let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
            let outer = rank.tree().ancestors(row).filter(is_operator).last();
            let changed = match outer {
                _ if trace.kind(row).is_device_work() => self.works.entry(trace.name(row)),
                Some(outer) if edit.rows.binary_search(&outer).is_ok() => continue,
                Some(outer) if edit.action == Action::Scale(0.0) => {
                    self.fused.entry(trace.name(outer))
                }
                Some(outer) => {
                    let outer = trace.name(outer);
                    return Err(format!("the remedy changes a part of {outer}"));
                }
                None if !is_operator(&row) => continue,
                None if rank.scope.device_rows.is_empty() => self.operators.entry(trace.name(row)),
                // Kernels that the remedy does not name stay.
                None if edit.action == Action::Scale(0.0) => self.fused.entry(trace.name(row)),
                None => self.operators.entry(trace.name(row)),
            };
            let changed = changed.or_default();
            changed.rows += 1;
            changed.saved_ns += saved_ns;
            changed.closes_gaps = edit.action == Action::CloseGap;
        }
        Ok(())
    }
}

/// Returns the edit that removes as many of the operators of a name as their saved time says, or
/// the gaps before them.
fn edit_operators(name: &str, changed: &Changed, job: &JobFacts<'_>) -> Result<Edit, String> {
    let outermost = |rank: &RankFacts<'_>| rank.tree().top_operators(rank.scope.trace);
    let all = rows_named(job, name, outermost);
    if changed.closes_gaps {
        return if changed.rows as f64 >= ALL * all.len() as f64 {
            Ok(Edit::CloseGap { before: name.to_owned() })
        } else {
            Err(format!("the remedy closes the gaps before some operators {name} only"))
        };
    }
    let steps: i64 = job.ranks.iter().map(|rank| rank.step_count().max(1)).sum();
    let per_step = all.len() as f64 / steps as f64;
    let kept = 1.0 - changed.saved_ns / all.iter().sum::<i64>().max(1) as f64;
    let left = (per_step * kept).round();
    let operators = match left as usize {
        0 => name.to_owned(),
        _ if left >= per_step.round() => {
            return Err(format!("the remedy shortens {name}, and no edit shortens an operator"));
        }
        left => format!("{name}[{left}..]"),
    };
    Ok(Edit::Remove { operators })
}

/// Returns the durations of the rows of a name among those that `rows` lists for each rank.
fn rows_named(
    job: &JobFacts<'_>,
    name: &str,
    rows: impl Fn(&RankFacts<'_>) -> Vec<u32>,
) -> Vec<i64> {
    let durations = |rank: &RankFacts<'_>| {
        let trace = rank.scope.trace;
        let named = rows(rank).into_iter().filter(|row| trace.name(*row) == name);
        named.map(|row| trace.slices.end(row) - trace.slices.start(row)).collect::<Vec<i64>>()
    };
    job.ranks.iter().flat_map(durations).collect()
}
