//! Translates the remedy of a finding into edits of a program. A remedy names rows of a recording,
//! and the edits name operators and kernels, so that people can read and change them.

use std::collections::BTreeMap;

use analyze::findings::{Action, Finding, RowEdit};
use analyze::job::{JobFacts, RankFacts};
use trace::store::EventKind;

use crate::edit::{Edit, Edits};

/// Share of the occurrences of an operator before which a remedy must close gaps to close them all.
const ALL: f64 = 0.9;

/// The rows of a remedy that have one name.
#[derive(Debug, Default)]
struct Changed {
    rows: usize,
    /// Time that the rows lose, in nanoseconds.
    saved_ns: f64,
}

/// The rows of a remedy by the kind of edit that changes them.
#[derive(Debug, Default)]
struct ByName<'a> {
    works: BTreeMap<&'a str, Changed>,
    /// Outermost operators in which the host takes less time.
    operators: BTreeMap<&'a str, Changed>,
    /// Operators before which gaps are closed.
    gaps: BTreeMap<&'a str, Changed>,
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
    let outermost = |rank: &RankFacts<'_>| rank.tree().top_operators(rank.scope.trace);
    for (name, changed) in found.gaps {
        if (changed.rows as f64) < ALL * rows_named(job, name, outermost).len() as f64 {
            return Err(format!("the remedy closes the gaps before some operators {name} only"));
        }
        edits.push(Edit::CloseGap { before: name.to_owned() });
    }
    for (name, changed) in found.operators {
        let factor = changed.factor(&rows_named(job, name, outermost));
        edits.push(Edit::ScaleHost { operators: name.to_owned(), factor });
    }
    for (name, changed) in found.works {
        let works = |rank: &RankFacts<'_>| rank.scope.device_rows.clone();
        let factor = changed.factor(&rows_named(job, name, works));
        edits.push(Edit::Scale { kernels: name.to_owned(), factor });
    }
    if edits.is_empty() {
        return Err("the remedy changes no operator and no kernel".to_owned());
    }
    Ok(Edits { edit: edits })
}

impl Changed {
    fn add(&mut self, saved_ns: f64) {
        self.rows += 1;
        self.saved_ns += saved_ns;
    }

    /// Returns the factor that takes the saved time from all rows of the name.
    fn factor(&self, durations_ns: &[i64]) -> f64 {
        let whole_ns: i64 = durations_ns.iter().sum();
        (1.0 - self.saved_ns / whole_ns.max(1) as f64).clamp(0.0, 1.0)
    }
}

impl<'a> ByName<'a> {
    fn add(&mut self, edit: &RowEdit, rank: &RankFacts<'a>) -> Result<(), String> {
        if !edit.spans.is_empty() {
            return Err("the remedy changes host time outside operators".to_owned());
        }
        let trace = rank.scope.trace;
        let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
        for row in edit.rows.iter().copied() {
            let is_work = trace.kind(row).is_device_work();
            let ns = match is_work {
                true => trace.slices.end(row) - trace.slices.start(row),
                // Rows inside this one lose only what their own edits take.
                false => rank.tree().own_length(trace, row),
            };
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
            let ancestors = rank.tree().ancestors(row).filter(is_operator);
            let outer = ancestors.last().or(Some(row).filter(is_operator));
            let changed = match outer.map(|outer| trace.name(outer)) {
                _ if is_work => self.works.entry(trace.name(row)),
                Some(outer) if edit.action == Action::CloseGap => self.gaps.entry(outer),
                Some(outer) => self.operators.entry(outer),
                None => continue,
            };
            changed.or_default().add(saved_ns);
        }
        Ok(())
    }
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
