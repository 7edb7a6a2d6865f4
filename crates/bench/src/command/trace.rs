//! `rowmill-bench trace` measures the speed and the memory of reading and breaking down traces.
//!
//! Every measurement is a separate process, so that its peak memory can be measured. The kinds take
//! turns, so that disturbances by other programs affect all of them equally.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use analyze::classify::ClassRule;
use analyze::{Classifier, JobFacts, Scope, WindowRule, breakdown};
use serde::{Deserialize, Serialize};
use trace::open::{self, ReadRequest};
use trace::packed;
use trace::store::Trace;

use super::alone;
use crate::args::BenchTrace;
use bench::sample::median;
use setup::Session;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};
use setup::render;

mod text;

/// The measurements of one process that read a trace.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Once {
    text_bytes: u64,
    events: u64,
    /// Seconds in which the trace was read, its window selected and its breakdown computed.
    seconds: f64,
    /// Peak of anonymous memory, in bytes.
    peak_bytes: u64,
}

/// Medians over all measurements. `mb` are millions of bytes of uncompressed text.
#[derive(Debug, Serialize)]
struct MeasuredReading {
    text_bytes: u64,
    events: u64,
    repeats: u64,
    /// Rate of reading and breaking down on one thread.
    mb_per_s_1_thread: f64,
    mb_per_s_2_threads: f64,
    mb_per_s_all_threads: f64,
    threads: usize,
    /// Peak of anonymous memory divided by the size of the text.
    peak_memory_ratio: f64,
    nanoseconds_per_event_1_thread: f64,
    gz_mb_per_s: f64,
    /// Rate of decompression alone, without parsing.
    gunzip_mb_per_s: f64,
    /// Rate for the `.gz` file, divided by the slower of two rates: decompression alone, and one
    /// thread on plain text.
    gz_share: f64,
    /// Time of the critical path over the whole trace before its repetition, without reading it.
    critical_path_ms: f64,
    critical_path_events: u64,
}

/// Runs `rowmill-bench trace` and prints its result.
pub fn run(args: &BenchTrace, session: &Session) -> Result<(), Error> {
    if let Some(file) = &args.once {
        return session.console.json(&once(file, session.threads)?);
    }
    let folder = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let measured = measure(args, folder.path(), session)?;
    session.console.report(&measured, table)
}

