//! The ranks of a measurement: rank 0 says what all do next, and takes the times.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use comm::{Communicator, Verb};
use device::Pool;
use schema::Rank;

use super::exchange::BenchExchange;
use bench::sample::{BenchSample, Judge, Kept, PATIENCE, Quality, Sampling, Watch};
use setup::Session;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};

/// Elements that are copied for the limit: beyond every cache.
const COPIED: usize = (64 << 20) / size_of::<f32>();
/// Exchanges before those that are timed.
const WARM_UP: u64 = 2;
/// How long the timed exchanges of a sample take together, about, and how many they are at most.
const SAMPLE_SECONDS: f64 = 3e-3;
const EXCHANGES_MAX: f64 = 3000.0;

/// One collective of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommPoint {
    pub verb: Verb,
    pub bytes: usize,
}

/// What all ranks do next.
#[derive(Clone, Copy)]
enum BenchOrder {
    End,
    Copy,
    /// So many exchanges of the point of this number.
    Exchange(usize, u64),
}

impl BenchOrder {
    fn words(self) -> Vec<i64> {
        match self {
            Self::End => vec![0, 0],
            Self::Copy => vec![1, 0],
            Self::Exchange(point, times) => vec![2 + point as i64, times as i64],
        }
    }

    fn from_words(words: &[i64]) -> Self {
        match words {
            [1, _] => Self::Copy,
            [point, times] if *point > 1 => Self::Exchange(*point as usize - 2, *times as u64),
            _ => Self::End,
        }
    }
}

/// A rank that takes part in the measured collectives.
struct Member<'a> {
    comm: Communicator,
    points: &'a [CommPoint],
    copy: (Vec<f32>, Vec<f32>),
}

impl<'a> Member<'a> {
    fn new(comm: Communicator, points: &'a [CommPoint]) -> Self {
        Self { comm, points, copy: (vec![1.0; COPIED], vec![0.0; COPIED]) }
    }

    /// Seconds of the slowest rank, of one copy or exchange.
    fn carry_out(&mut self, order: BenchOrder) -> Result<f64, comm::Error> {
        let (times, took) = match order {
            BenchOrder::Exchange(point, times) => {
                (times, self.exchange(self.points[point], times)?)
            }
            BenchOrder::Copy | BenchOrder::End => {
                let (from, to) = &mut self.copy;
                self.comm.barrier()?;
                let began = Instant::now();
                to.copy_from_slice(from);
                black_box(to);
                (1, began.elapsed())
            }
        };
        let all = self.comm.all_gather(&[took.as_nanos() as i64])?;
        let slowest = all.iter().flatten().max().copied().unwrap_or_default();
        Ok(slowest as f64 / 1e9 / times.max(1) as f64)
    }

    fn exchange(
        &mut self,
        CommPoint { verb, bytes }: CommPoint,
        times: u64,
    ) -> Result<std::time::Duration, comm::Error> {
        let mut exchange = BenchExchange::new(verb, bytes, &self.comm);
        for _ in 0..WARM_UP {
            exchange.run(&mut self.comm)?;
        }
        self.comm.barrier()?;
        let began = Instant::now();
        for _ in 0..times {
            exchange.run(&mut self.comm)?;
        }
        Ok(began.elapsed())
    }
}

/// Does what rank 0 says until it has enough.
pub fn follow(comm: Communicator, points: &[CommPoint]) -> Result<(), comm::Error> {
    let (mut member, mut words) = (Member::new(comm, points), Vec::new());
    loop {
        member.comm.broadcast(Rank(0), &mut words)?;
        match BenchOrder::from_words(&words) {
            BenchOrder::End => return Ok(()),
            order => drop(member.carry_out(order)?),
        }
    }
}

/// Everything that was taken.
pub struct CommSamples {
    /// GB/s of a rank's copy.
    copies: Vec<BenchSample<f64>>,
    /// Seconds of each point.
    points: Vec<Vec<BenchSample<f64>>>,
    judge: Judge,
    pub interrupted: bool,
}

