//! The command `rowmill doctor links`, which measures collectives between threads of this process,
//! or between the processes of a launcher. The results are compared with a memory copy.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comm::{Communicator, Delayed, DelayedLink, InProcess, SharedTransport, Verb};
use serde::{Deserialize, Serialize};

use crate::args::{DoctorLinks, VerbChoice};
use bench::sample::{Quality, STOPPING, conclude};
use exchange::sent_share;
use fit::Fit;
use measure::{CommPoint, CommSamples, Lead};
use setup::Session;
use setup::error::Error;
use setup::process_group::{Participation, World};
use setup::{interrupt, render};

mod exchange;
mod fit;
mod measure;
mod topology_file;

/// The result of `rowmill doctor links`, in the form in which it is printed. All times are medians
/// of the accepted samples.
#[derive(Serialize)]
struct CommReport {
    transport: String,
    all_to_all_gb_per_s: Option<f64>,
    all_reduce_gb_per_s: Option<f64>,
    latency_us: Option<f64>,
    worlds: Vec<MeasuredWorld>,
    #[serde(flatten)]
    quality: Quality,
    interrupted: bool,
}

/// The measured collectives for one number of ranks.
#[derive(Serialize)]
struct MeasuredWorld {
    ranks: u32,
    copy_gb_per_s: f64,
    points: Vec<MeasuredVerb>,
    fits: Vec<VerbFit>,
}

/// Times and bandwidths of one collective at one message size.
#[derive(Serialize)]
struct MeasuredVerb {
    verb: &'static str,
    bytes: usize,
    us: f64,
    us_min: f64,
    us_max: f64,
    algorithm_gb_per_s: f64,
    bus_gb_per_s: f64,
    bus_pct_of_copy: f64,
}

/// The latency and the bandwidth of one collective, fitted to its measurements.
#[derive(Serialize)]
struct VerbFit {
    verb: &'static str,
    #[serde(flatten)]
    fit: Fit,
}

/// The list of measurements that rank 0 sends to the other processes of a launcher.
#[derive(Serialize, Deserialize)]
struct LaunchedTask {
    /// Index of the collective in `Verb::ALL` and bytes per rank, for each measurement.
    points: Vec<(usize, usize)>,
    /// Latency in µs and bandwidth in GB/s of the simulated link. `None` without a simulated link.
    link: Option<(f64, f64)>,
}

/// Runs `rowmill doctor links` and prints its result.
pub fn run(args: &DoctorLinks, session: &Session) -> Result<ExitCode, Error> {
    Participation::join(&args.processes, false)?.run(
        session,
        |world| {
            if let Some(world) = world {
                return measure_processes(world, args, session);
            }
            let stop = interrupt::stop_flag(STOPPING);
            let lead = Lead { session, sampling: args.sampling, stop: &stop };
            let (points, link) = (points(args), link(args));
            let measure = |&ranks: &u32| {
                measure_threads(&lead, ranks, link, &points).map(|samples| (ranks, samples))
            };
            let samples = args.ranks.iter().map(measure).collect::<Result<Vec<_>, _>>()?;
            report("in_process", args, &points, &samples, session)
        },
        |world, task: LaunchedTask| {
            // Without this flag, Ctrl-C would end this rank while rank 0 still waits for it. Only
            // rank 0 checks its flag and then stops all ranks.
            let _stop = interrupt::stop_flag_of_ranks(None);
            let points: Option<Vec<CommPoint>> = task
                .points
                .iter()
                .map(|&(verb, bytes)| Some(CommPoint { verb: *Verb::ALL.get(verb)?, bytes }))
                .collect();
            let link = task.link.map(|(latency, bandwidth)| delayed_link(latency, bandwidth));
            let end = measure::follow(communicator(world, link), &points.unwrap_or_default());
            end.map_err(train::Error::from)?;
            Ok(())
        },
    )
}

