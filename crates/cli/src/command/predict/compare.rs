//! `rowmill predict compare`: a predicted step, as traces, beside steps that were measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schema::{CellType, TableRow};
use serde::Serialize;

use crate::args::PredictCompare;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::recorded_steps::{Steps, open_recordings, prepare_job, whole_scopes};
use setup::table_output::{self, TableTarget};

/// What a row is of; as it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
enum Subject {
    /// A rank's step on the host.
    Step,
    /// All device work of a name, of all ranks.
    Work,
}

/// Something predicted beside the same measured; of a step.
#[derive(Debug, Serialize, TableRow)]
struct Row {
    subject: Subject,
    /// The rank, or the name.
    name: String,
    predicted_ns: i64,
    /// Mean of the measured steps.
    measured_ns: i64,
    /// Relative to the measured time, in percent; `None` without a measurement.
    error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps.
    noise_pct: f64,
}

/// Runs `rowmill predict compare` and prints its result.
pub fn run(args: &PredictCompare, session: &Session) -> Result<(), Error> {
    let predicted = lengths(&args.predicted, session)?;
    let measured = lengths(&args.measured, session)?;
    let mean = |all: Option<&Vec<f64>>, steps: usize| {
        all.map_or(0.0, |all| all.iter().sum::<f64>()) / steps.max(1) as f64
    };
    let mut rows = Vec::new();
    let mut keys: Vec<&(Subject, String)> = predicted.of.keys().chain(measured.of.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let taken = measured.of.get(key);
        if key.0 == Subject::Step && taken.is_none() {
            let rank = key.1.trim_start_matches("rank ").parse().unwrap_or_default();
            return Err(UsageError::NotMeasured { rank }.into());
        }
        let said = mean(predicted.of.get(key), predicted.steps);
        let usual = mean(taken, measured.steps);
        let square = |all: &Vec<f64>| {
            // Steps without any of a name have none of its time.
            let absent = (measured.steps - all.len().min(measured.steps)) as f64 * usual.powi(2);
            all.iter().map(|ns| (ns - usual).powi(2)).sum::<f64>() + absent
        };
        let deviation = (taken.map_or(0.0, square) / measured.steps.max(1) as f64).sqrt();
        rows.push(Row {
            subject: key.0,
            name: key.1.clone(),
            predicted_ns: said.round() as i64,
            measured_ns: usual.round() as i64,
            error_pct: (usual > 0.0).then(|| 100.0 * (said - usual) / usual),
            noise_pct: 100.0 * deviation / usual.max(1.0),
        });
    }
    // What is off the most by itself comes first.
    let off = |row: &Row| (row.subject, -(row.predicted_ns - row.measured_ns).abs());
    rows.sort_by_key(|row| (off(row), row.name.clone()));
    let steps = rows.iter().filter(|row| row.subject == Subject::Step).count();
    if args.top > 0 {
        rows.truncate(steps + args.top);
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// How long everything took in each step that has it.
struct Lengths {
    steps: usize,
    of: BTreeMap<(Subject, String), Vec<f64>>,
}

fn lengths(paths: &[PathBuf], session: &Session) -> Result<Lengths, Error> {
    let traces = open_recordings(paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let job = prepare_job(&scopes, session);
    let mut found = Lengths { steps: steps.count(), of: BTreeMap::new() };
    for number in 0..steps.count() {
        let step = job.step(&steps.spans_of_step(number))?;
        let mut sums: BTreeMap<(Subject, String), f64> = BTreeMap::new();
        for (rank, recorded) in step.program.ranks.iter().zip(&step.recorded.ranks) {
            let key = (Subject::Step, format!("rank {}", rank.rank));
            sums.insert(key, recorded.step_ns as f64);
            for (work, (from, to)) in rank.works.iter().zip(&recorded.works) {
                let key = (Subject::Work, step.program.text(work.name).to_owned());
                *sums.entry(key).or_default() += (to - from) as f64;
            }
        }
        for (key, ns) in sums {
            found.of.entry(key).or_default().push(ns);
        }
    }
    Ok(found)
}
