//! What a bench found, as one CSV row with the machine it was found on. Runs nothing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command;
use crate::error::Error;

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub samples_per_second: f64,
    pub loss: f64,
    pub steps: f64,
    pub clock_ghz: f64,
}

/// All runs of one definition.
pub struct Record {
    definition: String,
    command: String,
    repeats: usize,
    median: f64,
    minimum: f64,
    maximum: f64,
    loss: f64,
    clock_ghz_minimum: f64,
}

const HEADER: &str = "date,machine,cpus,kernel,commit,definition,repeats,\
                      samples_per_second_median,samples_per_second_minimum,\
                      samples_per_second_maximum,loss,clock_ghz_minimum,command";

impl Record {
    pub fn new(definition: &str, command: String, samples: &[Sample]) -> Self {
        let sorted = |value: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let rates = sorted(|sample| sample.samples_per_second);
        let at = |values: &[f64], index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = rates.len() / 2;
        let lower = if rates.len() % 2 == 0 { middle.saturating_sub(1) } else { middle };
        Self {
            definition: definition.to_owned(),
            command,
            repeats: samples.len(),
            median: f64::midpoint(at(&rates, lower), at(&rates, middle)),
            minimum: at(&rates, 0),
            maximum: at(&rates, rates.len().saturating_sub(1)),
            loss: samples.first().map_or(f64::NAN, |sample| sample.loss),
            clock_ghz_minimum: at(&sorted(|sample| sample.clock_ghz), 0),
        }
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let Self { definition, repeats, median, minimum, maximum, loss, .. } = self;
        format!(
            "{definition:<24} {median:>10.0} samples/s  ({minimum:.0} to {maximum:.0} in {repeats} runs; \
             loss {loss:.5}; clock ≥ {:.2} GHz)",
            self.clock_ghz_minimum
        )
    }

    fn row(&self, place: &str) -> String {
        let Self { definition, repeats, median, minimum, maximum, loss, .. } = self;
        let command = self.command.replace('"', "\"\"");
        format!(
            "{place},{definition},{repeats},{median:.1},{minimum:.1},{maximum:.1},{loss},{:.2},\"{command}\"",
            self.clock_ghz_minimum
        )
    }
}

/// Appends rows to today's file of this machine.
pub fn append(root: &Path, records: &[Record]) -> Result<PathBuf, Error> {
    let (machine, cpus) = machine();
    let date = date(SystemTime::now());
    let folder = root.join("bench/record").join(&machine);
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    let path = folder.join(format!("{date}.csv"));
    let first = |program: &str, arguments: &[&str]| {
        let output = command::output(Command::new(program).args(arguments).current_dir(root));
        output.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    let kernel = first("uname", &["-r"]);
    let mut commit = first("git", &["rev-parse", "--short", "HEAD"]);
    if !first("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() {
        commit += "+changes";
    }
    let place = format!("{date},{machine},{cpus},{kernel},{commit}");
    let mut text = if path.exists() { String::new() } else { format!("{HEADER}\n") };
    for record in records {
        let _ = writeln!(text, "{}", record.row(&place));
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(&path))?;
    Ok(path)
}

/// The processor's name as a folder name, and how many there are.
fn machine() -> (String, usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name =
        line.map_or(std::env::consts::ARCH, |line| line.trim_start_matches(['\t', ' ', ':']));
    (format!("{}-{cpus}cpu", folder_name(name)), cpus)
}

fn folder_name(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// `2026-01-31` in UTC. Days to a date by Howard Hinnant's `civil_from_days`.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Counted from 0000-03-01, so that a leap day ends its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{:02}", day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{Record, Sample, date, folder_name};

    #[test]
    fn dates_across_leap_days() {
        let on = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(on(0), "1970-01-01");
        assert_eq!(on(951_782_400), "2000-02-29");
        assert_eq!(on(1_740_787_199), "2025-02-28");
        assert_eq!(on(1_740_787_200), "2025-03-01");
    }

    #[test]
    fn a_row_has_median_and_extremes() {
        let sample = |samples_per_second| Sample {
            samples_per_second,
            loss: 0.5,
            steps: 9.0,
            clock_ghz: samples_per_second / 100.0,
        };
        let samples = [sample(400.0), sample(100.0), sample(200.0), sample(300.0)];
        let row = Record::new("a", "rowmill train \"x\"".into(), &samples).row("here");
        assert_eq!(row, "here,a,4,250.0,100.0,400.0,0.5,1.00,\"rowmill train \"\"x\"\"\"");
        let columns = super::HEADER.split(',').count();
        assert_eq!(row.split(',').count() + 4, columns);
    }

    #[test]
    fn a_machine_is_a_plain_folder() {
        assert_eq!(folder_name("AMD EPYC(tm) 9R14 @ 3.7GHz"), "amd-epyc-tm-9r14-3-7ghz");
    }
}
