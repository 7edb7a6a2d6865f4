//! Scales a quickstart to the machine and to the given seconds: number of rows, batch size,
//! optimizer and number of steps.

use schema::JobConfig;

use setup::args::DeviceName;
use setup::render;

/// Share of the generated rows that is held out for the evaluation.
pub const HOLD_OUT: f64 = 0.08;
/// Number of rows of a quickstart of [`USUAL_SECONDS`]. So many rows are enough to learn the
/// planted interactions in one pass.
const ROWS: u64 = 1_300_000;
const USUAL_SECONDS: u64 = 60;
/// Samples per step. The batch is large enough to amortize the fixed cost of a step, and small
/// enough for many updates.
const BATCH_SIZE: u64 = 1024;
/// Largest number of rows of a table. No generated column has more distinct categories, so larger
/// tables would only cost memory.
const ROWS_CAP: u64 = 50_000;
/// Share of the given time that the training steps may take. The rest is for evaluation and for
/// saving.
const TRAINING_SHARE: f64 = 0.85;
/// Largest duration of the whole quickstart, as a multiple of the given seconds.
const TOTAL_SHARE: f64 = 2.0;
/// Share of the remaining time that the training may take. The rest is a reserve in case the
/// machine slows down.
const LEFT_SHARE: f64 = 0.7;

/// The size of a quickstart's model and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The size for real devices, large enough to learn the planted interactions.
    Usual,
    /// The size for emulated GPU kernels, which are about a thousand times slower. Every part of
    /// the quickstart runs, but the model learns little.
    Emulated,
}

impl Scale {
    /// Returns the scale for a device. Emulated GPUs get a much smaller model.
    pub fn for_device(device: DeviceName) -> Self {
        if device == DeviceName::Emulated { Self::Emulated } else { Self::Usual }
    }

    /// Number of rows to generate if the training may take `seconds`.
    pub fn rows(self, seconds: u64) -> u64 {
        match self {
            Self::Usual => (ROWS * seconds / USUAL_SECONDS).clamp(100_000, ROWS),
            Self::Emulated => 2_000,
        }
    }

    /// Number of steps of the trial run, and smallest number of steps of the training.
    fn trial_steps(self) -> u64 {
        match self {
            Self::Usual => 60,
            Self::Emulated => 30,
        }
    }

    /// Changes of the ready-made configuration: a batch size and an optimizer that learn within a
    /// minute, and smaller tables.
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

    /// Returns the job of the trial run that measures the speed of the machine.
    pub fn trial(self, job: &JobConfig) -> JobConfig {
        let mut trial = job.clone();
        trial.training.steps = Some(self.trial_steps());
        trial.training.evaluate_every = None;
        trial.training.checkpoint_every = None;
        trial
    }
}

/// Computes how many seconds the training may take. The result is about `seconds`, but less if
/// generating and converting the data took long.
pub fn training_seconds(seconds: u64, elapsed: f64) -> f64 {
    let left = TOTAL_SHARE * seconds as f64 - elapsed;
    (TRAINING_SHARE * seconds as f64).min(LEFT_SHARE * left).max(1.0)
}

/// Sets the number of steps so that training processes at most `affordable` samples, and each row
/// at most once: a second pass would overfit. The learning rate then decays until the last step.
pub fn fit_steps(scale: Scale, job: &mut JobConfig, train_rows: u64, affordable: f64) {
    let batch = job.training.batch_size as f64;
    let samples = affordable.min(train_rows as f64);
    let steps = ((samples / batch) as u64).max(scale.trial_steps());
    let training = &mut job.training;
    training.steps = Some(steps);
    training.epochs = 1;
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

/// Describes the training in one line of text.
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
    fn slow_preparation_shortens_the_training() {
        assert_eq!(training_seconds(60, 30.0), 51.0);
        assert_eq!(training_seconds(60, 80.0), 28.0);
        assert_eq!(training_seconds(60, 500.0), 1.0);
    }

    #[test]
    fn steps_are_limited_by_time_and_by_rows() {
        let mut job = config::job("dlrm-criteo-kaggle", &Scale::Usual.overrides()).unwrap().config;
        fit_steps(Scale::Usual, &mut job, 1_000_000, 10_000.0 * 51.0);
        assert_eq!(job.training.steps, Some(10_000 * 51 / 1024));
        assert_eq!(job.training.epochs, 1);
        fit_steps(Scale::Usual, &mut job, 1_000_000, 1e9 * 60.0);
        assert_eq!(job.training.steps, Some(1_000_000 / 1024));
    }
}
