//! The command `rowmill tune`, which predicts which batch sizes and numbers of ranks train fastest,
//! and measures the best three. Each measured run is a process of `rowmill train`, so that runs do
//! not share memory or threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use predict::calibration::Calibration;
use predict::prediction::{self, Draws, PredictedStepRow};
use predict::program::from_trainer::{self, ops};
use schema::TableRow;
use schema::{FeatureStats, JobConfig, Op, ShardingPlan};
use serde::Serialize;

use crate::args::Tune;
use setup::error::{Error, RunError};
use setup::resized_step::read_recording;
use setup::step_times::{Drift, Measured, measured};
use setup::table_output::{self, TableTarget};
use setup::{Session, config};

/// Number of steps before the recorded steps.
const WARM_UP: u64 = 8;
/// Smallest gain in percent for which a change is recommended.
const GAIN_MIN: f64 = 3.0;
/// Number of predicted changes that are run and measured.
const MEASURED: usize = 3;
const DRAWS: Draws = Draws::new(200, 0);

/// The settings that are tuned. Neither of them changes the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    batch_size: usize,
    ranks: usize,
}

/// A setting with its predicted step time, and with its measured step time if it was run.
#[derive(Clone, Debug, Serialize, TableRow)]
struct SettingRow {
    batch_size: usize,
    ranks: usize,
    predicted_ns: i64,
    low_ns: i64,
    high_ns: i64,
    predicted_samples_per_s: f64,
    measured_ns: Option<i64>,
    measured_samples_per_s: Option<f64>,
    error_pct: Option<f64>,
    /// Error in percent of the assumption that the samples per second do not change.
    baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps, in percent.
    noise_pct: Option<f64>,
}

/// Runs `rowmill tune` and prints its result.
pub fn run(args: &Tune, session: &Session) -> Result<(), Error> {
    let job = config::job(&args.config, &args.set)?.config;
    let base = Setting { batch_size: job.training.batch_size, ranks: 1 };
    // The command fails before anything is run if the steps of this model cannot be predicted.
    list_operations(&job, 1)?;
    let runs = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let tuning = Tuning { args, session, folder: runs.path() };
    let twice = Setting { batch_size: 2 * base.batch_size, ..base };
    let mut known = Calibration::default();
    let mut now = 0.0;
    for setting in [base, twice] {
        let folder = tuning.record(setting)?;
        let recording = read_recording(&folder, setting.batch_size as u64, session)?;
        if setting == base {
            now = samples_per_s(base, recording.means_ns.first().copied().unwrap_or_default());
        }
        known.merge(recording.sized.calibration);
    }
    let mut rows = Vec::new();
    for setting in list_candidates(base, session.threads) {
        rows.push(predict_setting(&job, setting, session.threads, &known)?);
    }
    rows.sort_by(|a, b| b.predicted_samples_per_s.total_cmp(&a.predicted_samples_per_s));
    session.console.say(format_args!(
        "{} changes predicted before any was run; {:.0} samples/s with the present settings",
        rows.len(),
        now
    ));
    for row in rows.iter_mut().take(MEASURED) {
        let setting = Setting { batch_size: row.batch_size, ranks: row.ranks };
        let Some(slowest) = tuning.measure(setting)? else { continue };
        let speed = samples_per_s(setting, slowest.mean_ns);
        let error = |ns: f64| 100.0 * (ns - slowest.mean_ns) / slowest.mean_ns.max(1.0);
        row.measured_ns = Some(slowest.mean_ns.round() as i64);
        row.measured_samples_per_s = Some(speed);
        row.error_pct = Some(error(row.predicted_ns as f64));
        row.baseline_error_pct = Some(error(1e9 * setting.batch_size as f64 / now.max(1e-9)));
        row.noise_pct = Some(slowest.noise_pct);
    }
    // The present settings are measured once more, to see whether the speed of the machine has
    // drifted.
    let again = tuning.measure(base)?;
    table_output::write_rows(session.console, &rows, TableTarget::default())?;
    if let Some(again) = again {
        let (verdict, disturbed) = judge(&rows, now, samples_per_s(base, again.mean_ns));
        disturbed.iter().for_each(|text| session.console.warn(text));
        session.console.say(verdict);
    }
    Ok(())
}