/// Seconds of a point.
#[derive(Clone, Copy)]
pub struct Seconds {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Rank 0: it orders what all ranks do next, and takes the times.
pub struct Lead<'a> {
    pub session: &'a Session,
    pub sampling: Sampling,
    pub stop: &'a AtomicBool,
}

impl Lead<'_> {
    /// Takes all samples, in turns.
    pub fn take(&self, comm: Communicator, points: &[CommPoint]) -> Result<CommSamples, Error> {
        let mut member = Member::new(comm, points);
        let taken = self.turns(&mut member).map_err(train::Error::from)?;
        member.comm.broadcast(Rank(0), &mut BenchOrder::End.words()).map_err(train::Error::from)?;
        Ok(taken)
    }

    fn turns(&self, member: &mut Member<'_>) -> Result<CommSamples, comm::Error> {
        let (pool, repeats) = (Pool::new(1), self.sampling.repeats);
        let mut taken = CommSamples {
            copies: Vec::new(),
            points: vec![Vec::new(); member.points.len()],
            judge: Judge::new(&self.sampling, std::iter::empty()),
            interrupted: false,
        };
        let mut times = Vec::new();
        for point in 0..member.points.len() {
            let seconds = self.ordered(member, BenchOrder::Exchange(point, 3))?;
            times.push((SAMPLE_SECONDS / seconds.max(1e-9)).clamp(1.0, EXCHANGES_MAX) as u64);
        }
        let (mut meter, mut done) =
            (Meter::start(self.session.console, "measuring", ProgressUnit::Steps, None), 0);
        for turn in 0..PATIENCE * repeats {
            if turn >= repeats && taken.is_trusted() {
                break;
            }
            meter.set_total(Some(times.len() as u64 * (turn + 1).max(repeats)));
            let watch = Watch::start_crowded(&pool);
            let seconds = self.ordered(member, BenchOrder::Copy)?;
            let copied = (COPIED * size_of::<f32>()) as f64;
            taken.copies.push(watch.sample(&pool, |_| copied / 1e9 / seconds));
            for (point, &times) in times.iter().enumerate() {
                if self.stop.load(Ordering::SeqCst) && turn > 0 {
                    taken.interrupted = true;
                    return Ok(taken.judged(&self.sampling));
                }
                let watch = Watch::start_crowded(&pool);
                let seconds = self.ordered(member, BenchOrder::Exchange(point, times))?;
                taken.points[point].push(watch.sample(&pool, |_| seconds));
                done += 1;
                meter.advance(done, "");
            }
            taken = taken.judged(&self.sampling);
        }
        meter.finish();
        Ok(taken)
    }

    fn ordered(&self, member: &mut Member<'_>, order: BenchOrder) -> Result<f64, comm::Error> {
        member.comm.broadcast(Rank(0), &mut order.words())?;
        member.carry_out(order)
    }
}

impl CommSamples {
    fn judged(mut self, sampling: &Sampling) -> Self {
        let all = self.points.iter().flatten().chain(&self.copies);
        self.judge = Judge::new(sampling, all.map(|sample| &sample.conditions));
        self
    }

    fn is_trusted(&self) -> bool {
        let kinds = self.points.iter().chain([&self.copies]);
        kinds.into_iter().all(|samples| self.judge.kept(samples).is_trusted)
    }

    /// Seconds per exchange of point `point`, over the samples that count.
    pub fn seconds(&self, point: usize) -> Seconds {
        let spread = self.judge.kept(&self.points[point]).spread(|seconds| *seconds);
        Seconds { median: spread.median, min: spread.min, max: spread.max }
    }

    /// What a rank copies while all do.
    pub fn copy_gb_per_s(&self) -> f64 {
        self.judge.kept(&self.copies).median(|rate| *rate)
    }

    /// How well all of it could be taken.
    pub fn quality(&self) -> Quality {
        let kept: Vec<_> = self.points.iter().map(|samples| self.judge.kept(samples)).collect();
        self.judge.quality(
            self.points.iter().flatten().map(|sample| &sample.conditions),
            kept.iter().flat_map(Kept::conditions),
            self.is_trusted(),
        )
    }
}
