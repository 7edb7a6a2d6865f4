//! Collects samples from recorded steps by classifying each duration.

use std::collections::BTreeMap;

use trace::store::StringId;

use super::{Calibration, EventCount, Key, Waiting, mean, operator_calls};
use crate::cost::operation_name;
use crate::program::{Action, Overhead, Program, Rank, Returns, Segment, WorkKind};
use crate::recording::{RankTimes, Step};

/// Adds the samples of some ranks of a step. A collective's transfer time is added only if all of
/// its ranks are given. The transfer time is the duration of the shortest kernel, because the last
/// rank to arrive does not wait.
pub fn add(calibration: &mut Calibration, step: &Step, ranks: &[usize]) {
    let program = &step.program;
    for at in ranks {
        let (rank, recorded) = (&program.ranks[*at], &step.recorded.ranks[*at]);
        let number = calibration.step_count();
        match calibration.recordings.last_mut() {
            Some(steps) => *steps += 1,
            None => calibration.recordings.push(1),
        }
        host(calibration, program, rank, recorded);
        works(calibration, number, program, rank, recorded);
        waits(calibration, program, rank, recorded);
    }
    operator_calls::collect(&mut calibration.launches, step, ranks);
    for collective in &program.collectives {
        if !collective.parts.iter().all(|(rank, _)| ranks.contains(rank)) {
            continue;
        }
        let length = |&(rank, work): &(usize, u32)| {
            let (from, to) = step.recorded.ranks[rank].works[work as usize];
            to - from
        };
        if let Some(shortest) = collective.parts.iter().map(length).min() {
            let key = (operation_name(collective.operation), collective.bytes);
            calibration.transfers.entry(key).or_default().push(shortest);
        }
    }
}

/// Adds factors that say how much slower hosts and devices were in each step than the mean of the
/// calibration.
pub fn add_factors(calibration: &mut Calibration, steps: &[Step], ranks: &[usize]) {
    let usual = Usual {
        event_ns: calibration.event_ns,
        overheads: calibration
            .overheads
            .iter()
            .filter_map(|(key, samples)| Some((key, mean(samples)?)))
            .collect(),
        works: calibration
            .works
            .iter()
            .filter_map(|(key, samples)| Some((key, samples.centre(&calibration.recordings)?)))
            .collect(),
    };
    let (mut hosts, mut works) = (Vec::new(), Vec::new());
    for step in steps {
        hosts.extend(ranks.iter().filter_map(|at| host_factor(&usual, step, *at)));
        works.extend(ranks.iter().filter_map(|at| work_factor(&usual, step, *at)));
    }
    calibration.factors.extend(hosts);
    calibration.work_factors.extend(works);
}

/// Mean host times and median device times of a calibration, with which single steps are compared.
struct Usual<'a> {
    event_ns: f64,
    overheads: BTreeMap<&'a Key<Overhead>, f64>,
    works: BTreeMap<&'a Key<WorkKind>, f64>,
}

fn host_factor(usual: &Usual<'_>, step: &Step, rank: usize) -> Option<f64> {
    let (of, recorded) = (&step.program.ranks[rank], &step.recorded.ranks[rank]);
    let mut means: BTreeMap<Segment, Option<f64>> = BTreeMap::new();
    let mut mean = |segment| {
        let find = || usual.overheads.get(&Key::from_segment(&step.program, segment)).copied();
        *means.entry(segment).or_insert_with(find)
    };
    ratio(
        segments(of, recorded, usual.event_ns)
            .filter_map(|sample| Some((sample.ns, mean(sample.segment)?))),
    )
}

fn work_factor(usual: &Usual<'_>, step: &Step, rank: usize) -> Option<f64> {
    let works = step.program.ranks[rank].works.iter().zip(&step.recorded.ranks[rank].works);
    ratio(works.filter(|(work, _)| work.collective.is_none()).filter_map(|(work, (from, to))| {
        Some((to - from, *usual.works.get(&Key::from_part(&step.program, work.as_part()))?))
    }))
}

/// Returns the measured time divided by the usual time, each summed over all pairs.
fn ratio(pairs: impl Iterator<Item = (i64, f64)>) -> Option<f64> {
    let (own, usual) =
        pairs.fold((0.0, 0.0), |(own, usual), (ns, mean)| (own + ns as f64, usual + mean));
    (usual > 0.0).then_some(own / usual)
}

/// The duration of a host segment, and the number of events that began during it.
struct HostSample {
    segment: Segment,
    ns: i64,
    events: u32,
}

/// Iterates over the host segments of a rank and their durations. `event_ns` of profiler overhead
/// is subtracted for each event in a segment.
fn segments<'a>(
    rank: &'a Rank,
    recorded: &'a RankTimes,
    event_ns: f64,
) -> impl Iterator<Item = HostSample> + 'a {
    let threads = rank.threads.iter().zip(&recorded.actions).enumerate();
    threads.flat_map(move |(place, (thread, times))| {
        let numbered = thread.actions.iter().zip(times).enumerate();
        numbered.filter_map(move |(at, (action, time))| {
            let segment = match action {
                Action::Host(segment) => *segment,
                Action::Call(call) if call.returns == Returns::AtOnce => call.cost,
                _ => return None,
            };
            let ns = recorded.own_ns(action, *time);
            let events = recorded.events_in(place, at);
            let paid = (event_ns * f64::from(events)).round() as i64;
            // The profiler recorded events during the action. An action shorter than its profiler
            // overhead counts as 0 ns.
            Some(HostSample { segment, ns: if paid > 0 { (ns - paid).max(0) } else { ns }, events })
        })
    })
}

