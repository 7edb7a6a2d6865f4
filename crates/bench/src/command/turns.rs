//! Single operations called again and again, in turns with the limits they are compared with.

use std::sync::atomic::{AtomicBool, Ordering};

use device::Cpu;
use schema::{Op, OpWork};

use super::limit::{LimitBench, MeasuredLimits};
use super::operation::{per_second, percent};
use bench::sample::{BenchSample, Judge, Kept, PATIENCE, Quality, Sampling, Watch};
use setup::Session;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};

/// What one call took and did.
#[derive(Clone, Copy, Debug)]
pub struct TimedCall {
    pub seconds: f64,
    pub work: OpWork,
}

/// How often each case is called.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub cases: usize,
    /// Calls of each in a turn.
    pub calls: u64,
    /// Turns, and which samples count.
    pub sampling: Sampling,
}

/// Everything that was taken.
pub struct Turns<'a> {
    /// The calls of each case.
    cases: Vec<Vec<BenchSample<TimedCall>>>,
    limits: &'a mut LimitBench,
    judge: Judge,
    /// Whether Ctrl-C ended it early.
    pub interrupted: bool,
}

/// Calls `case` with each number below `schedule.cases`, once unmeasured, then in turns with
/// `limits`; `case` says what it did.
pub fn take<'a>(
    (cpu, limits): (&Cpu, &'a mut LimitBench),
    schedule: &Schedule,
    (session, stop): (&Session, &AtomicBool),
    case: &mut dyn FnMut(&Cpu, usize) -> Result<Op, Error>,
) -> Result<Turns<'a>, Error> {
    let Schedule { cases, calls, sampling } = *schedule;
    let mut turns = Turns {
        cases: (0..cases).map(|_| Vec::new()).collect(),
        limits,
        judge: Judge::new(&sampling, std::iter::empty()),
        interrupted: false,
    };
    let per_turn = calls * cases as u64;
    let mut meter = Meter::start(session.console, "measuring", ProgressUnit::Steps, None);
    for number in 0..cases {
        case(cpu, number)?;
    }
    for turn in 0..PATIENCE * sampling.repeats {
        if turn >= sampling.repeats && turns.is_enough(schedule) {
            break;
        }
        meter.set_total(Some(per_turn * (turn + 1).max(sampling.repeats)));
        turns.limits.measure(cpu);
        for call in 0..per_turn {
            // At least one of each, so that there is something to report.
            if stop.load(Ordering::SeqCst) && (turn > 0 || call >= cases as u64) {
                turns.interrupted = true;
                turns.judge(&sampling);
                return Ok(turns);
            }
            let number = (call % cases as u64) as usize;
            let watch = Watch::start(&cpu.pool);
            let op = case(cpu, number)?;
            let taken = watch.sample(&cpu.pool, |seconds| TimedCall { seconds, work: op.work() });
            turns.cases[number].push(taken);
            meter.advance(turn * per_turn + call + 1, "");
        }
        turns.limits.measure(cpu);
        turns.judge(&sampling);
    }
    meter.finish();
    Ok(turns)
}

impl Turns<'_> {
    fn judge(&mut self, sampling: &Sampling) {
        let calls = self.cases.iter().flatten().map(|sample| &sample.conditions);
        self.judge = Judge::new(sampling, calls.chain(self.limits.conditions()));
    }

    /// Whether at least half of the calls asked for count, and some of the limits.
    fn is_enough(&self, schedule: &Schedule) -> bool {
        let wanted = schedule.calls * schedule.sampling.repeats;
        let good = |calls: &Vec<BenchSample<TimedCall>>| {
            calls.iter().filter(|call| self.judge.accepts(&call.conditions)).count() as u64
        };
        self.limits.are_trusted(&self.judge)
            && self.cases.iter().all(|calls| 2 * good(calls) >= wanted)
    }

    /// The calls of case `number` that count.
    pub fn case(&self, number: usize) -> CallMedians<'_> {
        CallMedians { kept: self.judge.kept(&self.cases[number]) }
    }

    /// Medians of the limits that were measured beside the calls.
    pub fn limits(&self) -> MeasuredLimits {
        self.limits.medians(&self.judge)
    }

    /// How well all of it could be taken.
    pub fn quality(&self) -> Quality {
        let kept: Vec<_> = self.cases.iter().map(|calls| self.judge.kept(calls)).collect();
        let is_trusted = kept.iter().all(|kept| kept.is_trusted);
        self.judge.quality(
            self.cases.iter().flatten().map(|sample| &sample.conditions),
            kept.iter().flat_map(Kept::conditions),
            is_trusted && self.limits.are_trusted(&self.judge),
        )
    }
}

/// Medians of the calls of one case.
pub struct CallMedians<'a> {
    kept: Kept<'a, TimedCall>,
}

impl CallMedians<'_> {
    /// Median duration of a call in milliseconds.
    pub fn ms(&self) -> f64 {
        self.kept.median(|call| 1e3 * call.seconds)
    }

    /// Arithmetic of the median call per second of the median duration, in Gflop/s.
    pub fn gflop_per_s(&self) -> f64 {
        per_second(self.kept.median(|call| call.work.flops as f64 / 1e9), self.ms())
    }

    /// Memory traffic of the median call per second of the median duration, in GB/s.
    pub fn gb_per_s(&self) -> f64 {
        per_second(self.kept.median(|call| call.work.bytes as f64 / 1e9), self.ms())
    }

    /// Time at the limits ÷ time taken, in hundredths.
    pub fn pct_of_roofline(&self, peak_gflop_per_s: f64, limit_gb_per_s: f64) -> f64 {
        let arithmetic = percent(self.gflop_per_s(), peak_gflop_per_s);
        arithmetic.max(percent(self.gb_per_s(), limit_gb_per_s))
    }
}
