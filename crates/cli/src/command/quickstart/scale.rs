//! How much a quickstart does on this machine: rows, batch, optimizer and steps within its seconds.

use schema::JobConfig;

use setup::args::DeviceName;
use setup::render;

/// Share of the rows held out for the evaluation.
pub const HOLD_OUT: f64 = 0.08;
/// Rows of a quickstart of [`USUAL_SECONDS`]: enough to learn the planted interactions in one pass.
const ROWS: u64 = 1_300_000;
const USUAL_SECONDS: u64 = 60;
/// Samples per step: large enough that a step's fixed costs do not matter, small enough to learn.
const BATCH_SIZE: u64 = 1024;
/// No generated column has more different categories; larger tables would only cost memory.
const ROWS_CAP: u64 = 50_000;
/// Passes over the data, however fast the machine: more would learn the rows by heart.
const EPOCHS_MOST: f64 = 3.0;
/// Share of the time given that the training itself may take; the rest is for evaluation and
/// saving.
const TRAINING_SHARE: f64 = 0.85;
/// A quickstart as a whole may take this many times the seconds given.
const TOTAL_SHARE: f64 = 2.0;
/// Share of the time left that the training may take, should the machine slow down meanwhile.
const LEFT_SHARE: f64 = 0.7;

/// How large a quickstart is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A model and rows from which something is learned.
    Usual,
    /// A model and rows for a GPU's kernels on a CPU, some thousand times slower: every part runs,
    /// little is learned.
    Emulated,
}

impl Scale {
    /// The scale for a device: emulated GPUs get a much smaller model.
    pub fn for_device(device: DeviceName) -> Self {
        if device == DeviceName::Emulated { Self::Emulated } else { Self::Usual }
    }

    /// Number of rows to generate for `seconds` of training.
    pub fn rows(self, seconds: u64) -> u64 {
        match self {
            Self::Usual => (ROWS * seconds / USUAL_SECONDS).clamp(100_000, ROWS),
            Self::Emulated => 2_000,
        }
    }

    /// Steps of the trial run, and the fewest of the training.
    fn trial_steps(self) -> u64 {
        match self {
            Self::Usual => 60,
            Self::Emulated => 30,
        }
    }

    /// What differs from the ready-made configuration: a batch and an optimizer that learn in a
    /// minute.
    pub fn overrides(self) -> Vec<(String, String)> {
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (rows_cap, batch_size) = match self {
            Self::Usual => (ROWS_CAP, BATCH_SIZE),
            Self::Emulated => (1_000, 32),
        };
        let mut changed = vec![
            set("rows_cap", &rows_cap.to_string()),
            set("batch_size", &batch_size.to_string()),
            set("optimizer.sparse", "{ kind = \"adagrad\", learning_rate = 0.04 }"),
            set("optimizer.dense", "{ kind = \"adagrad\", learning_rate = 0.01 }"),
            set("hold_out", &HOLD_OUT.to_string()),
            set("log_every", "100"),
        ];
        if self == Self::Emulated {
            changed.extend([set("model.bottom", "[16]"), set("model.top", "[16, 1]")]);
        }
        changed
    }

    /// The job of the trial run that measures the machine.
    pub fn trial(self, job: &JobConfig) -> JobConfig {
        let mut trial = job.clone();
        trial.training.steps = Some(self.trial_steps());
        trial.training.evaluate_every = None;
        trial.training.checkpoint_every = None;
        trial
    }
}

/// Seconds the training may take: `seconds`, or less where what came before it took long.
pub fn training_seconds(seconds: u64, elapsed: f64) -> f64 {
    let left = TOTAL_SHARE * seconds as f64 - elapsed;
    (TRAINING_SHARE * seconds as f64).min(LEFT_SHARE * left).max(1.0)
}

/// Sets the number of steps, and a learning rate that decays to the end, for a machine that trains
/// on `affordable` samples in its time.
pub fn fit_steps(scale: Scale, job: &mut JobConfig, train_rows: u64, affordable: f64) {
    let batch = job.training.batch_size as f64;
    let samples = affordable.min(train_rows as f64 * EPOCHS_MOST);
    let steps = ((samples / batch) as u64).max(scale.trial_steps());
    let training = &mut job.training;
    training.steps = Some(steps);
    training.epochs = (samples / train_rows.max(1) as f64).ceil().max(1.0) as u64;
    training.evaluate_every = Some(steps.div_ceil(3));
    training.evaluate_samples = None;
    training.checkpoint_every = Some(steps.div_ceil(2));
    training.log_every = (steps / 20).max(1);
    job.schedule.warmup_steps = (steps / 50).max(1);
    job.schedule.decay_start_step = steps / 2;
    job.schedule.decay_steps = steps - steps / 2;
    job.schedule.decay_power = 1.0;
    job.schedule.decay_floor = 0.05;
}

/// The training in one line.
pub fn describe(job: &JobConfig, samples_per_second: f64) -> String {
    let steps = job.training.steps.unwrap_or(0);
    let samples = steps * job.training.batch_size as u64;
    format!(
        "training {}: {} steps of {} samples, about {} at {}",
        job.model.name,
        render::count(steps),
        render::count(job.training.batch_size as u64),
        render::duration(samples as f64 / samples_per_second.max(1.0)),
        render::rate(samples_per_second)
    )
}

#[cfg(test)]
mod tests {
    use super::{Scale, fit_steps, training_seconds};
    use setup::config;

    #[test]
    fn a_slow_start_shortens_the_training() {
        assert_eq!(training_seconds(60, 30.0), 51.0);
        assert_eq!(training_seconds(60, 80.0), 28.0);
        assert_eq!(training_seconds(60, 500.0), 1.0);
    }

    #[test]
    fn steps_fit_the_time_and_the_data() {
        let mut job = config::job("dlrm-criteo-kaggle", &Scale::Usual.overrides()).unwrap().config;
        fit_steps(Scale::Usual, &mut job, 1_000_000, 10_000.0 * 51.0);
        assert_eq!(job.training.steps, Some(10_000 * 51 / 1024));
        assert_eq!(job.training.epochs, 1);
        fit_steps(Scale::Usual, &mut job, 1_000_000, 1e9 * 60.0);
        assert_eq!(job.training.steps, Some(3_000_000 / 1024));
        assert_eq!(job.training.epochs, 3);
    }
}