fn host(calibration: &mut Calibration, program: &Program, rank: &Rank, recorded: &RankTimes) {
    let mut samples: BTreeMap<Segment, Vec<i64>> = BTreeMap::new();
    let mut counts: BTreeMap<(Overhead, StringId), EventCount> = BTreeMap::new();
    for HostSample { segment, ns, events } in segments(rank, recorded, calibration.event_ns) {
        samples.entry(segment).or_default().push(ns);
        let count = counts.entry((segment.overhead, segment.op)).or_default();
        count.samples += 1;
        count.events += u64::from(events);
    }
    for ((class, name), count) in counts {
        let known = calibration.events.entry((class, program.text(name).to_owned())).or_default();
        known.samples += count.samples;
        known.events += count.events;
    }
    for (segment, ns) in samples {
        calibration.overheads.entry(Key::from_segment(program, segment)).or_default().extend(ns);
    }
}

fn works(
    calibration: &mut Calibration,
    number: u32,
    program: &Program,
    rank: &Rank,
    recorded: &RankTimes,
) {
    let mut samples: BTreeMap<(WorkKind, StringId, StringId), Vec<i64>> = BTreeMap::new();
    for (work, (from, to)) in rank.works.iter().zip(&recorded.works) {
        if work.collective.is_none() {
            let kind_of_work = (work.kind, work.name, work.detail);
            samples.entry(kind_of_work).or_default().push(to - from);
        }
    }
    for ((class, name, detail), all) in samples {
        let name = program.text(name).to_owned();
        let key = Key { class, name, detail: program.text(detail).to_owned() };
        let known = calibration.works.entry(key).or_default();
        all.into_iter().for_each(|ns| known.push(number, ns));
    }
}

fn waits(calibration: &mut Calibration, program: &Program, rank: &Rank, recorded: &RankTimes) {
    let mut found: BTreeMap<Waiting, Vec<i64>> = BTreeMap::new();
    let mut add = |waiting, ns: i64| found.entry(waiting).or_default().push(ns);
    let end = |work: &u32| recorded.works[*work as usize].1;
    let mut called: Vec<Option<i64>> = vec![None; rank.works.len()];
    for (thread, times) in rank.threads.iter().zip(&recorded.actions) {
        for (action, (from, to)) in thread.actions.iter().zip(times) {
            match action {
                Action::Await { wakes: Some(name), .. } => {
                    add(Waiting::HandOver(program.text(*name).to_owned()), to - from);
                }
                Action::Call(call) => {
                    let begun = recorded.begun_ns(action, (*from, *to));
                    call.launches.iter().for_each(|work| called[*work as usize] = Some(begun));
                    let ended = call.awaits.iter().map(end).max().unwrap_or(*from);
                    match call.returns {
                        Returns::AfterAwaited if ended <= *to => {
                            add(Waiting::SyncReturn, to - ended.max(*from));
                        }
                        Returns::AfterCopy if ended <= *to => {
                            add(Waiting::CopyReturn, to - ended);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
    for (at, called) in called.iter().enumerate() {
        let Some(called) = called else { continue };
        if let Some((waiting, ns)) = start(rank, recorded, at, *called) {
            add(waiting, ns);
        }
    }
    for (waiting, mut samples) in found {
        calibration.waits.entry(waiting).or_default().append(&mut samples);
    }
}

/// Classifies the delay before device work starts. The delay is a launch latency if nothing was
/// pending at the call, and otherwise a wait for the work that ended last before it.
fn start(rank: &Rank, recorded: &RankTimes, at: usize, called: i64) -> Option<(Waiting, i64)> {
    let work = &rank.works[at];
    let started = recorded.works[at].0;
    let end = |work: u32| recorded.works[work as usize].1;
    let queued = work.behind.map_or(i64::MIN, end);
    let awaited = work.after.iter().map(|work| end(*work)).max().unwrap_or(i64::MIN);
    let ready = queued.max(awaited);
    let launch = match work.kind {
        WorkKind::Kernel => Waiting::Launch,
        WorkKind::Copy | WorkKind::Set => Waiting::CopyLaunch,
    };
    // Within 20 µs of the call, the delay may be a launch or a wait, so the sample is dropped.
    const SOON_NS: i64 = 20_000;
    match ready {
        _ if ready <= called => Some((launch, started - called)),
        _ if ready < called + SOON_NS || ready > started => None,
        _ if queued >= awaited => Some((Waiting::QueueGap, started - queued)),
        _ => Some((Waiting::EventWait, started - awaited)),
    }
}