/// Measures as rank 0, together with the other processes of a launcher.
fn measure_processes(
    world: &mut World,
    args: &DoctorLinks,
    session: &Session,
) -> Result<ExitCode, Error> {
    let (points, link) = (points(args), link(args));
    world.broadcast_order(LaunchedTask {
        points: points.iter().map(|point| (point.verb as usize, point.bytes)).collect(),
        link: args.latency.zip(args.bandwidth),
    })?;
    let stop = interrupt::stop_flag_of_ranks(Some(STOPPING));
    let lead = Lead { session, sampling: args.sampling, stop: &stop };
    let samples = lead.measure(communicator(world, link), &points)?;
    report(&world.library(), args, &points, &[(world.size(), samples)], session)
}

fn points(args: &DoctorLinks) -> Vec<CommPoint> {
    let mut points = Vec::new();
    for verb in args.verbs.iter().copied().map(VerbChoice::verb) {
        let sizes: &[usize] = if verb == Verb::Barrier { &[0] } else { &args.sizes };
        points.extend(sizes.iter().map(|&bytes| CommPoint { verb, bytes }));
    }
    points
}

fn link(args: &DoctorLinks) -> Option<DelayedLink> {
    args.latency.zip(args.bandwidth).map(|(latency, bandwidth)| delayed_link(latency, bandwidth))
}

fn delayed_link(microseconds: f64, gb_per_s: f64) -> DelayedLink {
    DelayedLink { latency: Duration::from_secs_f64(1e-6 * microseconds), bandwidth: 1e9 * gb_per_s }
}

fn communicator(world: &World, link: Option<DelayedLink>) -> Communicator {
    connect(world.transport(), link)
}

/// Creates a communicator over a transport. If `link` is given, the transport is delayed like that
/// link.
fn connect(transport: SharedTransport, link: Option<DelayedLink>) -> Communicator {
    match link {
        None => Communicator::over(transport),
        Some(link) => Communicator::over(Arc::new(Delayed::new(transport, link))),
    }
}

/// Measures collectives between threads of this process. The calling thread is rank 0.
fn measure_threads(
    lead: &Lead<'_>,
    ranks: u32,
    link: Option<DelayedLink>,
    points: &[CommPoint],
) -> Result<CommSamples, Error> {
    let ends = InProcess::ends(ranks).into_iter().map(|end| connect(Arc::new(end), link));
    let mut ends: Vec<Communicator> = ends.collect();
    let own = ends.remove(0);
    std::thread::scope(|scope| {
        let followers: Vec<_> =
            ends.into_iter().map(|end| scope.spawn(move || measure::follow(end, points))).collect();
        let mut samples = lead.measure(own, points);
        for follower in followers {
            match follower.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => samples = samples.and(Err(train::Error::from(error).into())),
                Err(payload) => std::panic::resume_unwind(payload),
            }
        }
        samples
    })
}

fn report(
    transport: &str,
    args: &DoctorLinks,
    points: &[CommPoint],
    measured: &[(u32, CommSamples)],
    session: &Session,
) -> Result<ExitCode, Error> {
    let worlds: Vec<MeasuredWorld> =
        measured.iter().map(|(ranks, samples)| summarize_world(*ranks, points, samples)).collect();
    let Some((_, first)) = measured.first() else { return Ok(ExitCode::SUCCESS) };
    let point_of = |verb: Verb, largest: bool| {
        let points = worlds.first()?.points.iter().filter(move |point| point.verb == verb.name());
        if largest {
            points.max_by_key(|point| point.bytes)
        } else {
            points.min_by_key(|point| point.bytes)
        }
    };
    if let Some((path, hardware)) = args.write_topology.as_ref().zip(args.hardware.as_ref()) {
        topology_file::write(path, hardware, sent_all_to_all(&worlds))?;
    }
    let transport = match link(args) {
        None => transport.to_owned(),
        Some(DelayedLink { latency, bandwidth }) => {
            format!(
                "{transport} behind {} µs, {} GB/s",
                1e6 * latency.as_secs_f64(),
                bandwidth / 1e9
            )
        }
    };
    let report = CommReport {
        transport,
        all_to_all_gb_per_s: point_of(Verb::AllToAll, true).map(|point| point.algorithm_gb_per_s),
        all_reduce_gb_per_s: point_of(Verb::AllReduce, true).map(|point| point.algorithm_gb_per_s),
        latency_us: point_of(Verb::AllReduce, false).map(|point| point.us),
        quality: first.quality(),
        interrupted: measured.iter().any(|(_, samples)| samples.interrupted),
        worlds,
    };
    conclude(session, &report.quality, report.interrupted, &report, table)
}

