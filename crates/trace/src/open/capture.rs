//! Several recordings of one rank: a profiler whose schedule repeats writes one file per cycle,
//! and a job that is started again writes its files beside the old ones. A job has one recording
//! per rank, so one is kept. Knows no rule by which ranks are numbered.

use super::rank;
use crate::store::{EventKind, Loss, Trace};

/// The process that was recorded.
#[derive(PartialEq, Eq)]
struct RecordedProcess {
    host: Option<String>,
    pid: i64,
}

/// Keeps one recording of each rank, and counts the others as losses of the one that is kept.
///
/// Two files are recordings of one rank if they claim the same rank or none, do not overlap in
/// time, and are of one process, or of more ranks together than the job has. Of several recordings,
/// the ones are kept that began at about the same time on all ranks.
pub fn keep_one_per_rank(traces: &mut Vec<Trace>) {
    if traces.len() < 2 || !may_be_one_job(traces) {
        return;
    }
    rank::sort_by_name(traces);
    let groups = groups(traces);
    if groups.iter().all(|group| group.len() == 1) {
        return;
    }
    let starts: Vec<i64> =
        traces.iter().map(|trace| span(trace).map_or(0, |(start, _)| start)).collect();
    let start = |at: usize| starts[at];
    // The rank with the fewest recordings decides which cycle is kept.
    let Some(fewest) = groups.iter().min_by_key(|group| group.len()) else { return };
    let cycle = fewest.iter().map(|at| start(*at)).min().unwrap_or_default();
    let kept: Vec<usize> = groups
        .iter()
        .filter_map(|group| group.iter().copied().min_by_key(|at| start(*at).abs_diff(cycle)))
        .collect();
    for (group, kept) in groups.iter().zip(&kept) {
        for other in group.iter().filter(|other| *other != kept) {
            let seconds = (start(*other) - start(*kept)) as f64 / 1e9;
            let name = traces[*other].origin.to_string();
            traces[*kept].losses.count(Loss::OtherCapture, || {
                format!("{name}: a recording of the same rank, {seconds:+.1} s away; left out")
            });
        }
    }
    let mut at = 0;
    traces.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
}

/// Whether nothing says that the traces are of jobs of different sizes.
fn may_be_one_job(traces: &[Trace]) -> bool {
    let sizes = traces.iter().filter_map(|trace| trace.header.distributed.as_ref()?.world_size);
    let mut sizes: Vec<u32> = sizes.collect();
    sizes.dedup();
    sizes.len() < 2
}

/// The places of the recordings of each rank.
fn groups(traces: &[Trace]) -> Vec<Vec<usize>> {
    let claims = rank::claims(traces);
    let processes: Vec<Option<RecordedProcess>> = traces.iter().map(process).collect();
    let world_sizes = traces.iter().map(|trace| trace.header.distributed.as_ref()?.world_size);
    let sizes: Option<Vec<u32>> = world_sizes.collect();
    let is_too_many =
        sizes.is_some_and(|sizes| sizes.iter().all(|size| traces.len() > *size as usize));
    let is_of_one_rank = |a: usize, b: usize| {
        let is_one_process = match (&processes[a], &processes[b]) {
            (Some(one), Some(other)) => one == other && (one.host.is_some() || claims[a].is_some()),
            _ => false,
        };
        let is_one_claim = claims[a].is_some() && is_too_many;
        claims[a] == claims[b]
            && (is_one_process || is_one_claim)
            && are_apart(&traces[a], &traces[b])
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in 0..traces.len() {
        let found = groups.iter_mut().find(|group| group.iter().all(|of| is_of_one_rank(*of, at)));
        match found {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// First start and last end of a trace's rows.
fn span(trace: &Trace) -> Option<(i64, i64)> {
    let start = trace.slices.start.iter().min()?;
    let end = trace.rows().map(|row| trace.slices.end(row)).max()?;
    Some((*start, end))
}

fn are_apart(a: &Trace, b: &Trace) -> bool {
    match (span(a), span(b)) {
        (Some((start, end)), Some((from, to))) => end <= from || to <= start,
        _ => false,
    }
}

/// The process whose threads a trace shows. The host is in the header, or in the name that
/// PyTorch's own handler gives to files: `host_pid.time.pt.trace.json`.
fn process(trace: &Trace) -> Option<RecordedProcess> {
    let is_of_host = |row: &u32| {
        let kind = trace.kind(*row);
        kind == EventKind::Operator || kind.is_call()
    };
    let first = trace.rows().find(is_of_host)?;
    let pid = trace.track(first).pid.number()?;
    let keys = ["host_name", "hostname", "host"];
    let named = keys.iter().find_map(|key| trace.header.rest.get(*key)?.as_str());
    let host = named.map(str::to_owned).or_else(|| {
        let file = match &trace.origin.member {
            Some(member) => member.rsplit('/').next()?.to_owned(),
            None => trace.origin.path.file_name()?.to_string_lossy().into_owned(),
        };
        let (worker, _) = file.split_once('.')?;
        let (host, number) = worker.rsplit_once('_')?;
        (number.parse() == Ok(pid)).then(|| host.to_owned())
    });
    Some(RecordedProcess { host, pid })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::keep_one_per_rank;
    use crate::store::{Distributed, Loss, NewSlice, Trace};

    /// File, claimed rank of two, process, start in seconds.
    type File = (&'static str, Option<u32>, i64, i64);

    fn trace((name, rank, pid, start): File) -> Trace {
        let mut trace = Trace::default();
        trace.origin.path = PathBuf::from(name);
        let world_size = rank.map(|_| 2);
        trace.header.distributed = Some(Distributed { rank, world_size, ..Distributed::default() });
        let start = start * 1_000_000_000;
        trace.push(&NewSlice::new("cpu_op", "op", (pid, 1), (start, start + 1_000_000_000)));
        trace
    }

    fn check(files: &[File], kept: &[&str]) {
        let mut traces: Vec<Trace> = files.iter().copied().map(trace).collect();
        keep_one_per_rank(&mut traces);
        let names: Vec<String> = traces.iter().map(|trace| trace.origin.to_string()).collect();
        assert_eq!(names, kept, "{files:?}");
        let left_out: u64 = traces.iter().map(|t| t.losses.count_of(Loss::OtherCapture)).sum();
        assert_eq!(left_out as usize, files.len() - kept.len());
    }

    #[test]
    fn one_recording_of_each_process_is_kept() {
        check(&[("h_7.1.json", None, 7, 0), ("h_7.2.json", None, 7, 60)], &["h_7.1.json"]);
        check(
            &[
                ("h_7.1.json", Some(0), 7, 0),
                ("h_7.2.json", Some(0), 7, 60),
                ("i_8.2.json", Some(1), 8, 60),
            ],
            &["h_7.2.json", "i_8.2.json"],
        );
        // A job that was started again has other processes, but no more ranks.
        check(
            &[
                ("a.json", Some(0), 7, 0),
                ("b.json", Some(1), 8, 0),
                ("c.json", Some(0), 9, 60),
                ("d.json", Some(1), 10, 60),
            ],
            &["a.json", "b.json"],
        );
    }

    #[test]
    fn different_processes_of_one_time_are_different_ranks() {
        check(
            &[("h_7.1.json", None, 7, 0), ("h_8.1.json", None, 8, 0)],
            &["h_7.1.json", "h_8.1.json"],
        );
        // In containers, every process may be the first.
        check(&[("a.json", None, 1, 0), ("b.json", None, 1, 5)], &["a.json", "b.json"]);
    }
}
