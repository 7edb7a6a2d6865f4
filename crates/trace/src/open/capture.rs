//! Chooses one recording of each rank if a job has several. A rank has several recordings if a
//! repeating profiler schedule writes one file per cycle, if a restarted job writes its files
//! beside the old ones, or if users copy files. A job in rowmill has one recording per rank.

use super::rank;
use crate::store::{EventKind, Loss, Trace};

/// Identifies the recorded process, so that two recordings of one process are recognized.
#[derive(PartialEq, Eq)]
struct RecordedProcess {
    host: Option<String>,
    pid: i64,
}

/// Keeps one recording of each rank. Each other recording is counted as a loss of the recording
/// that is kept.
///
/// Two files whose contents do not claim different ranks are recordings of the same rank in three
/// cases:
/// - Both files are from the same process, by host and process id.
/// - Both files have the same rows of the same process.
/// - Both files claim the same rank and do not overlap in time. In addition, the process ids of the
///   files are equal, or there are more files than the job has ranks.
///
/// The recordings that began at about the same time on all ranks are kept. If several recordings of
/// one rank began together, the one with the most rows is kept.
pub fn keep_one_per_rank(traces: &mut Vec<Trace>) {
    // Files of different jobs cannot be recordings of the same rank, so all of them are kept.
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
    // The rank with the fewest recordings decides which profiler cycle is kept.
    let Some(fewest) = groups.iter().min_by_key(|group| group.len()) else { return };
    let cycle = fewest.iter().map(|at| start(*at)).min().unwrap_or_default();
    let kept: Vec<usize> = groups
        .iter()
        .filter_map(|group| {
            let rank = |at: &usize| {
                let rows = traces[*at].slices.len();
                // The recording that starts closest to the cycle is kept. If several recordings
                // start equally close, the one with the most rows is kept.
                (start(*at).abs_diff(cycle), std::cmp::Reverse(rows))
            };
            group.iter().copied().min_by_key(rank)
        })
        .collect();
    for (group, kept) in groups.iter().zip(&kept) {
        for other in group.iter().filter(|other| *other != kept) {
            let what = relation(&traces[*kept], &traces[*other]);
            traces[*kept].losses.count(Loss::OtherCapture, || what);
        }
    }
    // `retain` does not pass an index, so the closure counts the traces.
    let mut at = 0;
    traces.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
}

/// Describes how a recording relates to the kept recording of its rank, for the list of losses.
fn relation(kept: &Trace, other: &Trace) -> String {
    let name = other.origin.to_string();
    if have_same_rows(kept, other) {
        return format!("{name}: a copy of {}; left out", kept.origin);
    }
    if are_apart(kept, other) {
        // The distance in time tells the user which cycle or which run of the job was left out.
        let start = |trace: &Trace| span(trace).map_or(0, |(start, _)| start);
        let seconds = (start(other) - start(kept)) as f64 / 1e9;
        return format!("{name}: a recording of the same rank, {seconds:+.1} s away; left out");
    }
    let process = process(kept).map_or_else(String::new, |process| {
        let host = process.host.map_or_else(String::new, |host| format!(" on {host}"));
        format!(", process {}{host},", process.pid)
    });
    format!(
        "{name}: of the same process{process} and of the same time as {}, so not another rank; the one \
         with fewer rows is left out",
        kept.origin
    )
}

/// Whether two recordings have the same rows, as copies of one file do.
fn have_same_rows(a: &Trace, b: &Trace) -> bool {
    let (one, other) = (&a.slices, &b.slices);
    !one.is_empty()
        && one.len() == other.len()
        && one.duration == other.duration
        && a.rows().all(|row| one.start(row) == other.start(row) && a.name(row) == b.name(row))
}

/// Whether the traces may belong to one job, because they do not claim different numbers of ranks.
fn may_be_one_job(traces: &[Trace]) -> bool {
    let sizes = traces.iter().filter_map(|trace| trace.header.distributed.as_ref()?.world_size);
    let mut sizes: Vec<u32> = sizes.collect();
    sizes.dedup();
    sizes.len() < 2
}

