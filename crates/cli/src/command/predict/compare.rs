//! The command `rowmill predict evaluate --measured`, which reads predicted and measured steps from
//! traces and compares them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schema::{CellType, TableRow};
use serde::Serialize;

use crate::args::PredictEvaluate;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::recorded_steps::{Steps, open_recordings, prepare_job, whole_scopes};
use setup::table_output::{self, TableTarget};

/// The subject of a row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
enum ComparedPart {
    /// A rank's step, as its host sees it.
    Step,
    /// All device work with the same name, summed over all ranks.
    Work,
}

/// The predicted and the measured time of a rank's step, or of all device work with one name.
#[derive(Debug, Serialize, TableRow)]
struct ComparisonRow {
    subject: ComparedPart,
    name: String,
    predicted_ns: i64,
    /// Mean over the measured steps, in nanoseconds.
    measured_ns: i64,
    /// Error relative to the measured time, in percent. `None` if there is no measured time.
    error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps, in percent.
    noise_pct: f64,
}

/// Runs `rowmill predict evaluate --measured` and prints its result.
pub fn run(args: &PredictEvaluate, session: &Session) -> Result<(), Error> {
    let mut predicted = read_times(&args.paths, session)?;
    let mut measured = read_times(&args.measured, session)?;
    let is_named = predicted.has_names_of(&measured);
    if !is_named {
        session.console.warn(
            "the predicted kernels have other names than the measured ones, as those of models \
             have, so only the sum of all device work is compared",
        );
    }
    predicted.keep_works(is_named);
    measured.keep_works(is_named);
    let mean = |all: Option<&Vec<f64>>, steps: usize| {
        all.map_or(0.0, |all| all.iter().sum::<f64>()) / steps.max(1) as f64
    };
    let mut rows = Vec::new();
    let mut keys: Vec<&(ComparedPart, String)> =
        predicted.times.keys().chain(measured.times.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let measured_times = measured.times.get(key);
        if key.0 == ComparedPart::Step && measured_times.is_none() {
            let rank = key.1.trim_start_matches("rank ").parse().unwrap_or_default();
            return Err(UsageError::NotMeasured { rank }.into());
        }
        let predicted_ns = mean(predicted.times.get(key), predicted.step_count);
        let measured_ns = mean(measured_times, measured.step_count);
        let square = |all: &Vec<f64>| {
            // In a step without this work, its time counts as zero.
            let absent = (measured.step_count - all.len().min(measured.step_count)) as f64
                * measured_ns.powi(2);
            all.iter().map(|ns| (ns - measured_ns).powi(2)).sum::<f64>() + absent
        };
        let deviation =
            (measured_times.map_or(0.0, square) / measured.step_count.max(1) as f64).sqrt();
        rows.push(ComparisonRow {
            subject: key.0,
            name: key.1.clone(),
            predicted_ns: predicted_ns.round() as i64,
            measured_ns: measured_ns.round() as i64,
            error_pct: (measured_ns > 0.0)
                .then(|| 100.0 * (predicted_ns - measured_ns) / measured_ns),
            noise_pct: 100.0 * deviation / measured_ns.max(1.0),
        });
    }
    // Rows are sorted by their absolute error, largest first.
    let off = |row: &ComparisonRow| (row.subject, -(row.predicted_ns - row.measured_ns).abs());
    rows.sort_by_key(|row| (off(row), row.name.clone()));
    let steps = rows.iter().filter(|row| row.subject == ComparedPart::Step).count();
    if args.top > 0 {
        rows.truncate(steps + args.top);
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Times of ranks and of device work, in each of several steps.
struct StepTimes {
    step_count: usize,
    /// Nanoseconds in each step that contains the rank or the work.
    times: BTreeMap<(ComparedPart, String), Vec<f64>>,
}

/// Name of the sum of all device work.
const ALL_WORKS: &str = "all device work";

impl StepTimes {
    /// Returns whether most of the device work has the name of measured work.
    fn has_names_of(&self, measured: &Self) -> bool {
        let works = self.times.iter();
        let works = works.filter(|(key, _)| key.0 == ComparedPart::Work && key.1 != ALL_WORKS);
        let [mut named_ns, mut other_ns] = [0.0, 0.0];
        for (key, all) in works {
            let is_named = measured.times.contains_key(key);
            *if is_named { &mut named_ns } else { &mut other_ns } += all.iter().sum::<f64>();
        }
        named_ns >= other_ns
    }

    /// Keeps either device work by name, or its sum.
    fn keep_works(&mut self, by_name: bool) {
        self.times.retain(|(part, name), _| {
            *part == ComparedPart::Step || (name == ALL_WORKS) != by_name
        });
    }
}

fn read_times(paths: &[PathBuf], session: &Session) -> Result<StepTimes, Error> {
    let traces = open_recordings(paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let job = prepare_job(&scopes, session);
    let mut found = StepTimes { step_count: steps.count(), times: BTreeMap::new() };
    for number in 0..steps.count() {
        let step = job.step(&steps.spans_of_step(number))?;
        let mut sums: BTreeMap<(ComparedPart, String), f64> = BTreeMap::new();
        for (rank, recorded) in step.program.ranks.iter().zip(&step.recorded.ranks) {
            let key = (ComparedPart::Step, format!("rank {}", rank.rank));
            sums.insert(key, recorded.step_ns as f64);
            for (work, (from, to)) in rank.works.iter().zip(&recorded.works) {
                let key = (ComparedPart::Work, step.program.text(work.name).to_owned());
                *sums.entry(key).or_default() += (to - from) as f64;
                let all = (ComparedPart::Work, ALL_WORKS.to_owned());
                *sums.entry(all).or_default() += (to - from) as f64;
            }
        }
        for (key, ns) in sums {
            found.times.entry(key).or_default().push(ns);
        }
    }
    Ok(found)
}
