//! The command `rowmill predict evaluate`, which measures prediction errors on a recording of the
//! user.

use predict::calibration::Calibration;
use predict::calibration::shipped::{SHIPPED, ShippedOverheads};
use predict::cost::Constants;
use predict::evaluate::iterations::{self, IterationRow};
use predict::evaluate::leave_out::{self, LeftOutRankRow};
use predict::evaluate::{ReplayRow, geomean_pct, replay};
use predict::recording::Step;
use predict::step::Models;
use predict::step::execution_trace_time::{
    self, ExecutionTraceTimeRow, HostRow, ModeledDevice, OWN_HOST,
};
use schema::Topology;
use schema::median::float_median;
use serde::Serialize;
use trace::store::Trace;

use super::execution_step::{add_origin, read_execution_traces};
use crate::args::PredictEvaluate;
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{
    Steps, collect_samples, open_recordings, prepare_job, recorded_machine, whole_scopes,
};
use setup::render;

/// Results of all evaluations that the recording allows.
#[derive(Serialize)]
struct EvaluationReport {
    constants: Constants,
    constant_count: usize,
    replay: Vec<ReplayRow>,
    replay_worst_pct: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leave_one_out: Vec<LeftOutRankRow>,
    leave_one_out_geomean_pct: Option<f64>,
    baseline_geomean_pct: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    later_steps: Vec<IterationRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    launched: Vec<ExecutionTraceTimeRow>,
    /// Steps with kernels by models, and hosts by the calibration of each rank and by the shipped
    /// overheads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    on_device: Vec<HostRow>,
    on_device_own_worst_pct: Option<f64>,
    on_device_shared_median_pct: Option<f64>,
}

/// Runs `rowmill predict evaluate` and prints its result.
pub fn run(args: &PredictEvaluate, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let job = prepare_job(&scopes, session);
    let step = job.step(&steps.spans_of_step(0))?;
    let ranks = traces.len();
    // By default, the constants are derived from the first half of the ranks, so that the other
    // half tests them.
    let first = args.calibrate_ranks.map_or(ranks.div_ceil(2), |first| first as usize);
    let calibrated: Vec<usize> = (0..first.min(ranks)).collect();
    let replay = replay::replay_step(&step, &calibrated)?;
    let leave_one_out =
        if ranks > 1 { leave_out::evaluate_left_out_ranks(&step)? } else { Vec::new() };
    let later_steps = if steps.count() > 1 {
        iterations::evaluate_later_steps(&job, &steps.spans)?
    } else {
        Vec::new()
    };
    let (launched, on_device) = launched_rows(args, &traces, &step, session)?;
    let errors = |is_own: bool| {
        let rows = on_device.iter().filter(move |row| (row.host == OWN_HOST) == is_own);
        rows.map(|row| row.error_pct.abs())
    };
    let sizes = |take: fn(&LeftOutRankRow) -> f64| {
        (!leave_one_out.is_empty()).then(|| geomean_pct(leave_one_out.iter().map(take)))
    };
    let report = EvaluationReport {
        constant_count: replay.constants.count(),
        replay_worst_pct: replay.ranks.iter().map(|row| row.error_pct.abs()).fold(0.0, f64::max),
        leave_one_out_geomean_pct: sizes(|row| row.error_pct),
        baseline_geomean_pct: sizes(|row| row.baseline_error_pct),
        constants: replay.constants,
        replay: replay.ranks,
        leave_one_out,
        later_steps,
        launched,
        on_device_own_worst_pct: errors(true).max_by(f64::total_cmp),
        on_device_shared_median_pct: float_median(&mut errors(false).collect::<Vec<f64>>()),
        on_device,
    };
    session.console.report(&report, format_report)
}

fn format_report(report: &EvaluationReport) -> String {
    let mut parts = vec![format_constants(report), format_replayed(report)];
    if !report.leave_one_out.is_empty() {
        parts.push(format_left_out(report));
    }
    if !report.later_steps.is_empty() {
        parts.push(format_later(report));
    }
    if !report.launched.is_empty() {
        parts.push(format_launched(report));
        parts.push(format_on_device(report));
    }
    parts.join("\n\n")
}

