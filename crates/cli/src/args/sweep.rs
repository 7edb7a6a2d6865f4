//! Options of `rowmill predict sweep`, as typed.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

use setup::args::Sharding;

use super::priced::{PricedHost, PricedKernels};

/// Largest number of values to which one range expands.
const VALUES_MOST: usize = 1_000;

/// Options of `rowmill predict sweep`, which predicts steps of many configurations.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict sweep
  rowmill predict sweep --model my.toml --hardware a100,h100x8 --batch-size 2048,8192 --pooling 1,20
  rowmill predict sweep --hardware h100x1..16 --batch-size 512..65536 --best
  rowmill predict sweep --batch-size 512..4096:512 --svg sweep.svg --format csv --output sweep.csv

Lists are separated by commas. A range doubles from its first value to its last one, which is always
part of it: 512..4096 is 512,1024,2048,4096. A range with a step adds: 512..2048:512 is
512,1024,1536,2048. A count of devices may be a range: h100x1..8, 1..4xh100x8.

A step takes no less than the host's time, as of `rowmill predict step`; `binds` says which is longer.
Without arguments: the models of arXiv:2201.07821, its devices and later ones. `is_best` marks the
Pareto front: steps that fit and that no other step of the same model and pooling beats in samples
per second, memory of the fullest rank and number of ranks together. --svg draws it.")]
pub struct PredictSweep {
    /// Configurations: TOML files, or names of ready-made configurations
    #[arg(long, value_name = "CONFIG", value_delimiter = ',')]
    #[arg(default_values = ["dlrm-default", "dlrm-mlperf", "dlrm-ddp"])]
    pub model: Vec<String>,
    /// Devices, named as for `predict step`
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', value_parser = devices)]
    #[arg(default_values = ["v100", "titan-xp", "p100", "t4", "a100", "h100"])]
    pub hardware: Vec<Several<String>>,
    /// Samples per step, summed over all ranks
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = sizes)]
    #[arg(default_values = ["512", "1024", "2048", "4096"])]
    pub batch_size: Vec<Several<usize>>,
    /// Number of ids per bag of features without a size in [synthetic]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = poolings)]
    #[arg(default_values = ["1"])]
    pub pooling: Vec<Several<u32>>,
    /// Change a key of every configuration
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// How tables are split over ranks [default: table]
    #[arg(long, value_enum)]
    pub sharding: Option<Sharding>,
    /// The host's overheads, as of `rowmill predict step` [default: of the GPU nearest to each]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "launch_us")]
    pub overheads: Option<String>,
    #[command(flatten)]
    pub host: PricedHost,
    #[command(flatten)]
    pub kernels: PricedKernels,
    /// Print only the rows on the Pareto front
    #[arg(long)]
    pub best: bool,
    /// Also draw samples per second against memory, with the Pareto front
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The values to which a range expands, or a single value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several<T>(Vec<T>);

/// The distinct values of a list of ranges, in the order of the list.
pub fn each<T: Clone + PartialEq>(list: &[Several<T>]) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in list.iter().flat_map(|several| &several.0) {
        if !all.contains(value) {
            all.push(value.clone());
        }
    }
    all
}

fn devices(text: &str) -> Result<Several<String>, String> {
    expanded(text).map(Several)
}

fn sizes(text: &str) -> Result<Several<usize>, String> {
    numbers(text, &(1..=usize::MAX))
}

fn poolings(text: &str) -> Result<Several<u32>, String> {
    numbers(text, &(1..=100_000))
}

fn numbers<T>(text: &str, known: &RangeInclusive<T>) -> Result<Several<T>, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = |text: String| {
        let value: Option<T> = text.parse().ok();
        value.filter(|value| known.contains(value)).ok_or_else(|| {
            let (least, most) = (known.start(), known.end());
            format!("expected numbers from {least} to {most}, or ranges such as 512..4096")
        })
    };
    expanded(text)?.into_iter().map(number).collect::<Result<_, _>>().map(Several)
}

/// Expands a range of numbers inside a text to one text per number. A text without a range is
/// returned unchanged.
fn expanded(text: &str) -> Result<Vec<String>, String> {
    let Some(dots) = text.find("..") else { return Ok(vec![text.to_owned()]) };
    let (before, after) = (&text[..dots], &text[dots + 2..]);
    let prefix = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (last, rest) = after.split_at(digits(after));
    if prefix.len() == before.len() || last.is_empty() {
        // The two dots belong to a path, as in ../cpu, so the text is not a range.
        return Ok(vec![text.to_owned()]);
    }
    let (step, rest) = match rest.strip_prefix(':') {
        Some(stepped) => {
            let (step, rest) = stepped.split_at(digits(stepped));
            (Some(step), rest)
        }
        None => (None, rest),
    };
    let number = |text: &str| {
        let value: Option<u64> = text.parse().ok();
        value.filter(|value| *value > 0).ok_or_else(|| format!("expected a number, got {text:?}"))
    };
    let (first, last) = (number(&before[prefix.len()..])?, number(last)?);
    let step = step.map(number).transpose()?;
    if first > last {
        return Err(format!("expected a range that rises, got {first}..{last}"));
    }
    let next = |value: &u64| match step {
        Some(step) => value.checked_add(step),
        None => value.checked_mul(2),
    };
    let values = std::iter::successors(Some(first), next).take_while(|value| *value < last);
    let mut values: Vec<u64> = values.take(VALUES_MOST).collect();
    if values.len() == VALUES_MOST {
        return Err(format!("expected at most {VALUES_MOST} values, got more"));
    }
    values.push(last);
    Ok(values.into_iter().map(|value| format!("{prefix}{value}{rest}")).collect())
}

#[cfg(test)]
mod tests {
    use super::{each, expanded, numbers, sizes};

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(expanded(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn ranges_double_or_add_and_end_with_their_last_value() {
        check("512", &["512"]);
        check("512..4096", &["512", "1024", "2048", "4096"]);
        check("512..1500", &["512", "1024", "1500"]);
        check("3..3", &["3"]);
        check("512..2048:512", &["512", "1024", "1536", "2048"]);
        check("h100x1..4", &["h100x1", "h100x2", "h100x4"]);
        check("1..2xh100x8", &["1xh100x8", "2xh100x8"]);
        // The two dots in a path must not be parsed as a range.
        check("../cpu", &["../cpu"]);
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for text in ["9..3", "0..4", "1..4:0", "1..99999999999999999999", "1..9000:1", "1..9:"] {
            assert!(expanded(text).is_err(), "{text}");
        }
        for text in ["0", "x", "-1", "1..y", ""] {
            assert!(sizes(text).is_err(), "{text}");
        }
        assert!(numbers("64..128", &(1..=100u32)).is_err(), "beyond the most");
    }

    #[test]
    fn values_of_several_ranges_count_once() {
        let list = ["512", "512..2048"].map(|text| sizes(text).unwrap());
        assert_eq!(each(&list), [512, 1024, 2048]);
    }
}
