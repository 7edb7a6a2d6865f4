//! Configuration of periodic traces: daily budgets, with overrides per workflow type.

use schema::pattern;
use serde::Deserialize;

/// The table `[periodic]` of the configuration, with daily budgets and properties of periodic
/// traces.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Largest number of traces of a workflow type per day, including lost traces.
    #[serde(default = "traces_per_day")]
    pub traces_per_day: u32,
    /// Largest number of MiB that the profiler may write for a workflow type per day.
    #[serde(default = "mib_per_day")]
    pub mib_per_day: u64,
    /// Largest share of a day's steps that may be recorded.
    #[serde(default = "share_of_steps")]
    pub share_of_steps: f64,
    /// Number of training steps in a trace.
    #[serde(default = "iterations")]
    pub iterations: u32,
    /// Largest tolerated slowdown of steps during a trace. The agent backs off after several traces
    /// in a row with a larger slowdown, unless the job's own variation explains it.
    #[serde(default = "slowdown_max")]
    pub slowdown_max: f64,
    /// Optional content of the traces, in addition to names and times.
    #[serde(default)]
    pub with: Vec<String>,
    /// Ids of the users whose jobs are traced. An empty list means all users.
    #[serde(default)]
    pub users: Vec<u32>,
    /// Largest total size in MiB of the compressed traces that this host keeps. Beyond it the
    /// oldest traces are removed.
    #[serde(default = "keep_mib")]
    pub keep_mib: u64,
    /// Workflow types with budgets of their own. The first pattern that matches applies.
    #[serde(default, rename = "workflow")]
    pub workflows: Vec<Workflow>,
}

/// The table `[[periodic.workflow]]`, which overrides values of `[periodic]` for some workflow
/// types.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// Pattern of the workflow type's name, in which `*` matches any characters.
    pub name: String,
    /// Number of traces per day. With 0, the workflow type is not traced.
    pub traces_per_day: Option<u32>,
    pub mib_per_day: Option<u64>,
    pub share_of_steps: Option<f64>,
}

/// The budgets that apply to one workflow type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceBudgets {
    /// Largest number of periodic traces per day.
    pub traces: u32,
    /// Largest number of bytes that the profiler may write per day.
    pub bytes: u64,
    /// Largest share of a day's steps that may be recorded.
    pub share: f64,
    /// Number of training steps in a trace.
    pub iterations: u32,
    /// Slowdown of steps, as a share, beyond which the agent backs off.
    pub slowdown: f64,
}

/// An invalid value of a configuration key, with the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub what: String,
    pub expected: &'static str,
    pub got: String,
}

fn traces_per_day() -> u32 {
    24
}

fn mib_per_day() -> u64 {
    2048
}

fn share_of_steps() -> f64 {
    0.001
}

fn iterations() -> u32 {
    5
}

fn slowdown_max() -> f64 {
    0.03
}

fn keep_mib() -> u64 {
    4096
}

impl Policy {
    /// Returns the budgets of a workflow type. The first override whose pattern matches applies.
    pub fn limits(&self, workflow: &str) -> TraceBudgets {
        let own = self.workflows.iter().find(|own| pattern::matches(&own.name, workflow));
        let mib = own.and_then(|own| own.mib_per_day).unwrap_or(self.mib_per_day);
        TraceBudgets {
            traces: own.and_then(|own| own.traces_per_day).unwrap_or(self.traces_per_day),
            bytes: mib.saturating_mul(1 << 20),
            share: own.and_then(|own| own.share_of_steps).unwrap_or(self.share_of_steps),
            iterations: self.iterations,
            slowdown: self.slowdown_max,
        }
    }

    /// Lists every invalid value of the table `[periodic]`.
    pub fn problems(&self) -> Vec<Wrong> {
        let mut problems = Vec::new();
        let mut wrong = |what: &str, expected, got: String| {
            problems.push(Wrong { what: format!("periodic: {what}"), expected, got });
        };
        let traces = self.workflows.iter().filter_map(|own| own.traces_per_day);
        for count in traces.chain([self.traces_per_day]).filter(|&count| count > 86_400) {
            wrong("traces_per_day", "at most one a second, 86400", count.to_string());
        }
        let shares = self.workflows.iter().filter_map(|own| own.share_of_steps);
        for share in shares.chain([self.share_of_steps]) {
            if !(share > 0.0 && share <= 1.0) {
                wrong("share_of_steps", "a share above 0, at most 1", share.to_string());
            }
        }
        if !(1..=1000).contains(&self.iterations) {
            wrong("iterations", "1 to 1000 steps", self.iterations.to_string());
        }
        if !(self.slowdown_max > 0.0 && self.slowdown_max <= 1.0) {
            let expected = "a share above 0, at most 1, such as 0.03";
            wrong("slowdown_max", expected, self.slowdown_max.to_string());
        }
        if self.keep_mib == 0 {
            wrong("keep_mib", "at least 1 MiB", "0".to_owned());
        }
        for own in self.workflows.iter().filter(|own| own.name.is_empty()) {
            let expected = "a pattern such as \"ranking-*\"";
            wrong("workflow: name", expected, format!("{:?}", own.name));
        }
        let details = fleet::wire::TraceOrder::DETAILS;
        for with in self.with.iter().filter(|with| !details.contains(&with.as_str())) {
            wrong("with", "shapes, stacks, flops, modules or memory", format!("{with:?}"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::Policy;

    fn policy(text: &str) -> Policy {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_first_matching_workflow_applies() {
        let policy = policy(
            "traces_per_day = 10\n[[workflow]]\nname = 'ads-*'\ntraces_per_day = 96\nmib_per_day = 1\n\
             [[workflow]]\nname = '*'\nshare_of_steps = 0.5\n",
        );
        assert_eq!(policy.problems(), []);
        let (ads, other) = (policy.limits("ads-1"), policy.limits("feed"));
        assert_eq!((ads.traces, ads.bytes, ads.share), (96, 1 << 20, 0.001));
        assert_eq!((other.traces, other.bytes, other.share), (10, 2048 << 20, 0.5));
    }

    #[test]
    fn invalid_values_are_named() {
        let wrong = |text: &str| policy(text).problems().remove(0).what;
        assert_eq!(wrong("traces_per_day = 86401"), "periodic: traces_per_day");
        assert_eq!(wrong("share_of_steps = 0.0"), "periodic: share_of_steps");
        assert_eq!(wrong("share_of_steps = nan"), "periodic: share_of_steps");
        assert_eq!(wrong("iterations = 0"), "periodic: iterations");
        assert_eq!(wrong("slowdown_max = 2.0"), "periodic: slowdown_max");
        assert_eq!(wrong("with = ['colours']"), "periodic: with");
        assert_eq!(wrong("keep_mib = 0"), "periodic: keep_mib");
        assert_eq!(wrong("[[workflow]]\nname = ''"), "periodic: workflow: name");
    }
}
