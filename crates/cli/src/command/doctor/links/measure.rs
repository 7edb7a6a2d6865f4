//! Runs a measurement on all ranks. Rank 0 broadcasts the next action and collects the times, and
//! the other ranks follow.

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

/// Elements of the memory copy with which collectives are compared. The copy of 64 MiB is larger
/// than every cache.
const COPIED: usize = (64 << 20) / size_of::<f32>();
/// Number of untimed exchanges before the timed ones.
const WARM_UP: u64 = 2;
/// Approximate duration in seconds of all exchanges of one sample.
const SAMPLE_SECONDS: f64 = 3e-3;
/// Largest number of exchanges in one sample.
const EXCHANGES_MAX: f64 = 3000.0;

/// A collective and a buffer size in bytes to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommPoint {
    pub verb: Verb,
    pub bytes: usize,
}

/// The next action of all ranks, which rank 0 broadcasts.
#[derive(Clone, Copy)]
enum BenchOrder {
    End,
    Copy,
    /// Index of the collective and size to measure, and the number of exchanges.
    Exchange(usize, u64),
}

impl BenchOrder {
    /// Encodes the order as two integers, which can be broadcast.
    fn to_words(self) -> Vec<i64> {
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
    /// Source and destination buffer of the memory copy.
    copy: (Vec<f32>, Vec<f32>),
}

impl<'a> Member<'a> {
    fn new(comm: Communicator, points: &'a [CommPoint]) -> Self {
        Self { comm, points, copy: (vec![1.0; COPIED], vec![0.0; COPIED]) }
    }

    /// Performs an action. Returns the seconds that one copy or exchange took on the slowest rank.
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
        // A training step waits for the slowest rank, so the longest time of all ranks counts.
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
            exchange.exchange(&mut self.comm)?;
        }
        // The barrier lets all ranks start together, so that the wait for a late rank is not timed.
        self.comm.barrier()?;
        let began = Instant::now();
        for _ in 0..times {
            exchange.exchange(&mut self.comm)?;
        }
        Ok(began.elapsed())
    }
}

/// Performs the actions that rank 0 broadcasts, until rank 0 ends the measurement.
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

/// All samples for one number of ranks, with the conditions of the machine during each sample.
pub struct CommSamples {
    /// Bandwidth of the memory copy in GB/s, one sample per turn.
    copies: Vec<BenchSample<f64>>,
    /// Seconds per exchange, with a list of samples for each collective and size.
    points: Vec<Vec<BenchSample<f64>>>,
    judge: Judge,
    pub interrupted: bool,
}

/// Seconds per exchange of one collective and size, over the accepted samples.
#[derive(Clone, Copy)]
pub struct Seconds {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Rank 0 of a measurement, which decides the next action of all ranks.
pub struct Lead<'a> {
    pub session: &'a Session,
    pub sampling: Sampling,
    pub stop: &'a AtomicBool,
}

impl Lead<'_> {
    /// Measures all collectives and sizes in turns, so that a slow phase of the machine affects all
    /// of them alike.
    pub fn measure(&self, comm: Communicator, points: &[CommPoint]) -> Result<CommSamples, Error> {
        let mut member = Member::new(comm, points);
        let samples = self.measure_turns(&mut member).map_err(train::Error::from)?;
        member
            .comm
            .broadcast(Rank(0), &mut BenchOrder::End.to_words())
            .map_err(train::Error::from)?;
        Ok(samples)
    }

    fn measure_turns(&self, member: &mut Member<'_>) -> Result<CommSamples, comm::Error> {
        let (pool, repeats) = (Pool::new(1), self.sampling.repeats);
        let mut samples = CommSamples {
            copies: Vec::new(),
            points: vec![Vec::new(); member.points.len()],
            judge: Judge::new(&self.sampling, std::iter::empty()),
            interrupted: false,
        };
        // Three exchanges of each point are timed, to estimate how many exchanges fill a sample.
        let mut times = Vec::new();
        for point in 0..member.points.len() {
            let seconds = self.order(member, BenchOrder::Exchange(point, 3))?;
            times.push((SAMPLE_SECONDS / seconds.max(1e-9)).clamp(1.0, EXCHANGES_MAX) as u64);
        }
        let (mut meter, mut done) =
            (Meter::start(self.session.console, "measuring", ProgressUnit::Steps, None), 0);
        for turn in 0..PATIENCE * repeats {
            if turn >= repeats && samples.is_trusted() {
                break;
            }
            meter.set_total(Some(times.len() as u64 * (turn + 1).max(repeats)));
            let watch = Watch::start_crowded(&pool);
            let seconds = self.order(member, BenchOrder::Copy)?;
            let copied = (COPIED * size_of::<f32>()) as f64;
            samples.copies.push(watch.sample(&pool, |_| copied / 1e9 / seconds));
            for (point, &times) in times.iter().enumerate() {
                // The first turn always completes, so that every point has at least one sample.
                if self.stop.load(Ordering::SeqCst) && turn > 0 {
                    samples.interrupted = true;
                    return Ok(samples.judged(&self.sampling));
                }
                let watch = Watch::start_crowded(&pool);
                let seconds = self.order(member, BenchOrder::Exchange(point, times))?;
                samples.points[point].push(watch.sample(&pool, |_| seconds));
                done += 1;
                meter.advance(done, "");
            }
            samples = samples.judged(&self.sampling);
        }
        meter.finish();
        Ok(samples)
    }

    fn order(&self, member: &mut Member<'_>, order: BenchOrder) -> Result<f64, comm::Error> {
        member.comm.broadcast(Rank(0), &mut order.to_words())?;
        member.carry_out(order)
    }
}

impl CommSamples {
    /// Decides again which samples are accepted, because new samples change what counts as
    /// undisturbed.
    fn judged(mut self, sampling: &Sampling) -> Self {
        let all = self.points.iter().flatten().chain(&self.copies);
        self.judge = Judge::new(sampling, all.map(|sample| &sample.conditions));
        self
    }

    fn is_trusted(&self) -> bool {
        let kinds = self.points.iter().chain([&self.copies]);
        kinds.into_iter().all(|samples| self.judge.kept(samples).is_trusted)
    }

    /// Computes the seconds per exchange of a collective and size, over the accepted samples.
    pub fn seconds(&self, point: usize) -> Seconds {
        let spread = self.judge.kept(&self.points[point]).spread(|seconds| *seconds);
        Seconds { median: spread.median, min: spread.min, max: spread.max }
    }

    /// The bandwidth at which each rank copies memory while all ranks copy.
    pub fn copy_gb_per_s(&self) -> f64 {
        self.judge.kept(&self.copies).median(|rate| *rate)
    }

    /// Summarizes the conditions of the measurement: clock frequency, load by other programs,
    /// rejected samples.
    pub fn quality(&self) -> Quality {
        let kept: Vec<_> = self.points.iter().map(|samples| self.judge.kept(samples)).collect();
        self.judge.quality(
            self.points.iter().flatten().map(|sample| &sample.conditions),
            kept.iter().flat_map(Kept::conditions),
            self.is_trusted(),
        )
    }
}
