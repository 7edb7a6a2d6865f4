//! Chooses the overheads of the host for steps on hardware that was not recorded: those of a
//! calibration, of a file or a name, or of the nearest recorded GPU.

use std::path::Path;

use predict::calibration::Calibration;
use predict::calibration::shipped::{JobKind, SHIPPED, ShippedOverheads};
use schema::{TableRow, Topology};
use serde::Serialize;

use super::calibrated::{read_calibration, report_machine};
use setup::Session;
use setup::error::Error;
use setup::table_output::{self, TableTarget};

/// Value of `--overheads` that prints the shipped overheads.
pub const LIST: &str = "list";

/// A row of the list of shipped overheads.
#[derive(Serialize, TableRow)]
struct ShippedRow {
    name: &'static str,
    gpu: &'static str,
    pytorch: &'static str,
    profiler: &'static str,
    operators: usize,
    samples: u64,
    source: &'static str,
}

/// Prints the shipped overheads with their sources.
pub fn list(session: &Session) -> Result<(), Error> {
    let mut rows = Vec::new();
    for shipped in &SHIPPED {
        let overheads = shipped.read()?;
        rows.push(ShippedRow {
            name: shipped.name,
            gpu: shipped.device,
            pytorch: shipped.pytorch,
            profiler: shipped.profiler,
            operators: overheads.launches.seen.len(),
            samples: overheads.events.values().map(|count| count.samples).sum(),
            source: shipped.source,
        });
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Overheads of a host, and which ones they are if they are shipped.
pub struct HostOverheads {
    pub calibration: Calibration,
    pub origin: Option<String>,
}

/// Reads the overheads that the options name, or else the shipped ones of the nearest GPU and kind
/// of job.
pub fn read_host(
    calibration: Option<&Path>,
    overheads: Option<&str>,
    topology: &Topology,
    kind: JobKind,
    session: &Session,
) -> Result<HostOverheads, Error> {
    let read_file = |path: &Path| {
        let calibration = read_calibration(path)?;
        report_machine(&calibration.machine, session);
        Ok::<Calibration, Error>(calibration)
    };
    let shipped = match (calibration, overheads) {
        (Some(path), _) => {
            return Ok(HostOverheads { calibration: read_file(path)?, origin: None });
        }
        (None, Some(name)) if Path::new(name).exists() => {
            let calibration = read_file(Path::new(name))?.shared_overheads();
            return Ok(HostOverheads { calibration, origin: None });
        }
        (None, Some(name)) => ShippedOverheads::find(name)?,
        (None, None) => ShippedOverheads::nearest(&topology.device, kind),
    };
    let of_kind = if shipped.has_jobs(kind) { kind.name() } else { "any model" };
    let why = match overheads {
        None => format!(", the nearest GPU with shipped overheads of {of_kind}"),
        Some(_) => String::new(),
    };
    let origin = format!(
        "overheads {} of {}{why}, PyTorch {}, profiler {}; from {}",
        shipped.name, shipped.device, shipped.pytorch, shipped.profiler, shipped.source
    );
    Ok(HostOverheads { calibration: shipped.read()?, origin: Some(origin) })
}
