use super::{IdKind, Offsets, alone, merge};
use crate::store::{Job, NewSlice, Trace, TrackKey};

fn job(ids: &[u64]) -> Job {
    let rank = |(rank, id): (usize, &u64)| {
        let mut trace = Trace { rank: rank as u32, ..Trace::default() };
        let mut slice = NewSlice::new("cuda_runtime", "launch", (123, 9), (5, 6));
        slice.correlation = Some(*id);
        trace.push(&slice);
        trace.push(&NewSlice::new("overhead", "Buffer Flush", (-1, 0), (5, 6)));
        let mut kernel = NewSlice::new("kernel", "k", (1, 7), (7, 9));
        kernel.device = Some(1);
        trace.push(&kernel);
        trace
    };
    Job { traces: ids.iter().enumerate().map(rank).collect() }
}

#[test]
fn numbers_are_prefixed_with_the_rank() {
    let job = job(&[7, 41]);
    let merged = merge(&job, &Offsets::default());
    let part = &merged.parts[1];
    assert_eq!(part.pid(&TrackKey::Number(123)), TrackKey::Number(1123));
    assert_eq!(part.pid(&TrackKey::Number(-1)), TrackKey::Number(1999));
    assert_eq!(part.pid(&TrackKey::Text("Spans".into())), TrackKey::Text("rank 1 · Spans".into()));
    assert_eq!(part.id(IdKind::Correlation, 41), 141);
    assert_eq!(part.id(IdKind::Correlation, 0), 0);
    assert_eq!((part.device(1), part.device(-1)), (3, -1));
    let tracks: Vec<_> = (0..3).map(|track| part.is_device(track)).collect();
    assert_eq!(tracks, [false, false, true]);
}

#[test]
fn ids_too_large_for_a_prefix_are_counted() {
    let job = job(&[u64::MAX - 1, u64::MAX - 1]);
    let merged = merge(&job, &Offsets::default());
    let ids: Vec<_> =
        merged.parts.iter().map(|part| part.id(IdKind::Correlation, u64::MAX - 1)).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn one_trace_keeps_its_numbers_whatever_its_rank() {
    let mut job = job(&[7]);
    job.traces[0].rank = 5;
    for merged in [alone(&job.traces[0]), merge(&job, &Offsets::default())] {
        let part = &merged.parts[0];
        assert!(!part.is_one_of_several());
        assert_eq!(part.pid(&TrackKey::Number(-1)), TrackKey::Number(-1));
        assert_eq!(part.id(IdKind::Correlation, 7), 7);
    }
}

#[test]
fn offsets_are_subtracted() {
    let job = job(&[1, 2]);
    let merged = merge(&job, &Offsets { ahead_ns: [(1, 30)].into() });
    assert_eq!(merged.parts[0].time(100), 100);
    assert_eq!(merged.parts[1].time(100), 70);
}