/// Groups the indices of the recordings by rank.
fn groups(traces: &[Trace]) -> Vec<Vec<usize>> {
    let claims = rank::claims(traces);
    let processes: Vec<Option<RecordedProcess>> = traces.iter().map(process).collect();
    let world_sizes = traces.iter().map(|trace| trace.header.distributed.as_ref()?.world_size);
    let sizes: Option<Vec<u32>> = world_sizes.collect();
    // More files than ranks means that some ranks were recorded several times.
    let is_too_many =
        sizes.is_some_and(|sizes| sizes.iter().all(|size| traces.len() > *size as usize));
    let is_of_one_rank = |a: usize, b: usize| {
        let claimed = [a, b].map(|at| rank::content(&traces[at]));
        let claim_different = matches!(claimed, [Some(one), Some(other)] if one != other);
        let is_one_process = processes[a].is_some() && processes[a] == processes[b];
        let is_of_host = processes[a].as_ref().is_some_and(|process| process.host.is_some());
        // A process may run several ranks as threads. The contents of the files of such a process
        // claim different ranks.
        let is_certain = || is_of_host || have_same_rows(&traces[a], &traces[b]);
        if is_one_process && !claim_different && is_certain() {
            return true;
        }
        let is_one_claim = claims[a].is_some() && claims[a] == claims[b];
        is_one_claim && (is_one_process || is_too_many) && are_apart(&traces[a], &traces[b])
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in 0..traces.len() {
        let group =
            // A recording joins a group only if it belongs to the same rank as every member,
            // because the relation is not transitive.
            groups.iter_mut().find(|group| group.iter().all(|other| is_of_one_rank(*other, at)));
        match group {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// Returns the first start and the last end of a trace's rows in absolute nanoseconds.
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

/// Identifies the process of a trace. The host is in the header, or in the file name that PyTorch's
/// trace handler chooses, which has the form `host_pid.time.pt.trace.json`.
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

    /// A file's name, its claimed rank in a job of two, its process id, and its start in seconds.
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
        // A restarted job has other process ids, but the same ranks. Only the recordings of the
        // first run are kept.
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

    /// Creates traces with a rank in their content and a host name in the header.
    fn on_host(files: &[(&'static str, Option<u32>, usize)]) -> Vec<Trace> {
        let of_file = |(name, rank, rows): &(&'static str, Option<u32>, usize)| {
            let mut trace = trace((name, *rank, 7, 0));
            trace.header.rest.insert("host_name".to_owned(), "node-1".into());
            for at in 1..*rows as i64 {
                trace.push(&NewSlice::new("cpu_op", "op", (7, 1), (at, at + 1)));
            }
            trace
        };
        files.iter().map(of_file).collect()
    }

    fn kept(mut traces: Vec<Trace>) -> (Vec<String>, String) {
        keep_one_per_rank(&mut traces);
        let losses = traces.iter().flat_map(|trace| trace.losses.iter());
        let texts =
            losses.flat_map(|(_, counted)| counted.first.clone()).collect::<Vec<_>>().join("");
        (traces.iter().map(|trace| trace.origin.to_string()).collect(), texts)
    }

    #[test]
    fn recordings_of_one_host_and_process_are_not_two_ranks() {
        // The file names claim different ranks, but the contents claim the same rank or none.
        for rank in [None, Some(0)] {
            let files = [("rank-0.json", rank, 3), ("rank-1.json", rank, 5)];
            let (names, said) = kept(on_host(&files));
            assert_eq!(names, ["rank-1.json"], "{rank:?}");
            assert!(
                said.contains("rank-0.json: of the same process, process 7 on node-1"),
                "{said}"
            );
            assert!(said.contains("the one with fewer rows is left out"), "{said}");
        }
        // If ranks are threads of one process, each content claims its own rank, so both are kept.
        let files = [("a.json", Some(0), 3), ("b.json", Some(1), 3)];
        assert_eq!(kept(on_host(&files)).0, ["a.json", "b.json"]);
    }

    #[test]
    fn copied_file_is_not_another_rank() {
        let (names, said) = kept(on_host(&[("a.json", None, 4), ("a copy.json", None, 4)]));
        assert_eq!(names.len(), 1);
        assert!(said.contains("a copy of") && said.contains("left out"), "{said}");
        // Neither file has a host name, so equal rows show that one is a copy of the other.
        let files = [("a.json", None, 1, 0), ("b.json", None, 1, 0)];
        check(&files, &["a.json"]);
    }

    #[test]
    fn simultaneous_processes_are_different_ranks() {
        check(
            &[("h_7.1.json", None, 7, 0), ("h_8.1.json", None, 8, 0)],
            &["h_7.1.json", "h_8.1.json"],
        );
        // In containers, several processes may have the id 1, so equal ids do not mean one process.
        check(&[("a.json", None, 1, 0), ("b.json", None, 1, 5)], &["a.json", "b.json"]);
    }
}
