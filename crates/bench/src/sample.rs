//! Measures times together with their conditions: the apparent clock of the cores, and the share of
//! time in which other programs used the cores. This module also decides which samples are
//! accepted.

use std::process::ExitCode;
use std::time::Instant;

use analyze::distribution;
use clap::Args;
use device::{Pool, limits};
use serde::{Deserialize, Serialize};
use setup::Session;
use setup::error::{EXIT_INTERRUPTED, Error};

/// Message that is printed at the first Ctrl-C during a measurement.
pub const STOPPING: &str = "finishing the sample, then reporting the results so far";

/// Returns which of `count` candidates takes a turn of a round. The order changes from round to
/// round, so that slow changes of the machine concern all candidates alike.
#[must_use]
pub fn place_in_round(round: usize, turn: usize, count: usize) -> usize {
    let forward = (round / 2 + turn) % count;
    if round.is_multiple_of(2) { forward } else { count - 1 - forward }
}

/// Maximum number of turns as a multiple of the requested number, in case most samples are
/// disturbed.
pub const PATIENCE: u64 = 3;

/// Number of undisturbed samples that a kind of sample needs to be trusted. If fewer were taken,
/// all of them must be undisturbed.
const FEWEST: usize = 3;

/// The number of samples, and the conditions under which they are accepted.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Samples")]
pub struct Sampling {
    /// Rounds of samples and limits; up to three times as many if most samples are disturbed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
    /// Reject samples whose apparent clock is below this share of the run's best
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub clock_share_min: f64,
    /// Also reject samples whose apparent clock is below this many GHz, for runs that are throttled
    /// from beginning to end
    #[arg(long, value_name = "GHZ", value_parser = clock_ghz)]
    pub clock_ghz_min: Option<f64>,
    /// Reject samples in which our threads waited for a core longer than this share of the time
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub foreign_cpu_max: f64,
}

/// The conditions under which a value was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The lower one of two clock rates, measured just before and just after the sample.
    pub apparent_clock_ghz: f64,
    /// Share of time in which rowmill's threads waited for a core, or `None` if the system does not
    /// report it.
    pub foreign_cpu: Option<f64>,
}

/// A measured value with the conditions under which it was measured.
#[derive(Clone, Copy, Debug)]
pub struct BenchSample<T> {
    pub value: T,
    pub conditions: Conditions,
}

/// A sample that is being measured.
pub struct Watch {
    clock_ghz: f64,
    waited_ns: Option<u64>,
    /// Time for which other programs had used the cores when the sample started. The time is `None`
    /// unless the sample is crowded.
    others_ns: Option<u64>,
    started: Instant,
}

impl Watch {
    /// Starts a sample on the threads of `pool`.
    pub fn start(pool: &Pool) -> Self {
        let clock_ghz = limits::apparent_ghz(pool);
        Self { clock_ghz, waited_ns: waited_ns(), others_ns: None, started: Instant::now() }
    }

    /// Starts a sample of work on more threads than there are cores.
    ///
    /// Such threads also wait for each other, so their waits count only up to the time in which
    /// other programs used the cores. The kernel counts that time in hundredths of a second, which
    /// is too coarse for a short sample.
    pub fn start_crowded(pool: &Pool) -> Self {
        let others_ns = others_ns();
        Self { others_ns, ..Self::start(pool) }
    }

    /// Ends the sample and returns its duration in seconds and its conditions.
    pub fn stop(self, pool: &Pool) -> (f64, Conditions) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let waited =
            waited_ns().zip(self.waited_ns).map(|(after, before)| after - before.min(after));
        let share = |ns: u64| (ns as f64 / 1e9 / seconds / pool.threads() as f64).min(1.0);
        let others = self.others_ns.and_then(|before| Some(others_ns()?.saturating_sub(before)));
        let foreign = |waited| share(others.map_or(waited, |others| others.min(waited)));
        let apparent_clock_ghz = limits::apparent_ghz(pool).min(self.clock_ghz);
        (seconds, Conditions { apparent_clock_ghz, foreign_cpu: waited.map(foreign) })
    }

    /// Ends the sample. `value` computes the measured value from the duration in seconds.
    pub fn sample<T>(self, pool: &Pool, value: impl FnOnce(f64) -> T) -> BenchSample<T> {
        let (seconds, conditions) = self.stop(pool);
        BenchSample { value: value(seconds), conditions }
    }
}

