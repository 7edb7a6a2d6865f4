//! The command `rowmill predict calibrate --overheads`, which shows the host's overheads T1 to T5
//! of each rank as a table and a drawing.

use std::io::Write;

use predict::calibration::{Calibration, collect};
use predict::overheads::{self, OverheadRow};

use super::drawing;
use crate::args::PredictCalibrate;
use setup::Session;
use setup::error::Error;
use setup::output;
use setup::recorded_steps::{Steps, open_recordings, prepare_job, whole_scopes};
use setup::render;
use setup::table_output::{self, TableTarget};

/// Number of standard errors by which two means must differ to count as different.
const LIMIT: f64 = 3.0;

/// Runs `rowmill predict calibrate --overheads` and prints its result.
pub fn run(args: &PredictCalibrate, session: &Session) -> Result<(), Error> {
    let mut rows: Vec<OverheadRow> = Vec::new();
    let mut together = Calibration::default();
    // Every path is treated as a separate workload, because traces of two models have the same rank
    // numbers.
    for path in &args.paths {
        let traces = open_recordings(std::slice::from_ref(path), session)?;
        let scopes = whole_scopes(&traces);
        let steps = Steps::find(&scopes)?;
        let job = prepare_job(&scopes, session);
        let read = (0..steps.count()).map(|number| job.step(&steps.spans_of_step(number)));
        let read: Vec<_> = read.collect::<Result<_, _>>()?;
        for (at, trace) in traces.iter().enumerate() {
            let mut found = Calibration::default();
            read.iter().for_each(|step| collect::add(&mut found, step, &[at]));
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let source = match (args.paths.len(), traces.len()) {
                (1, _) => format!("rank {}", trace.rank),
                (_, 1) => name.into_owned(),
                _ => format!("{name}, rank {}", trace.rank),
            };
            rows.extend(overheads::summarize_overheads(&source, &found, args.top));
            together.merge(found);
        }
    }
    for one in overheads::exceptions(&rows, LIMIT) {
        session.console.say(format_args!(
            "{} depends on the workload: {} in {}, {} in {}, {:.1} standard errors apart",
            one.overhead.name(),
            render::nanos(one.least_ns),
            one.least,
            render::nanos(one.most_ns),
            one.most,
            one.standard_errors
        ));
    }
    report_sizes(&together, session);
    if let Some(path) = &args.svg {
        let text = drawing::draw_overheads(&rows);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
    }
    let target = TableTarget { output: args.output.as_deref(), top: None };
    table_output::write_rows(session.console, &rows, target)
}

/// Prints which overheads inside operators depend the most on the sizes of tensors.
fn report_sizes(calibration: &Calibration, session: &Session) {
    const NAMED: usize = 3;
    let found = overheads::by_size(calibration, LIMIT);
    for one in found.iter().take(NAMED) {
        session.console.say(format_args!(
            "{} of {} depends on sizes: {} ({}), {} ({}), {:.1} standard errors apart",
            one.overhead.name(),
            one.operator.as_deref().unwrap_or_default(),
            render::nanos(one.least_ns),
            one.least,
            render::nanos(one.most_ns),
            one.most,
            one.standard_errors
        ));
    }
    if found.len() > NAMED {
        session.console.say(format_args!("{} more depend on sizes", found.len() - NAMED));
    }
}
