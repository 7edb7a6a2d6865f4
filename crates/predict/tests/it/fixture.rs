//! Provides steps of recorded jobs, from the real traces of the fixtures and from rows written by
//! hand.

use analyze::classify::ClassRule;
use analyze::job::{OperatorTensors, Tensors};
use analyze::{Classifier, Scope, WindowRule};
use predict::recording::{self, Span, Step, TensorSizes};
use serde_json::Value;
use trace::open::{self, ReadRequest};
use trace::store::{Job, NewSlice, Trace};

/// Reads the job at a path below `traces`. Returns `None` if the fixtures are missing.
pub fn job(name: &str) -> Option<Job> {
    let paths = vec![testkit::fixture::path(&format!("traces/{name}"))?];
    Some(open::read(&ReadRequest { paths, threads: 1 }).expect("a trace"))
}

/// Reads the tensor sizes of the given rows from the trace files.
pub fn sizes(scopes: &[Scope<'_>], rows: &[Vec<u32>]) -> TensorSizes {
    let mut shapes = OperatorTensors::new();
    for (scope, rows) in scopes.iter().zip(rows) {
        let arguments = open::arguments(scope.trace, rows).expect("the same file");
        for (row, arguments) in rows.iter().zip(arguments) {
            let list = |name: &str| arguments.get(name).and_then(Value::as_array).cloned();
            let sizes = |of: &Value| {
                let of = of.as_array().map_or(&[][..], Vec::as_slice);
                of.iter().filter_map(Value::as_u64).collect::<Vec<u64>>()
            };
            let Some(dims) = list("Input Dims") else { continue };
            let dims = dims.iter().map(sizes).collect();
            let types = list("Input type").unwrap_or_default();
            let types = types.iter().map(|of| of.as_str().unwrap_or_default().to_owned()).collect();
            shapes.insert((scope.trace.rank, *row), Tensors { dims, types });
        }
    }
    TensorSizes { tensors: shapes, ..TensorSizes::default() }
}

/// A recorded job, whose tensor sizes are read from its files.
pub struct Recording(Job);

impl Recording {
    /// Reads the job at a path below `traces`. Returns `None` if the fixtures are missing.
    pub fn read(name: &str) -> Option<Self> {
        job(name).map(Self)
    }

    /// Calls `use_job` with the job prepared for reading steps.
    pub fn with_job<T>(&self, use_job: impl FnOnce(&recording::Job<'_>) -> T) -> T {
        let scopes = scopes(&self.0.traces);
        use_job(&recording::Job::new(&scopes, |rows| sizes(&scopes, rows)))
    }

    /// Returns the time ranges of the steps of each rank.
    pub fn spans(&self) -> Vec<Vec<Span>> {
        scopes(&self.0.traces).iter().map(|scope| recording::spans(scope)).collect()
    }

    /// Reads the first step of one rank, as if no other rank had been recorded.
    pub fn step_alone(&self, rank: usize) -> Step {
        let scopes = scopes(&self.0.traces[rank..=rank]);
        let job = recording::Job::new(&scopes, |rows| sizes(&scopes, rows));
        job.step(&[recording::spans(&scopes[0])[0]]).expect("host rows")
    }

    /// Reads step `number` of all ranks.
    pub fn step(&self, number: usize) -> Step {
        let spans: Vec<Span> = self.spans().iter().map(|spans| spans[number]).collect();
        self.with_job(|job| job.step(&spans)).expect("host rows")
    }
}

/// Creates scopes that contain all rows of the traces.
pub fn scopes(traces: &[Trace]) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect()
}

/// Reads the first step of traces that were written by hand.
pub fn step_of(traces: &[Trace]) -> Step {
    let scopes = scopes(traces);
    let job = recording::Job::new(&scopes, |_| TensorSizes::default());
    let spans: Vec<Span> = scopes.iter().map(|scope| recording::spans(scope)[0]).collect();
    job.step(&spans).expect("host rows")
}

/// Process and thread id of the host thread in traces that are written by hand.
pub const HOST: (i64, i64) = (9, 9);

/// A row of a trace that is written by hand: category, name, track, start, end and correlation id.
pub type Row<'a> = (&'a str, &'a str, (i64, i64), i64, i64, u64);

/// Builds a trace from rows. Times are in microseconds, and a correlation id of 0 means that the
/// row has none.
pub fn by_hand(rows: &[Row<'_>]) -> Trace {
    let mut trace = Trace::default();
    for (category, name, track, start, end, correlation) in rows {
        let span = (start * 1_000, end * 1_000);
        let correlation = Some(*correlation).filter(|id| *id != 0);
        trace.push(&NewSlice { correlation, ..NewSlice::new(category, name, *track, span) });
    }
    trace
}
