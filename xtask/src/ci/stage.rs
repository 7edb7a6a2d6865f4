//! Measures the time of one stage and prints the table of all stages.

use std::time::{Duration, Instant};

use crate::error::Error;

/// A stage that has run, with its wall time and outcome.
pub struct CiStage {
    name: &'static str,
    wall: Duration,
    outcome: Result<String, Error>,
}

impl CiStage {
    /// Runs a stage and measures its wall time.
    pub fn time(name: &'static str, run: fn() -> Result<String, Error>) -> Self {
        let start = Instant::now();
        let outcome = run();
        if let Err(error) = &outcome {
            eprintln!("xtask: {name}: {error}");
        }
        Self { name, wall: start.elapsed(), outcome }
    }
}

/// Returns the number of stages that failed.
pub fn count_failures(stages: &[CiStage]) -> usize {
    stages.iter().filter(|stage| stage.outcome.is_err()).count()
}

/// Formats a table with name, wall time and outcome of each stage, and the total. A row shows the
/// first line of the stage's note. Further lines, such as the needs of skipped tests, are printed
/// below the table.
pub fn table(stages: &[CiStage]) -> String {
    let mut text = format!("{:<10} {:>9}  outcome\n", "stage", "wall");
    let mut below = String::new();
    for CiStage { name, wall, outcome } in stages {
        let outcome = match outcome {
            Ok(note) if note.is_empty() => "passed".to_owned(),
            Ok(note) => {
                let mut lines = note.lines();
                let first = lines.next().unwrap_or_default();
                below.extend(lines.map(|line| format!("{line}\n")));
                format!("passed: {first}")
            }
            Err(error) => format!("FAILED: {error}"),
        };
        text += &format!("{name:<10} {:>9}  {outcome}\n", seconds(*wall));
    }
    let total = stages.iter().map(|stage| stage.wall).sum();
    text + &format!("{:<10} {:>9}\n{below}", "total", seconds(total))
}

fn seconds(wall: Duration) -> String {
    format!("{:.1} s", wall.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CiStage, count_failures, table};
    use crate::error::Error;

    #[test]
    fn the_table_shows_failures_and_what_skipped_tests_need() {
        let failed = Error::Check { what: "3 breaches".to_owned() };
        let stages = [
            CiStage { name: "tidy", wall: Duration::from_millis(1500), outcome: Err(failed) },
            CiStage {
                name: "tests",
                wall: Duration::from_secs(60),
                outcome: Ok("9 passed, 2 skipped\nSKIPPED 2: needs root".into()),
            },
        ];
        let expected = "stage           wall  outcome\n\
                        tidy           1.5 s  FAILED: 3 breaches\n\
                        tests         60.0 s  passed: 9 passed, 2 skipped\n\
                        total         61.5 s\n\
                        SKIPPED 2: needs root\n";
        assert_eq!((table(&stages).as_str(), count_failures(&stages)), (expected, 1));
    }
}
