//! Formats the text of a request as lines of `KEY=VALUE`, which Kineto parses.
//!
//! Kineto silently drops a request with a line that it cannot parse, so every value is checked
//! first.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Iterations before the recorded ones in which the profiler runs and records nothing. The first
/// iterations after the profiler's start are slower, because it allocates buffers and attaches to
/// the device. Without this setting, Kineto would run no warm-up iterations.
const WARMUP_ITERATIONS: u32 = 2;

/// The condition that starts a recording, and the length of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Complete iterations, counted by `optimizer.step()` or the profiler's `step()`.
    Iterations {
        count: u32,
        /// Recording starts at a multiple of this number of iterations, so that all ranks record
        /// the same iterations.
        align: u32,
    },
    Duration {
        length: Duration,
        /// Seconds for which the profiler runs before it records.
        warmup_s: u32,
        /// Start of the recording, in milliseconds since 1970.
        start_unix_ms: u64,
    },
}

/// The optional content of a trace. Each optional part makes traces larger and jobs slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Shapes of the operators' inputs.
    pub shapes: Switch,
    /// Python and C++ call stacks.
    pub stacks: Switch,
    /// Numbers of floating-point operations, where PyTorch can compute them.
    pub flops: Switch,
    /// The `nn.Module` to which each operator belongs.
    pub modules: Switch,
    pub memory: Switch,
}

/// Whether an optional part of a trace is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    On,
    #[default]
    Off,
}

/// A request for a trace, as sent to one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of the trace as the process sees it. Kineto inserts the process id before `.json`.
    pub path: PathBuf,
    pub trigger: Trigger,
    pub detail: Detail,
    /// Id that Kineto writes into the trace as `trace_id`.
    pub trace_id: String,
}

/// The reason why a request cannot be expressed in Kineto's format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestTextError {
    /// A value contains a character that Kineto would read as its end.
    #[error("{what} {text:?}: Kineto's configuration cannot hold '=', '#' or a line break in it")]
    Character { what: &'static str, text: String },
    /// The path does not have the form that Kineto accepts.
    #[error("{}: expected an absolute path without '..' that ends in .json", path.display())]
    Path { path: PathBuf },
    #[error("expected at least one iteration or millisecond to record, got 0")]
    Nothing,
}

impl Config {
    /// Formats the request.
    ///
    /// # Errors
    /// Fails if the path or id has invalid characters, or if there is nothing to record.
    pub fn text(&self) -> Result<String, RequestTextError> {
        let path = self.path.to_str().filter(|text| {
            text.starts_with('/') && text.ends_with(".json") && !text.contains("..")
        });
        let path = path.ok_or_else(|| RequestTextError::Path { path: self.path.clone() })?;
        let mut text = format!("ACTIVITIES_LOG_FILE={}\n", value("path", path)?);
        // Writing to a String cannot fail.
        let _ = match self.trigger {
            Trigger::Iterations { count: 0, .. } => return Err(RequestTextError::Nothing),
            Trigger::Duration { length, .. } if length.as_millis() == 0 => {
                return Err(RequestTextError::Nothing);
            }
            // If a request for iterations arrives before the first step, Kineto records half a
            // second instead. With a duration of 0 Kineto refuses such a request, and it is
            // repeated at the next poll.
            Trigger::Iterations { count, align } => write!(
                text,
                "PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP={}\n\
                 ACTIVITIES_WARMUP_ITERATIONS={WARMUP_ITERATIONS}\n\
                 ACTIVITIES_ITERATIONS={count}\nACTIVITIES_DURATION_MSECS=0\n",
                align.max(1)
            ),
            Trigger::Duration { length, warmup_s, start_unix_ms } => write!(
                text,
                "PROFILE_START_TIME={start_unix_ms}\nACTIVITIES_WARMUP_PERIOD_SECS={warmup_s}\n\
                 ACTIVITIES_DURATION_MSECS={}\n",
                length.as_millis()
            ),
        };
        for (key, switch) in [
            ("PROFILE_REPORT_INPUT_SHAPES", self.detail.shapes),
            ("PROFILE_WITH_STACK", self.detail.stacks),
            ("PROFILE_WITH_FLOPS", self.detail.flops),
            ("PROFILE_WITH_MODULES", self.detail.modules),
            ("PROFILE_PROFILE_MEMORY", self.detail.memory),
        ] {
            let _ = writeln!(text, "{key}={}", switch == Switch::On);
        }
        let _ = writeln!(text, "REQUEST_TRACE_ID={}", value("trace id", &self.trace_id)?);
        Ok(text)
    }
}

/// A request for a trace, as a process reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedTrace {
    /// Path of the file to write, with the process id before `.json`.
    pub path: PathBuf,
    pub trace_id: String,
    pub trigger: Trigger,
}

