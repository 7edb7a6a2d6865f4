//! The figures of Holistic Trace Analysis 0.6.1, against what that tool printed.

mod exception;
mod table;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use analyze::hta::{self, View};
use trace::store::{Job, Trace};

use crate::fixture;

/// Truth's prefix, trace, and the rank the truth was made for.
const TRACES: [(&str, &str, u32); 8] = [
    ("simple_add", "simple_add/benchmark_result_493459_1694039959_trace.json.gz", 0),
    ("alexnet", "alexnet/benchmark_result_2869224_1695835535_trace.json.gz", 0),
    ("linear_kineto", "linear/linear_kineto.json.gz", 0),
    ("nccl", "nccl/nccl_data.json.gz", 0),
    ("timeline_sampled", "timeline_sampled/sampled_rank-0.json.gz", 0),
    ("trace_diff_control", "trace_diff/control.json.gz", 3),
    ("trace_diff_test", "trace_diff/test.json.gz", 1),
    ("dlrm8", "dlrm8/dlrm_kineto.tar.gz", 0),
];

/// A line of a table, by the names of its columns.
type Line = BTreeMap<String, String>;

/// The traces, read once for all tests; empty where the fixtures are absent.
static JOBS: LazyLock<Vec<(&str, Job)>> = LazyLock::new(|| {
    let read = |(prefix, path, rank)| Some((prefix, job(path, rank)?));
    TRACES.into_iter().filter_map(read).collect()
});

/// Compares one table of every trace.
fn check(table: &str, compare: impl Fn(&str, &[View<'_>], &[Line])) {
    for (prefix, job) in &*JOBS {
        let Some(text) = fixture::text(&format!("hta_truth/{prefix}.{table}.csv")) else { return };
        compare(prefix, &hta::views(&job.traces), &lines(&text));
    }
}

/// A job whose single trace has a known rank; the ranks of several are the file's.
fn job(path: &str, rank: u32) -> Option<Job> {
    let mut job = fixture::job(path)?;
    if let [trace] = job.traces.as_mut_slice() {
        trace.rank = rank;
    }
    Some(job)
}

/// A table's lines. Fields may be quoted.
fn lines(csv: &str) -> Vec<Line> {
    let mut texts = csv.lines();
    let mut names = fields(texts.next().unwrap_or_default());
    // The whole line too, for tables whose columns have names on several lines.
    names.push("line".to_owned());
    let of = |text: &str| {
        let values = fields(text).into_iter().chain([text.to_owned()]);
        names.iter().cloned().zip(values).collect()
    };
    texts.map(of).collect()
}

fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            _ => fields.last_mut().unwrap().push(letter),
        }
    }
    fields
}

/// A column of microseconds as nanoseconds.
fn ns(line: &Line, column: &str) -> i64 {
    (number(line, column).expect(column) * 1e3) as i64
}

/// A column's number; `None` of an empty field.
fn number(line: &Line, column: &str) -> Option<f64> {
    Some(&line[column]).filter(|text| !text.is_empty()).map(|text| text.parse().expect(column))
}

fn rank(line: &Line) -> u32 {
    line["rank"].parse().unwrap()
}

/// Category, name, start and end in nanoseconds, correlation, stream.
type Slice<'a> = (&'a str, &'a str, i64, i64, Option<u64>, Option<i32>);

/// A trace of such rows.
fn traced(rows: &[Slice<'_>]) -> Trace {
    let mut trace = Trace::default();
    for &(category, name, start, end, correlation, stream) in rows {
        let row = trace::store::NewSlice::new(category, name, (1, 1), (start, end));
        trace.push(&trace::store::NewSlice { correlation, stream, ..row });
    }
    trace
}
