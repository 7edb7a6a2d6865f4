//! One timed stage and the table of all. Knows nothing of what a stage does.

use std::time::{Duration, Instant};

use crate::error::Error;

/// A stage that has run.
pub struct CiStage {
    name: &'static str,
    wall: Duration,
    outcome: Result<String, Error>,
}

impl CiStage {
    /// Runs and times a stage.
    pub fn time(name: &'static str, run: fn() -> Result<String, Error>) -> Self {
        let start = Instant::now();
        let outcome = run();
        if let Err(error) = &outcome {
            eprintln!("xtask: {name}: {error}");
        }
        Self { name, wall: start.elapsed(), outcome }
    }
}

/// How many stages failed.
pub fn failures(stages: &[CiStage]) -> usize {
    stages.iter().filter(|stage| stage.outcome.is_err()).count()
}

/// Name, wall time and outcome of each stage, and the sum.
pub fn table(stages: &[CiStage]) -> String {
    let mut text = format!("{:<10} {:>9}  outcome\n", "stage", "wall");
    for CiStage { name, wall, outcome } in stages {
        let outcome = match outcome {
            Ok(note) if note.is_empty() => "passed".to_owned(),
            Ok(note) => format!("passed: {note}"),
            Err(error) => format!("FAILED: {error}"),
        };
        text += &format!("{name:<10} {:>9}  {outcome}\n", seconds(*wall));
    }
    let total = stages.iter().map(|stage| stage.wall).sum();
    text + &format!("{:<10} {:>9}\n", "total", seconds(total))
}

fn seconds(wall: Duration) -> String {
    format!("{:.1} s", wall.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CiStage, failures, table};
    use crate::error::Error;

    #[test]
    fn the_table_has_failures_too() {
        let failed = Error::Check { what: "3 breaches".to_owned() };
        let stages = [
            CiStage { name: "tidy", wall: Duration::from_millis(1500), outcome: Err(failed) },
            CiStage {
                name: "tests",
                wall: Duration::from_secs(60),
                outcome: Ok("9 passed".into()),
            },
        ];
        let expected = "stage           wall  outcome\n\
                        tidy           1.5 s  FAILED: 3 breaches\n\
                        tests         60.0 s  passed: 9 passed\n\
                        total         61.5 s\n";
        assert_eq!((table(&stages).as_str(), failures(&stages)), (expected, 1));
    }
}