/// Predicts the kernels that execution traces launch, and the steps with the host of each rank's
/// own calibration and of the shipped overheads that come from another job. The results are empty
/// if no execution traces are given.
fn launched_rows(
    args: &PredictEvaluate,
    traces: &[Trace],
    step: &Step,
    session: &Session,
) -> Result<(Vec<ExecutionTraceTimeRow>, Vec<HostRow>), Error> {
    if args.execution.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let executions = read_execution_traces(&args.execution, session)?;
    let devices = recorded_machine(traces).devices;
    let recorded = devices.first().map_or("", String::as_str);
    let topology = Topology::parse(args.hardware.as_deref().unwrap_or(recorded));
    let mut topology = match topology {
        // The other tests do not need the device.
        Err(error) if args.hardware.is_none() => {
            session.console.warn(format_args!(
                "{error}; kernels by models are not evaluated\n\
                 hint: name a similar GPU with --hardware"
            ));
            return Ok((Vec::new(), Vec::new()));
        }
        topology => topology.map_err(kernel_model::Error::from)?,
    };
    // Without a number of devices in its name, the hardware is one host with all ranks.
    topology.ranks_per_host = topology.ranks_per_host.max(traces.len() as u32);
    let models = Models::shipped()?;
    let add_origin = |source| add_origin(source, &executions);
    let rows = execution_trace_time::rows(&executions, 0, step, &models, &topology);
    let rows = rows.map_err(add_origin)?;
    let shared: Vec<Calibration> =
        SHIPPED.iter().map(ShippedOverheads::read).collect::<Result<_, _>>()?;
    let device = Some(ModeledDevice { models: &models, topology: &topology });
    let host_rows = |name: &str, hosts: &[Calibration]| {
        execution_trace_time::host_rows(&executions, 0, step, device, name, hosts)
            .map_err(add_origin)
    };
    let step = std::slice::from_ref(step);
    let mut hosts = host_rows(OWN_HOST, &execution_trace_time::calibrate_each_rank(step, 0.0))?;
    let own = collect_samples(step, traces.len(), 0.0).shared_overheads();
    for (shipped, overheads) in SHIPPED.iter().zip(&shared) {
        // Overheads that were made from this recording are not a test.
        if overheads.overheads != own.overheads {
            hosts.extend(host_rows(shipped.name, std::slice::from_ref(overheads))?);
        }
    }
    Ok((rows, hosts))
}

fn format_on_device(report: &EvaluationReport) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    for row in &report.on_device {
        if hosts.last() != Some(&row.host.as_str()) {
            hosts.push(&row.host);
        }
    }
    let errors = |host: &str, take: fn(&HostRow) -> f64| -> Vec<String> {
        let rows = report.on_device.iter().filter(|row| row.host == host);
        rows.map(|row| format!("{:.1}", take(row))).collect()
    };
    let line = |name: &str, errors: Vec<String>| [vec![name.to_owned()], errors].concat();
    let mut rows: Vec<Vec<String>> =
        hosts.iter().map(|host| line(host, errors(host, |row| row.error_pct))).collect();
    rows.push(line("kernels only", errors(OWN_HOST, |row| row.kernel_only_error_pct)));
    let ranks = report.replay.iter().map(|row| format!("rank {}", row.rank));
    let header: Vec<String> = ["host of".to_owned()].into_iter().chain(ranks).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!(
        "Steps from execution traces, kernels by models, error %: own hosts at most {:.1}, hosts \
         of other jobs in the median {:.1}\n{}",
        report.on_device_own_worst_pct.unwrap_or_default(),
        report.on_device_shared_median_pct.unwrap_or_default(),
        render::grid(&header, &rows)
    )
}

fn format_launched(report: &EvaluationReport) -> String {
    let percent = |value: f64| format!("{value:.2}");
    let row = |row: &ExecutionTraceTimeRow| {
        vec![
            row.rank.to_string(),
            render::nanos(row.measured_ns as f64),
            row.works.to_string(),
            row.launches.to_string(),
            render::nanos(row.models_ns as f64),
            percent(row.models_error_pct),
            row.other_error_pct.map(percent).unwrap_or_default(),
            row.other_worst_pct.map(percent).unwrap_or_default(),
            row.other_worst_rank.map(|rank| rank.to_string()).unwrap_or_default(),
        ]
    };
    let header = [
        "rank",
        "recorded",
        "works",
        "operators",
        "by models",
        "error %",
        "from one other rank %",
        "worst %",
        "by rank",
    ];
    let rows: Vec<Vec<String>> = report.launched.iter().map(row).collect();
    format!(
        "Device time predicted from execution traces, without exchanges between ranks\n{}",
        render::grid(&header, &rows)
    )
}

