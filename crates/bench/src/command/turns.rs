//! Measures single operations in turns with the limits with which they are compared.

use std::sync::atomic::{AtomicBool, Ordering};

use device::Cpu;
use schema::{Op, OpWork};

use super::limit::{LimitBench, MeasuredLimits};
use super::operation::{per_second, percent};
use bench::sample::{BenchSample, Judge, Kept, PATIENCE, Quality, Sampling, Watch};
use setup::Session;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};

/// Duration and work of one call.
#[derive(Clone, Copy, Debug)]
pub struct TimedCall {
    pub seconds: f64,
    pub work: OpWork,
}

/// Number of cases, number of calls of each case, and sampling options of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub cases: usize,
    /// Number of calls of each case per turn.
    pub calls: u64,
    /// Number of turns, and the conditions under which a sample is accepted.
    pub sampling: Sampling,
}

/// All samples of a measurement, with the limits that were measured in turns with them.
pub struct Turns<'a> {
    /// Samples of the calls, one list for each case.
    cases: Vec<Vec<BenchSample<TimedCall>>>,
    limits: &'a mut LimitBench,
    judge: Judge,
    /// Whether Ctrl-C ended the measurement early.
    pub interrupted: bool,
}

/// Measures all cases in turns with `limits`. `case` runs the case with the given number, which is
/// below `schedule.cases`, and returns the work that it did. The first call of each case is not
/// measured.
pub fn measure_in_turns<'a>(
    cpu: &Cpu,
    limits: &'a mut LimitBench,
    schedule: &Schedule,
    session: &Session,
    stop: &AtomicBool,
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
        // The first call is not measured, because it touches new memory and fills the caches.
        case(cpu, number)?;
    }
    for turn in 0..PATIENCE * sampling.repeats {
        if turn >= sampling.repeats && turns.is_enough(schedule) {
            break;
        }
        meter.set_total(Some(per_turn * (turn + 1).max(sampling.repeats)));
        turns.limits.measure(cpu);
        for call in 0..per_turn {
            // At least one sample of each case is taken, so that there is something to report.
            if stop.load(Ordering::SeqCst) && (turn > 0 || call >= cases as u64) {
                turns.interrupted = true;
                turns.judge(&sampling);
                return Ok(turns);
            }
            let number = (call % cases as u64) as usize;
            let watch = Watch::start(&cpu.pool);
            let op = case(cpu, number)?;
            let call_sample =
                watch.sample(&cpu.pool, |seconds| TimedCall { seconds, work: op.work() });
            turns.cases[number].push(call_sample);
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

    /// Returns whether at least half of the requested calls are accepted, and enough samples of the
    /// limits.
    fn is_enough(&self, schedule: &Schedule) -> bool {
        let wanted = schedule.calls * schedule.sampling.repeats;
        let good = |calls: &Vec<BenchSample<TimedCall>>| {
            calls.iter().filter(|call| self.judge.accepts(&call.conditions)).count() as u64
        };
        self.limits.are_trusted(&self.judge)
            && self.cases.iter().all(|calls| 2 * good(calls) >= wanted)
    }

    /// Returns the medians of the accepted calls of a case.
    pub fn case(&self, number: usize) -> CallMedians<'_> {
        CallMedians { kept: self.judge.kept(&self.cases[number]) }
    }

    /// Returns the medians of the limits that were measured in turns with the calls.
    pub fn limits(&self) -> MeasuredLimits {
        self.limits.medians(&self.judge)
    }

    /// Returns the number of disturbed samples, and how strongly they were disturbed.
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

/// Medians over the accepted calls of one case.
pub struct CallMedians<'a> {
    kept: Kept<'a, TimedCall>,
}

impl CallMedians<'_> {
    /// Returns the median duration of a call in milliseconds.
    pub fn ms(&self) -> f64 {
        self.kept.median(|call| 1e3 * call.seconds)
    }

    /// Returns the FLOPs of the median call divided by the median duration, in GFLOP/s.
    pub fn gflop_per_s(&self) -> f64 {
        per_second(self.kept.median(|call| call.work.flops as f64 / 1e9), self.ms())
    }

    /// Returns the memory traffic of the median call divided by the median duration, in GB/s.
    pub fn gb_per_s(&self) -> f64 {
        per_second(self.kept.median(|call| call.work.bytes as f64 / 1e9), self.ms())
    }

    /// Returns the time at the limits divided by the measured time, in percent.
    pub fn pct_of_roofline(&self, peak_gflop_per_s: f64, limit_gb_per_s: f64) -> f64 {
        let arithmetic = percent(self.gflop_per_s(), peak_gflop_per_s);
        arithmetic.max(percent(self.gb_per_s(), limit_gb_per_s))
    }
}