/// Returns the time in which threads of this process were runnable without a core, if the kernel
/// reports it.
fn waited_ns() -> Option<u64> {
    let thread_waited_ns = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        // The second field of `schedstat` is the time on a run queue in nanoseconds.
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    // A thread that ends while the list is read is not counted.
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    threads
        .flatten()
        .map(|thread| thread_waited_ns(thread.path()))
        // The sum is `None` only if no thread could be read. A thread that ends must not discard
        // the times of the other threads.
        .fold(None, |sum, waited| Some(sum.unwrap_or(0) + waited?).or(sum))
}

/// Returns the time in which other processes, or the host of a virtual machine, used the cores of
/// this machine, if the kernel reports it.
fn others_ns() -> Option<u64> {
    // Linux reports these times in ticks of 1/100 s (USER_HZ), whatever its timer frequency is.
    const TICK_NS: u64 = 10_000_000;
    let all = std::fs::read_to_string("/proc/stat").ok()?;
    let own = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some(busy_ticks(&all)?.saturating_sub(own_ticks(&own)?) * TICK_NS)
}

/// Parses the time in which all cores were busy from the text of `/proc/stat`.
fn busy_ticks(text: &str) -> Option<u64> {
    let cores = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = cores.split_whitespace().map_while(|text| text.parse().ok()).collect();
    // The fields are user, nice, system, idle, waiting for a disk, two kinds of interrupts, and
    // time taken by the host.
    let [user, nice, system, _, _, hard, soft, steal, ..] = ticks[..] else { return None };
    Some(user + nice + system + hard + soft + steal)
}

/// Parses the CPU time of a process from the text of its `stat`.
fn own_ticks(text: &str) -> Option<u64> {
    // The program's name before the parenthesis may contain any characters, including spaces.
    let (_, fields) = text.rsplit_once(')')?;
    // `utime` and `stime` are fields 14 and 15 of `stat`, that is, 12 and 13 after the name.
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Decides which samples are accepted. An accepted sample has nearly the best clock of the run, at
/// least the requested clock, and the cores to itself.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    clock_ghz_min: f64,
    foreign_cpu_max: f64,
    clock_ghz_best: f64,
}

impl Judge {
    /// Creates the judge for a run whose samples have these conditions.
    pub fn new<'a>(sampling: &Sampling, all: impl Iterator<Item = &'a Conditions>) -> Self {
        let best = all.map(|conditions| conditions.apparent_clock_ghz).fold(0.0, f64::max);
        let floor = sampling.clock_ghz_min.unwrap_or(0.0);
        Self {
            // The reference is the best clock of the same run, because the nominal clock is unknown
            // in virtual machines. The absolute minimum rejects runs that are throttled throughout.
            clock_ghz_min: floor.max(sampling.clock_share_min * best),
            foreign_cpu_max: sampling.foreign_cpu_max,
            clock_ghz_best: best,
        }
    }

    fn is_slow(&self, conditions: &Conditions) -> bool {
        conditions.apparent_clock_ghz < self.clock_ghz_min
    }

    fn is_shared(&self, conditions: &Conditions) -> bool {
        conditions.foreign_cpu.is_some_and(|share| share > self.foreign_cpu_max)
    }

    /// Returns whether a sample with these conditions is accepted.
    pub fn accepts(&self, conditions: &Conditions) -> bool {
        !self.is_slow(conditions) && !self.is_shared(conditions)
    }

    /// Returns the accepted samples, or all samples if too few are accepted.
    pub fn kept<'a, T>(&self, samples: &'a [BenchSample<T>]) -> Kept<'a, T> {
        let good: Vec<_> =
            samples.iter().filter(|sample| self.accepts(&sample.conditions)).collect();
        // A median of one or two samples is unreliable. If only few samples were taken, all of them
        // must be undisturbed.
        let is_trusted = !samples.is_empty() && good.len() >= FEWEST.min(samples.len());
        Kept { samples: if is_trusted { good } else { samples.iter().collect() }, is_trusted }
    }

    /// Returns the quality of a run. `all` are the conditions of all samples, and `used` are those
    /// of the samples from which figures are computed.
    pub fn quality<'a>(
        &self,
        all: impl Iterator<Item = &'a Conditions>,
        used: impl Iterator<Item = &'a Conditions>,
        is_trusted: bool,
    ) -> Quality {
        let all: Vec<_> = all.collect();
        let (clocks, foreign): (Vec<f64>, Vec<Option<f64>>) =
            used.map(|used| (used.apparent_clock_ghz, used.foreign_cpu)).unzip();
        let foreign = median(foreign.into_iter().flatten().collect());
        let count = |refuses: &dyn Fn(&Conditions) -> bool| {
            all.iter().filter(|conditions| refuses(conditions)).count()
        };
        Quality {
            samples: all.len(),
            rejected_samples: count(&|conditions| !self.accepts(conditions)),
            rejected_slow_clock: count(&|conditions| self.is_slow(conditions)),
            rejected_foreign_cpu: count(&|conditions| self.is_shared(conditions)),
            trusted: is_trusted,
            apparent_clock_ghz: median(clocks),
            apparent_clock_ghz_best: self.clock_ghz_best,
            apparent_clock_ghz_min: self.clock_ghz_min,
            foreign_cpu: Some(foreign).filter(|share| share.is_finite()),
        }
    }
}