fn once(file: &Path, threads: usize) -> Result<Once, Error> {
    let started = Instant::now();
    let job = open::read(&ReadRequest { paths: vec![file.to_owned()], threads })?;
    let classifier = Classifier::new(ClassRule::Category);
    let (mut events, mut text_bytes) = (0, 0);
    for trace in &job.traces {
        let scope = Scope::new(trace, WindowRule::Steps, &classifier);
        // `black_box` keeps the compiler from removing the computation.
        std::hint::black_box(breakdown::compute_breakdown(&scope));
        events += trace.event_count();
        text_bytes += trace.origin.text_bytes;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(Once { text_bytes, events, seconds, peak_bytes: alone::peak_anonymous() })
}

fn measure(args: &BenchTrace, folder: &Path, session: &Session) -> Result<MeasuredReading, Error> {
    let source = match &args.path {
        Some(path) => text::read_events(path)?,
        None => text::typical(),
    };
    let plain = folder.join("trace.json");
    let zipped = folder.join("trace.json.gz");
    let small = folder.join("source.json");
    fs::write(&small, &source).map_err(Error::io(&small, "write"))?;
    let total = args.megabytes * 1_000_000;
    let mut meter =
        Meter::start(session.console, "writing the trace", ProgressUnit::Bytes, Some(total));
    text::repeat(&source, total, &plain, &mut |done| meter.advance(done, ""))?;
    meter.finish();
    zip(&plain, &zipped, session)?;

    // Compressed files use two threads, because one unpacks while the other parses.
    let kinds = [(&plain, 1), (&plain, 2), (&plain, session.threads), (&zipped, 2)];
    let mut runs: [Vec<Once>; 4] = Default::default();
    let mut gunzip = Vec::new();
    let mut meter =
        Meter::start(session.console, "measuring", ProgressUnit::Steps, Some(args.repeats));
    for repeat in 0..args.repeats {
        for (kind, runs) in kinds.iter().zip(&mut runs) {
            // Reading a trace needs less memory than half of the size of its text.
            alone::prepare_memory(total / 2);
            runs.push(alone(kind.0, kind.1)?);
        }
        gunzip.push(gunzip_seconds(&zipped)?);
        meter.advance(repeat + 1, "");
    }
    meter.finish();
    let speed = |runs: &[Once]| rate(runs[0].text_bytes, runs.iter().map(|run| run.seconds));
    let [one, two, all, gz] = [0, 1, 2, 3].map(|kind: usize| speed(&runs[kind]));
    let Once { text_bytes, events, .. } = runs[0][0];
    let unzipped = rate(text_bytes, gunzip.into_iter());
    // The fourth kind also decompresses, which needs additional buffers, so its memory is not
    // compared.
    let peak = runs[..3].iter().flatten().map(|run| run.peak_bytes).max().unwrap_or_default();
    let (critical_path_ms, critical_path_events) = path_of(&small, args.repeats)?;
    Ok(MeasuredReading {
        text_bytes,
        events,
        repeats: args.repeats,
        mb_per_s_1_thread: one,
        mb_per_s_2_threads: two,
        mb_per_s_all_threads: all,
        threads: session.threads,
        peak_memory_ratio: peak as f64 / text_bytes as f64,
        nanoseconds_per_event_1_thread: 1e3 * text_bytes as f64 / one / events.max(1) as f64,
        gz_mb_per_s: gz,
        gunzip_mb_per_s: unzipped,
        gz_share: gz / unzipped.min(one),
        critical_path_ms,
        critical_path_events,
    })
}

/// Takes one measurement of reading a trace in a separate process.
fn alone(file: &Path, threads: usize) -> Result<Once, Error> {
    alone::run(threads, &["trace".as_ref(), "--once".as_ref(), file.as_os_str()])
}

fn zip(plain: &Path, zipped: &Path, session: &Session) -> Result<(), Error> {
    let size = plain.metadata().map_err(Error::io(plain, "read"))?.len();
    let mut meter =
        Meter::start(session.console, "compressing it", ProgressUnit::Bytes, Some(size));
    let mut input = File::open(plain).map_err(Error::io(plain, "read"))?;
    let out = BufWriter::new(File::create(zipped).map_err(Error::io(zipped, "create"))?);
    let fill = |out: &mut dyn Write| {
        // Blocks of 1 MiB make the cost of a call negligible.
        let mut block = vec![0; 1 << 20];
        let mut done = 0;
        loop {
            let got = input.read(&mut block)?;
            if got == 0 {
                return Ok(());
            }
            out.write_all(&block[..got])?;
            done += got as u64;
            meter.advance(done, "");
        }
    };
    let packed = packed::gzip(out, fill).and_then(|mut out| out.flush());
    packed.map_err(Error::io(zipped, "write"))?;
    meter.finish();
    Ok(())
}

fn gunzip_seconds(zipped: &Path) -> Result<f64, Error> {
    let started = Instant::now();
    let file = File::open(zipped).map_err(Error::io(zipped, "read"))?;
    let unpack = || io::copy(&mut packed::unpacked(file)?, &mut io::sink());
    unpack().map_err(Error::io(zipped, "read"))?;
    Ok(started.elapsed().as_secs_f64())
}

/// Measures the critical path over the whole recording. Returns the median time in milliseconds and
/// the number of events.
fn path_of(file: &Path, repeats: u64) -> Result<(f64, u64), Error> {
    let job = open::read(&ReadRequest { paths: vec![file.to_owned()], threads: 1 })?;
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    let seconds = (0..repeats).map(|_| {
        let started = Instant::now();
        std::hint::black_box(JobFacts::new(&scopes).paths());
        started.elapsed().as_secs_f64()
    });
    let events = job.traces.iter().map(Trace::event_count).sum();
    Ok((1e3 * median(seconds.collect()), events))
}

/// Returns the rate at the median time, in millions of bytes per second.
fn rate(bytes: u64, seconds: impl Iterator<Item = f64>) -> f64 {
    bytes as f64 / 1e6 / median(seconds.collect())
}

fn table(measured: &MeasuredReading) -> String {
    let speed = |mb: f64| format!("{mb:.0} MB/s");
    render::facts(&[
        ("text", schema::Bytes(measured.text_bytes).to_string()),
        ("events", render::count(measured.events)),
        ("read and broken down, 1 thread", speed(measured.mb_per_s_1_thread)),
        ("2 threads", speed(measured.mb_per_s_2_threads)),
        ("all threads", speed(measured.mb_per_s_all_threads)),
        ("peak memory ÷ text", format!("{:.3}", measured.peak_memory_ratio)),
        (".gz, 2 threads", speed(measured.gz_mb_per_s)),
        ("decompression alone", speed(measured.gunzip_mb_per_s)),
        (".gz ÷ slower of decompression and 1 thread", format!("{:.2}", measured.gz_share)),
        (
            "critical path of the source",
            format!(
                "{:.1} ms for {} events",
                measured.critical_path_ms,
                render::count(measured.critical_path_events)
            ),
        ),
    ])
}