/// Returns the bytes that a rank sent in each all-to-all of the first world, and microseconds.
fn sent_all_to_all(worlds: &[MeasuredWorld]) -> Vec<(f64, f64)> {
    let Some(world) = worlds.first() else { return Vec::new() };
    let share = sent_share(Verb::AllToAll, world.ranks);
    let measured = world.points.iter().filter(|point| point.verb == Verb::AllToAll.name());
    measured.map(|point| (share * point.bytes as f64, point.us)).collect()
}

/// Computes times, bandwidths and fits from the samples for one number of ranks.
fn summarize_world(ranks: u32, points: &[CommPoint], samples: &CommSamples) -> MeasuredWorld {
    let copy = samples.copy_gb_per_s();
    let mut measured = Vec::new();
    for (number, &CommPoint { verb, bytes }) in points.iter().enumerate() {
        let seconds = samples.seconds(number);
        let algorithm = bytes as f64 / 1e9 / seconds.median;
        let bus = algorithm * sent_share(verb, ranks);
        measured.push(MeasuredVerb {
            verb: verb.name(),
            bytes,
            us: 1e6 * seconds.median,
            us_min: 1e6 * seconds.min,
            us_max: 1e6 * seconds.max,
            algorithm_gb_per_s: algorithm,
            bus_gb_per_s: bus,
            bus_pct_of_copy: 100.0 * bus / copy,
        });
    }
    let fit_verb = |verb: Verb| {
        let points = measured.iter().filter(|point| point.verb == verb.name());
        let line: Vec<(f64, f64)> = points
            // The time is fitted to the bytes that a rank sends, not to the size of its buffer, so
            // that the fitted bandwidths of different collectives can be compared.
            .map(|point| (point.bytes as f64 * sent_share(verb, ranks), point.us / 1e6))
            .collect();
        Fit::through(&line).map(|fit| VerbFit { verb: verb.name(), fit })
    };
    let fits = Verb::ALL.into_iter().filter_map(fit_verb).collect();
    MeasuredWorld { ranks, copy_gb_per_s: copy, points: measured, fits }
}

fn table(report: &CommReport) -> String {
    let mut parts = Vec::new();
    for MeasuredWorld { ranks, copy_gb_per_s, points, fits } in &report.worlds {
        parts.push(format!(
            "{ranks} ranks over {}; each copies {copy_gb_per_s:.1} GB/s while all ranks copy",
            report.transport
        ));
        let rows: Vec<Vec<String>> = points
            .iter()
            .map(|point| {
                vec![
                    point.verb.to_owned(),
                    schema::Bytes(point.bytes as u64).to_string(),
                    format!("{:.1}", point.us),
                    format!("{:.1}–{:.1}", point.us_min, point.us_max),
                    format!("{:.2}", point.algorithm_gb_per_s),
                    format!("{:.2}", point.bus_gb_per_s),
                    format!("{:.1} %", point.bus_pct_of_copy),
                ]
            })
            .collect();
        let header =
            ["collective", "size", "µs", "from–to", "algorithm GB/s", "bus GB/s", "of a copy"];
        parts.push(render::grid(&header, &rows));
        let rows: Vec<Vec<String>> = fits
            .iter()
            .map(|VerbFit { verb, fit }| {
                let number =
                    |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
                vec![
                    (*verb).to_owned(),
                    format!("{:.1}", fit.alpha_us),
                    number(fit.beta_ns_per_kb),
                    number(fit.beta_gb_per_s),
                ]
            })
            .collect();
        parts.push(render::grid(&["fitted", "alpha µs", "beta ns/kB", "GB/s"], &rows));
    }
    parts.push(render::facts(&report.quality.rows()));
    parts.join("\n")
}
