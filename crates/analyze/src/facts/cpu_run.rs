//! Recognizes traces of rowmill's own training on a pool of CPU threads, without GPU, network and
//! Python.

use trace::store::Trace;

/// Returns whether the device of a trace is a pool of CPU threads, as `rowmill train --trace`
/// records it.
pub fn is_cpu_run(trace: &Trace) -> bool {
    let is_own = |name: &str, label: &str| name == "rowmill" && label.starts_with("pool ");
    trace.tracks.iter().any(|track| is_own(&track.process_name, &track.process_label))
}

/// Returns whether a row of this name is a part of an exchange between ranks, which has neither
/// launch nor operator because a thread beside the operators carries it out.
pub fn is_exchange(name: &str) -> bool {
    name.starts_with("rowmill_sendrecv ") || name.starts_with("rowmill_copy ")
}

/// Returns whether the device of every trace of a job is a pool of CPU threads; `false` for a job
/// without traces.
pub fn are_cpu_runs<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> bool {
    let mut traces = traces.into_iter().peekable();
    traces.peek().is_some() && traces.all(is_cpu_run)
}

#[cfg(test)]
mod tests {
    use trace::store::{NewSlice, Trace};

    use super::are_cpu_runs;

    #[test]
    fn cpu_runs_are_recognized_by_the_pool_label() {
        let mut trace = Trace::default();
        trace.push(&NewSlice::new("kernel", "rowmill_gemm_forward", (0, 1), (0, 5)));
        assert!(!are_cpu_runs([]) && !are_cpu_runs([&trace]));
        trace.tracks[0].process_name = "rowmill".to_owned();
        trace.tracks[0].process_label = "pool 0: a CPU".to_owned();
        assert!(are_cpu_runs([&trace]) && !are_cpu_runs([&trace, &Trace::default()]));
    }
}