fn format_constants(report: &EvaluationReport) -> String {
    let constants = &report.constants;
    let nanos = |ns: i64| render::nanos(ns as f64);
    let mut rows = vec![
        ("launch to kernel", nanos(constants.launch_ns)),
        ("launch to copy", nanos(constants.copy_launch_ns)),
        ("gap in a queue", nanos(constants.queue_gap_ns)),
        ("after an event", nanos(constants.event_wait_ns)),
        ("return of a wait", nanos(constants.sync_return_ns)),
        ("return of a copy", nanos(constants.copy_return_ns)),
    ];
    for (name, ns) in &constants.hand_over_ns {
        let name = name.rsplit("::").next().unwrap_or(name);
        rows.push(("waking up", format!("{}  ({name})", nanos(*ns))));
    }
    for (operation, transfer) in &constants.transfer {
        let per_megabyte = transfer.per_byte_ns * 1e6;
        let fixed = render::nanos(transfer.fixed_ns);
        let text = format!("{fixed} + {} per MB  ({operation})", render::nanos(per_megabyte));
        rows.push(("transfer", text));
    }
    let ranks: Vec<String> = report
        .replay
        .iter()
        .filter(|row| row.is_calibrated)
        .map(|row| row.rank.to_string())
        .collect();
    format!(
        "{} constants, of rank {}\n{}",
        report.constant_count,
        ranks.join(", "),
        render::facts(&rows)
    )
}

fn format_replayed(report: &EvaluationReport) -> String {
    let row = |row: &ReplayRow| {
        let idle = row.idle_pct - row.measured_idle_pct;
        vec![
            row.rank.to_string(),
            if row.is_calibrated { "yes" } else { "no" }.to_owned(),
            render::nanos(row.measured_ns as f64),
            render::nanos(row.step_ns as f64),
            format!("{:.3}", row.error_pct),
            format!("{:.1}", row.measured_idle_pct),
            format!("{idle:.2}"),
            format!("{:.1}", row.starts_near_pct),
            render::nanos(row.collective_end_worst_ns as f64),
        ]
    };
    let header = [
        "rank",
        "calibrated",
        "recorded",
        "replayed",
        "error %",
        "idle %",
        "idle off by",
        "started within 50 µs %",
        "collective ends off by",
    ];
    let rows: Vec<Vec<String>> = report.replay.iter().map(row).collect();
    format!(
        "Replay with recorded host segments and kernels, all else from the constants\n{}",
        render::grid(&header, &rows)
    )
}

fn format_left_out(report: &EvaluationReport) -> String {
    let percent = |value: f64| format!("{value:.2}");
    let row = |row: &LeftOutRankRow| {
        vec![
            row.rank.to_string(),
            render::nanos(row.measured_ns as f64),
            render::nanos(row.step_ns as f64),
            percent(row.error_pct),
            percent(row.baseline_error_pct),
            percent(row.all_priced_error_pct),
            percent(row.together_error_pct),
        ]
    };
    let header =
        ["rank", "recorded", "predicted", "error %", "others' end %", "all priced %", "together %"];
    let rows: Vec<Vec<String>> = report.leave_one_out.iter().map(row).collect();
    format!(
        "Leave one rank out: geometric mean {:.2} %, of \"ends when the others end\" {:.2} %\n{}",
        report.leave_one_out_geomean_pct.unwrap_or_default(),
        report.baseline_geomean_pct.unwrap_or_default(),
        render::grid(&header, &rows)
    )
}

fn format_later(report: &EvaluationReport) -> String {
    let row = |row: &IterationRow| {
        vec![
            row.rank.to_string(),
            row.calibrated_steps.to_string(),
            row.steps.to_string(),
            render::nanos(row.measured_ns as f64),
            render::nanos(row.step_ns as f64),
            format!("{:.2}", row.error_pct),
            format!("{:.2}", row.baseline_error_pct),
            format!("{:.1}", row.noise_pct),
        ]
    };
    let header = [
        "rank",
        "calibrated on",
        "predicted",
        "their mean",
        "prediction",
        "error %",
        "unchanged %",
        "noise %",
    ];
    let rows: Vec<Vec<String>> = report.later_steps.iter().map(row).collect();
    format!("Later steps predicted from earlier ones\n{}", render::grid(&header, &rows))
}