/// The samples from which the figures of a report are computed.
pub struct Kept<'a, T> {
    samples: Vec<&'a BenchSample<T>>,
    /// Whether enough samples were undisturbed. If too few samples were undisturbed, all samples
    /// are kept.
    pub is_trusted: bool,
}

impl<T> Kept<'_, T> {
    /// Returns the median, minimum and maximum of `figure` over the samples.
    pub fn spread(&self, figure: impl Fn(&T) -> f64) -> Spread {
        let mut values: Vec<f64> = self.samples.iter().map(|s| figure(&s.value)).collect();
        let median = distribution::median(&mut values).unwrap_or(f64::NAN);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Spread { median, min: at(0), max: at(last) }
    }

    /// Returns the median of `figure` over the samples.
    pub fn median(&self, figure: impl Fn(&T) -> f64) -> f64 {
        self.spread(figure).median
    }

    /// Returns the conditions of the kept samples.
    pub fn conditions(&self) -> impl Iterator<Item = &Conditions> + '_ {
        self.samples.iter().map(|sample| &sample.conditions)
    }

    /// Returns the values of the kept samples.
    pub fn values(&self) -> impl Iterator<Item = &T> + '_ {
        self.samples.iter().map(|sample| &sample.value)
    }
}

/// Median, minimum and maximum of a measured figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// The quality of the samples of a run, which is part of every report.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quality {
    pub samples: usize,
    /// Number of samples that were not accepted.
    pub rejected_samples: usize,
    pub rejected_slow_clock: usize,
    pub rejected_foreign_cpu: usize,
    /// Whether enough samples were accepted. If too few samples were accepted, the figures include
    /// all samples.
    pub trusted: bool,
    /// Median of the apparent clock over the samples from which the figures are computed.
    pub apparent_clock_ghz: f64,
    /// The highest apparent clock of the run.
    pub apparent_clock_ghz_best: f64,
    /// Smallest apparent clock of an accepted sample.
    pub apparent_clock_ghz_min: f64,
    /// Median share of foreign CPU time over the samples from which the figures are computed.
    pub foreign_cpu: Option<f64>,
}

