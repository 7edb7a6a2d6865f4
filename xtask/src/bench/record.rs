//! Writes the results of a benchmark as CSV rows, one per figure, with the machine on which they
//! were measured.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::bench::definition::{self, Definition};
use crate::command;
use crate::error::Error;

/// The results of one run of a benchmark definition.
pub struct BenchRecord {
    definition: String,
    command: String,
    /// Name and value of each figure.
    figures: Vec<(String, f64)>,
    quality: Quality,
}

/// The conditions of a measurement, by which its reliability can be judged. A field is empty if the
/// benchmark does not report it.
#[derive(Debug, Default, PartialEq)]
struct Quality {
    samples: Option<f64>,
    rejected_samples: Option<f64>,
    trusted: Option<bool>,
    apparent_clock_ghz: Option<f64>,
    foreign_cpu: Option<f64>,
}

const HEADER: &str = "date,machine,cpus,kernel,commit,definition,figure,value,samples,\
                      rejected_samples,trusted,apparent_clock_ghz,foreign_cpu,command";

impl BenchRecord {
    /// Creates a record of the figures that `definition` names, from the report that `command`
    /// printed.
    pub fn new(definition: &Definition, command: String, report: &Value) -> Result<Self, String> {
        definition.check(report)?;
        let figure = |place: &String| Ok((place.clone(), definition::figure(report, place)?));
        let number = |key: &str| report[key].as_f64();
        Ok(Self {
            definition: definition.name.clone(),
            command,
            figures: definition.figures.iter().map(figure).collect::<Result<_, String>>()?,
            quality: Quality {
                samples: number("samples"),
                rejected_samples: number("rejected_samples"),
                trusted: report["trusted"].as_bool(),
                apparent_clock_ghz: number("apparent_clock_ghz"),
                foreign_cpu: number("foreign_cpu"),
            },
        })
    }

    /// Formats one line of text per figure for the terminal.
    pub fn format_summary(&self) -> String {
        let mut text = String::new();
        for (figure, value) in &self.figures {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{:<28} {figure:<44} {value:>14.2}", self.definition);
        }
        let Quality { samples, rejected_samples, trusted, apparent_clock_ghz, .. } = &self.quality;
        if let (Some(samples), Some(rejected)) = (samples, rejected_samples) {
            let clock = apparent_clock_ghz.unwrap_or(f64::NAN);
            let _ = write!(text, "{rejected} of {samples} samples rejected, {clock:.2} GHz");
        }
        if *trusted == Some(false) {
            text.push_str("; NOT TRUSTED: too few samples were undisturbed");
        }
        text.trim_end().to_owned()
    }

    fn format_rows(&self, place: &str) -> String {
        let shown =
            |number: Option<f64>| number.map_or(String::new(), |number| format!("{number}"));
        let Quality { samples, rejected_samples, trusted, apparent_clock_ghz, foreign_cpu } =
            &self.quality;
        let decimals = |number: &Option<f64>| number.map(|number| (number * 1e3).round() / 1e3);
        let quality = [
            shown(*samples),
            shown(*rejected_samples),
            trusted.map_or(String::new(), |trusted| trusted.to_string()),
            shown(decimals(apparent_clock_ghz)),
            shown(decimals(foreign_cpu)),
        ]
        .join(",");
        let command = self.command.replace('"', "\"\"");
        let mut text = String::new();
        for (figure, value) in &self.figures {
            let definition = &self.definition;
            let row = format!("{place},{definition},{figure},{value:.3},{quality},\"{command}\"");
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{row}");
        }
        text
    }
}

/// Appends the rows to the file of this machine and this day, and returns the path of the file.
pub fn append_records(root: &Path, records: &[BenchRecord]) -> Result<PathBuf, Error> {
    let (machine, cpus) = machine_name();
    let date = format_date(SystemTime::now());
    let folder = root.join("bench/record").join(&machine);
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    let path = folder.join(format!("{date}.csv"));
    let first = |program: &str, arguments: &[&str]| {
        let output =
            command::capture_output(Command::new(program).args(arguments).current_dir(root));
        output.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    let kernel = first("uname", &["-r"]);
    let mut commit = first("git", &["rev-parse", "--short", "HEAD"]);
    // Figures of uncommitted sources cannot be reproduced from the commit, so the row marks them.
    if !first("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() {
        commit += "+changes";
    }
    let place = format!("{date},{machine},{cpus},{kernel},{commit}");
    // Several runs of one day share a file, which needs its header only once.
    let mut text = if path.exists() { String::new() } else { format!("{HEADER}\n") };
    text.extend(records.iter().map(|record| record.format_rows(&place)));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(&path))?;
    Ok(path)
}

/// Returns the name of the processor, in a form that can be a folder name, and the number of
/// processors.
fn machine_name() -> (String, usize) {
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

/// Formats a time as a date in UTC, such as `2026-01-31`. The date is computed by Howard Hinnant's
/// algorithm `civil_from_days`.
fn format_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Days are counted from 0000-03-01, so that a leap day is the last day of a year.
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

    use serde_json::json;

    use super::{BenchRecord, folder_name, format_date};

    #[test]
    fn dates_across_leap_days() {
        let on = |seconds| format_date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(on(0), "1970-01-01");
        assert_eq!(on(951_782_400), "2000-02-29");
        assert_eq!(on(1_740_787_199), "2025-02-28");
        assert_eq!(on(1_740_787_200), "2025-03-01");
    }

    #[test]
    fn every_figure_has_a_row_with_its_quality() {
        let definition = crate::bench::definition::read_all(&crate::tree::root()).unwrap();
        let gemm = definition.iter().find(|definition| definition.name == "gemm").unwrap();
        let mut report = json!({"samples": 15, "rejected_samples": 2, "trusted": true,
            "apparent_clock_ghz": 3.65432, "foreign_cpu": 0.01234, "fma_peak_gflop_per_s": 230.0,
            "shapes": []});
        let shape = json!({"forward_pct_of_peak": 91.23456, "backward_input_pct_of_peak": 90.0,
            "backward_weight_pct_of_peak": 89.0});
        report["shapes"] = vec![shape; 4].into();
        let record = BenchRecord::new(gemm, "rowmill \"x\"".into(), &report).unwrap();
        let rows = record.format_rows("1,2,3,4,5");
        let expected = "1,2,3,4,5,gemm,shapes/0/forward_pct_of_peak,91.235,15,2,true,3.654,0.012,\
                        \"rowmill \"\"x\"\"\"";
        assert_eq!(rows.lines().next(), Some(expected));
        assert_eq!(expected.split(',').count(), super::HEADER.split(',').count());
        assert!(record.format_summary().ends_with("2 of 15 samples rejected, 3.65 GHz"));
    }

    #[test]
    fn a_report_without_a_figure_is_refused() {
        let all = crate::bench::definition::read_all(&crate::tree::root()).unwrap();
        let gemm = all.iter().find(|definition| definition.name == "gemm").unwrap();
        let refused = BenchRecord::new(gemm, String::new(), &json!({"shapes": []}));
        assert!(refused.is_err_and(|problem| problem.starts_with("expected a number at shapes/0")));
    }

    #[test]
    fn a_machine_is_a_plain_folder() {
        assert_eq!(folder_name("AMD EPYC(tm) 9R14 @ 3.7GHz"), "amd-epyc-tm-9r14-3-7ghz");
    }
}