/// Formulates the verdict from the measured rows, and from the speed of the present settings before
/// and after them. Also returns a warning if these two speeds differ so much that the machine must
/// have been disturbed.
fn judge(rows: &[SettingRow], before: f64, after: f64) -> (String, Option<String>) {
    let base = (before + after) / 2.0;
    let drift = Drift::new(before, after);
    let disturbed = drift.is_disturbed().then(|| {
        format!(
            "the machine was disturbed: the present settings trained {before:.0} samples/s before \
             the changes and {after:.0} after them; run tune again when nothing else runs"
        )
    });
    let speed = |row: &SettingRow| row.measured_samples_per_s.unwrap_or_default();
    let best = rows.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
    let gain = |row: &SettingRow| 100.0 * (speed(row) / base.max(1e-9) - 1.0);
    // A gain must exceed the drift of the machine, because drift alone could have caused a smaller
    // one.
    let verdict = match best.filter(|best| gain(best) > drift.pct.abs().max(GAIN_MIN)) {
        Some(best) => format!(
            "verdict: batch_size={} on {} ranks trains {:.0} % more samples per second than what \
             you have ({:.0} against {base:.0}, the mean of before and after)",
            best.batch_size,
            best.ranks,
            gain(best),
            speed(best)
        ),
        None => format!(
            "verdict: keep what you have ({base:.0} samples/s, the mean of before and after): no \
             change that was measured is faster by more than {:.0} %",
            drift.pct.abs().max(GAIN_MIN)
        ),
    };
    (verdict, disturbed)
}

/// Lists the settings to predict: other batch sizes, and two ranks with half of the threads each.
fn list_candidates(base: Setting, threads: usize) -> Vec<Setting> {
    let ranks = if threads >= 2 { 2 } else { 1 };
    let sizes = [base.batch_size / 2, base.batch_size, 2 * base.batch_size, 4 * base.batch_size];
    let all = (1..=ranks).flat_map(|ranks| sizes.map(|batch_size| Setting { batch_size, ranks }));
    let is_change = |one: &Setting| *one != base && one.batch_size > 0;
    all.filter(|one| is_change(one) && one.batch_size.is_multiple_of(one.ranks)).collect()
}

/// Predicts the step time of a setting, which is the step time of its slowest rank.
fn predict_setting(
    job: &JobConfig,
    setting: Setting,
    threads: usize,
    known: &Calibration,
) -> Result<SettingRow, Error> {
    let mut changed = job.clone();
    changed.training.batch_size = setting.batch_size;
    // The ranks share the threads. The calibration ran on all threads, so work on a rank takes
    // longer.
    let rank_threads = (threads / setting.ranks).max(1);
    let program = from_trainer::build_program(
        &list_operations(&changed, setting.ranks)?,
        threads as f64 / rank_threads as f64,
    );
    let prediction = prediction::predict_never_run(&program, known, DRAWS)?;
    let slowest = prediction.rows.iter().max_by_key(|row| row.step_ns);
    let slowest_rank = |value: fn(&PredictedStepRow) -> i64| slowest.map_or(0, value);
    let predicted_ns = slowest_rank(|row| row.step_ns);
    Ok(SettingRow {
        batch_size: setting.batch_size,
        ranks: setting.ranks,
        predicted_ns,
        low_ns: slowest_rank(|row| row.low_ns),
        high_ns: slowest_rank(|row| row.high_ns),
        predicted_samples_per_s: samples_per_s(setting, predicted_ns as f64),
        measured_ns: None,
        measured_samples_per_s: None,
        error_pct: None,
        baseline_error_pct: None,
        noise_pct: None,
    })
}

/// Lists the operations of a step on each rank, for tables that are not split and for uniform ids.
fn list_operations(job: &JobConfig, ranks: usize) -> Result<Vec<Vec<Op>>, Error> {
    let plan = ShardingPlan::table_wise(&job.model.tables, ranks as u32);
    let features = FeatureStats::uniform(&job.model, 1);
    Ok(ops::list_ops(predict::workload::Workload {
        config: job,
        plan: &plan,
        features: &features,
    })?)
}

