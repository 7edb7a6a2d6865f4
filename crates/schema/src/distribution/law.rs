//! The distribution of ids as users specify it, on the command line or in a configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Specification of an id distribution. Unlike [`super::IndexDistribution`], it names the file of a
/// measured histogram instead of containing the histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum IdLaw {
    #[default]
    Uniform,
    Zipf {
        /// Skew of the distribution, 0 or more; 1.05 is typical of production tables.
        exponent: f64,
    },
    /// A measured histogram of reuse, which is read from a file.
    Reuse {
        /// File of locality statistics in the format of `dlrm_datasets`: plain, `.gz` or `.zst`.
        file: String,
        /// Name of a section of the file; the first section if omitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        section: Option<String>,
    },
}

impl IdLaw {
    /// Returns a description of the problem, or `None` if the specification is valid.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Zipf { exponent } if !(exponent.is_finite() && *exponent >= 0.0) => {
                Some(format!("expected an exponent of 0 or more, got {exponent}"))
            }
            Self::Reuse { file, .. } if file.is_empty() => {
                Some("expected a file of locality statistics, got no name".to_owned())
            }
            _ => None,
        }
    }
}

impl fmt::Display for IdLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Self::Reuse { file, section: None } => write!(f, "reuse:{file}"),
            Self::Reuse { file, section: Some(section) } => write!(f, "reuse:{file}#{section}"),
        }
    }
}

impl FromStr for IdLaw {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "expected uniform, zipf:EXPONENT such as zipf:1.05, or reuse:FILE[#SECTION], got {text}"
            )
        };
        // Only the first colon separates, so the name of a file may contain further colons.
        let law = match text.split_once(':') {
            None if text == "uniform" => Self::Uniform,
            Some(("zipf", exponent)) => {
                let exponent = exponent
                    .parse()
                    .map_err(|_| format!("expected an exponent of 0 or more, got {exponent}"))?;
                Self::Zipf { exponent }
            }
            Some(("reuse", place)) => match place.split_once('#') {
                Some((file, section)) => {
                    Self::Reuse { file: file.to_owned(), section: Some(section.to_owned()) }
                }
                None => Self::Reuse { file: place.to_owned(), section: None },
            },
            _ => return Err(unknown()),
        };
        match law.problem() {
            Some(problem) => Err(problem),
            None => Ok(law),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IdLaw;

    #[test]
    fn specifications_round_trip() {
        for text in ["uniform", "zipf:1.05", "reuse:stats.txt.gz", "reuse:stats.txt#day 2"] {
            assert_eq!(text.parse::<IdLaw>().map(|law| law.to_string()), Ok(text.to_owned()));
        }
        for text in ["pareto", "zipf:", "zipf:-1", "zipf:nan", "reuse:", "uniform:1"] {
            let refused = text.parse::<IdLaw>().map_err(|problem| problem.contains("expected"));
            assert_eq!(refused, Err(true), "{text}");
        }
    }
}