impl RequestedTrace {
    /// Parses the text of a request to the process `pid`. Returns `None` if the text has no path,
    /// no id, or neither iterations nor a duration.
    pub fn parse(text: &str, pid: u32) -> Option<Self> {
        let pairs: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.trim().split_once('=')).collect();
        let number = |key: &str| pairs.get(key)?.parse::<u64>().ok();
        let path = pairs.get("ACTIVITIES_LOG_FILE")?.strip_suffix(".json")?;
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let trigger = match number("ACTIVITIES_ITERATIONS").filter(|count| *count > 0) {
            Some(count) => Trigger::Iterations {
                count: small(count),
                align: small(number("PROFILE_START_ITERATION_ROUNDUP").unwrap_or(1)),
            },
            None => Trigger::Duration {
                length: Duration::from_millis(number("ACTIVITIES_DURATION_MSECS")?),
                warmup_s: small(number("ACTIVITIES_WARMUP_PERIOD_SECS").unwrap_or(0)),
                start_unix_ms: number("PROFILE_START_TIME").unwrap_or(0),
            },
        };
        let trace_id = (*pairs.get("REQUEST_TRACE_ID")?).to_owned();
        Some(Self { path: format!("{path}_{pid}.json").into(), trace_id, trigger })
    }
}

fn value<'a>(what: &'static str, text: &'a str) -> Result<&'a str, RequestTextError> {
    if text.contains(['=', '#', '\n', '\r', '\0']) {
        return Err(RequestTextError::Character { what, text: text.to_owned() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Config, Detail, RequestTextError, RequestedTrace, Switch, Trigger};

    fn config(path: &str, trigger: Trigger) -> Config {
        let detail = Detail { shapes: Switch::On, ..Detail::default() };
        Config { path: path.into(), trigger, detail, trace_id: "a-1".into() }
    }

    const FIVE: Trigger = Trigger::Iterations { count: 5, align: 100 };

    #[test]
    fn iterations_are_requested_in_kinetos_format() {
        let text = config("/tmp/x/trace.json", FIVE).text().unwrap();
        assert_eq!(
            text,
            "ACTIVITIES_LOG_FILE=/tmp/x/trace.json\nPROFILE_START_ITERATION=0\n\
             PROFILE_START_ITERATION_ROUNDUP=100\n\
             ACTIVITIES_WARMUP_ITERATIONS=2\nACTIVITIES_ITERATIONS=5\n\
             ACTIVITIES_DURATION_MSECS=0\nPROFILE_REPORT_INPUT_SHAPES=true\n\
             PROFILE_WITH_STACK=false\nPROFILE_WITH_FLOPS=false\nPROFILE_WITH_MODULES=false\n\
             PROFILE_PROFILE_MEMORY=false\nREQUEST_TRACE_ID=a-1\n"
        );
        for line in text.lines() {
            assert_eq!(line.matches('=').count(), 1, "{line}");
        }
    }

    #[test]
    fn a_process_reads_what_the_daemon_requests() {
        let length = Duration::from_millis(500);
        let timed = Trigger::Duration { length, warmup_s: 2, start_unix_ms: 7 };
        for trigger in [FIVE, timed] {
            let text = config("/tmp/x/trace.json", trigger).text().unwrap();
            let (path, trace_id) = ("/tmp/x/trace_9.json".into(), "a-1".to_owned());
            let requested = RequestedTrace { path, trace_id, trigger };
            assert_eq!(RequestedTrace::parse(&text, 9), Some(requested));
        }
        assert_eq!(RequestedTrace::parse("REQUEST_TRACE_ID=a\n", 9), None);
    }

    #[test]
    fn durations_are_requested_with_a_start_time() {
        let trigger = Trigger::Duration {
            length: Duration::from_millis(500),
            warmup_s: 2,
            start_unix_ms: 1_760_000_000_123,
        };
        let text = config("/tmp/t.json", trigger).text().unwrap();
        assert!(text.contains("PROFILE_START_TIME=1760000000123\n"), "{text}");
        assert!(text.contains("WARMUP_PERIOD_SECS=2\nACTIVITIES_DURATION_MSECS=500\n"), "{text}");
    }

    #[test]
    fn requests_that_kineto_would_drop_are_errors() {
        for path in ["/tmp/a=b/t.json", "/tmp/a#b/t.json", "/tmp/a\nb/t.json"] {
            let error = config(path, FIVE).text().unwrap_err();
            assert!(matches!(error, RequestTextError::Character { .. }), "{path}: {error}");
        }
        for path in ["t.json", "/tmp/../t.json", "/tmp/t"] {
            let error = config(path, FIVE).text().unwrap_err();
            assert!(matches!(error, RequestTextError::Path { .. }), "{path}: {error}");
        }
        let none = Trigger::Iterations { count: 0, align: 1 };
        assert_eq!(config("/tmp/t.json", none).text().unwrap_err(), RequestTextError::Nothing);
    }
}