impl Quality {
    /// Formats the quality as rows of a table.
    pub fn rows(&self) -> [(&'static str, String); 2] {
        let foreign =
            self.foreign_cpu.map_or("unknown".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        let verdict =
            if self.trusted { "" } else { "; too few samples were undisturbed, so all are used" };
        [
            (
                "apparent clock, foreign CPU",
                format!(
                    "{:.2} GHz (best {:.2}), {foreign}",
                    self.apparent_clock_ghz, self.apparent_clock_ghz_best
                ),
            ),
            (
                "samples rejected",
                format!(
                    "{} of {} ({} for the clock, {} for foreign CPU){verdict}",
                    self.rejected_samples,
                    self.samples,
                    self.rejected_slow_clock,
                    self.rejected_foreign_cpu
                ),
            ),
        ]
    }

    /// Returns a warning if too many samples were disturbed, or `None` otherwise.
    pub fn warning(&self) -> Option<String> {
        (!self.trusted).then(|| {
            format!(
                "{} of {} samples were disturbed, too few are left: the figures are of all samples \
                 and say little; run again on a quieter machine",
                self.rejected_samples, self.samples
            )
        })
    }
}

/// Prints the report, after a warning if samples were disturbed. Returns the exit code.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn conclude<T: Serialize>(
    session: &Session,
    quality: &Quality,
    interrupted: bool,
    report: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<ExitCode, Error> {
    if let Some(warning) = quality.warning() {
        session.console.warn(warning);
    }
    session.console.report(report, table)?;
    Ok(ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { 0 }))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1, such as 0.9".to_owned())
}

fn clock_ghz(text: &str) -> Result<f64, String> {
    let clock = text.parse().ok().filter(|clock: &f64| clock.is_finite() && *clock > 0.0);
    clock.ok_or_else(|| "expected a clock above 0, such as 3.3".to_owned())
}

/// Calls `run`, appends its duration in seconds to `seconds`, and returns its value.
pub fn timed<T>(seconds: &mut Vec<f64>, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let value = run();
    seconds.push(begin.elapsed().as_secs_f64());
    value
}

/// Returns the median of the values, or NaN if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    distribution::median(&mut values).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::{
        BenchSample, Conditions, Judge, Quality, Sampling, Watch, busy_ticks, median, own_ticks,
    };

    fn sample(value: f64, clock: f64, foreign: f64) -> BenchSample<f64> {
        let foreign_cpu = Some(foreign);
        BenchSample { value, conditions: Conditions { apparent_clock_ghz: clock, foreign_cpu } }
    }

    fn judge(samples: &[BenchSample<f64>]) -> Judge {
        judge_above(None, samples)
    }

    fn judge_above(clock_ghz_min: Option<f64>, samples: &[BenchSample<f64>]) -> Judge {
        let (clock_share_min, foreign_cpu_max) = (0.9, 0.1);
        let sampling = Sampling { repeats: 1, clock_share_min, clock_ghz_min, foreign_cpu_max };
        Judge::new(&sampling, samples.iter().map(|sample| &sample.conditions))
    }

    fn quality(judge: &Judge, samples: &[BenchSample<f64>]) -> Quality {
        let kept = judge.kept(samples);
        let all = samples.iter().map(|sample| &sample.conditions);
        judge.quality(all, kept.conditions(), kept.is_trusted)
    }

    #[test]
    fn throttled_and_shared_samples_do_not_count() {
        let good = [1.0, 2.0, 4.0].map(|value| sample(value, 3.6, 0.0));
        let samples = [&good[..], &[sample(9.0, 3.0, 0.0), sample(9.0, 3.6, 0.2)]].concat();
        let judge = judge(&samples);
        let spread = judge.kept(&samples).spread(|value| *value);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 4.0));
        let quality = quality(&judge, &samples);
        assert!(quality.trusted && quality.warning().is_none());
        assert_eq!((quality.apparent_clock_ghz, quality.foreign_cpu), (3.6, Some(0.0)));
        let counts = (quality.rejected_samples, quality.rejected_slow_clock);
        assert_eq!((counts, quality.rejected_foreign_cpu), ((2, 1), 1));
    }

    #[test]
    fn a_run_that_is_throttled_throughout_has_no_sample_above_an_absolute_clock() {
        let samples = [1.0, 2.0, 3.0].map(|value| sample(value, 2.0, 0.0));
        assert!(quality(&judge(&samples), &samples).trusted);
        let quality = quality(&judge_above(Some(3.3), &samples), &samples);
        assert!(!quality.trusted);
        assert_eq!((quality.rejected_slow_clock, quality.apparent_clock_ghz_min), (3, 3.3));
    }

    #[test]
    fn where_too_few_are_left_all_are_shown_and_said_to_be_disturbed() {
        let samples = [sample(1.0, 3.6, 0.0), sample(2.0, 3.6, 0.5), sample(3.0, 1.0, 0.5)];
        let judge = judge(&samples);
        assert_eq!(judge.kept(&samples).median(|value| *value), 2.0);
        let quality = quality(&judge, &samples);
        assert_eq!(quality.foreign_cpu, Some(0.5));
        assert!(!quality.trusted && quality.warning().unwrap().starts_with("2 of 3"));
    }

    #[test]
    fn a_watch_sees_time_and_a_clock() {
        let pool = device::Pool::new(2);
        let (seconds, conditions) = Watch::start(&pool).stop(&pool);
        assert!(seconds > 0.0 && conditions.apparent_clock_ghz > 0.0);
        assert!(conditions.foreign_cpu.is_none_or(|share| (0.0..=1.0).contains(&share)));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn cores_that_others_had_are_told_from_our_own() {
        let all = "cpu  100 20 30 4000 50 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(busy_ticks(all), Some(100 + 20 + 30 + 6 + 7 + 8));
        let own = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 70 5 0 0 20 0 9 0 1000 1 1";
        assert_eq!(own_ticks(own), Some(75));
        assert_eq!((busy_ticks("cpu 1 2"), own_ticks("42 (a) S 1")), (None, None));
    }
}