fn samples_per_s(setting: Setting, step_ns: f64) -> f64 {
    1e9 * setting.batch_size as f64 / step_ns.max(1.0)
}

/// Runs `rowmill train` with changed settings, in subfolders of the folder `folder`.
struct Tuning<'a> {
    args: &'a Tune,
    session: &'a Session,
    folder: &'a Path,
}

impl Tuning<'_> {
    /// Trains a few steps with a setting. Returns the figures of the rank with the longest mean
    /// step, or `None` if no step was measured.
    fn measure(&self, setting: Setting) -> Result<Option<Measured>, Error> {
        let taken = measured(&[self.record(setting)?], self.session)?;
        Ok(taken.into_iter().max_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns)))
    }

    /// Trains a few steps with a setting. Returns the folder with the traces of these steps.
    fn record(&self, setting: Setting) -> Result<PathBuf, Error> {
        let Setting { batch_size, ranks } = setting;
        let console = self.session.console;
        console.say(format_args!("running steps of {batch_size} samples on {ranks} ranks"));
        let place = self.folder.join(format!("{batch_size}-{ranks}"));
        if place.exists() {
            // The recording that was made before the predictions is replaced by the new
            // measurement.
            fs::remove_dir_all(&place).map_err(Error::io(&place, "remove"))?;
        }
        let traces = place.join("traces");
        let last = WARM_UP + self.args.steps;
        let program = std::env::current_exe().map_err(Error::io("rowmill", "find"))?;
        let mut command = Command::new(&program);
        command.args(["train", &self.args.config]);
        // The fixed settings follow the user's settings on the command line, so they override them.
        // The ids are uniform as in the prediction, and neither held-out rows nor evaluations come
        // between the recorded steps.
        let fixed = [
            ("synthetic.ids.kind", "uniform".to_owned()),
            ("training.batch_size", batch_size.to_string()),
            ("data.hold_out", "0".to_owned()),
            ("data.validation", "0".to_owned()),
            ("training.evaluate_every", u32::MAX.to_string()),
        ];
        let given = self.args.set.iter().map(|(key, value)| (key.as_str(), value.clone()));
        for (key, value) in given.chain(fixed) {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.arg("--synthetic").arg((batch_size as u64 * (last + 2)).to_string());
        command.arg("--ranks").arg(ranks.to_string());
        command.arg("--threads").arg(self.session.threads.to_string());
        command.arg("--run").arg(place.join("run")).arg("--trace").arg(&traces);
        command.arg("--trace-steps").arg(format!("{WARM_UP}..{last}"));
        let ran = command.output().map_err(Error::io(&program, "run"))?;
        if ran.status.success() {
            return Ok(traces);
        }
        let stderr = String::from_utf8_lossy(&ran.stderr);
        let said =
            stderr.lines().find(|line| line.starts_with("error:")).unwrap_or("it ended early");
        let run = format!("{batch_size} samples on {ranks} ranks");
        Err(RunError::Tune { run, said: said.trim_start_matches("error:").trim().to_owned() }
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::{SettingRow, judge};

    fn row(batch_size: usize, speed: f64) -> SettingRow {
        SettingRow {
            batch_size,
            ranks: 1,
            predicted_ns: 1,
            low_ns: 1,
            high_ns: 1,
            predicted_samples_per_s: speed,
            measured_ns: Some(1),
            measured_samples_per_s: Some(speed),
            error_pct: None,
            baseline_error_pct: None,
            noise_pct: None,
        }
    }

    #[test]
    fn a_gain_within_the_drift_of_the_machine_keeps_the_settings() {
        let rows = [row(64, 1050.0), row(128, 1180.0)];
        let (verdict, disturbed) = judge(&rows, 1000.0, 1020.0);
        assert!(verdict.contains("batch_size=128") && verdict.contains("17 % more"), "{verdict}");
        assert_eq!(disturbed, None);
        let (verdict, disturbed) = judge(&rows, 1000.0, 1250.0);
        assert!(verdict.contains("keep what you have"), "{verdict}");
        assert!(disturbed.is_some_and(|text| text.contains("disturbed")));
        let (verdict, _) = judge(&[row(64, 990.0)], 1000.0, 1000.0);
        assert!(verdict.contains("keep what you have"), "{verdict}");
    }
}
