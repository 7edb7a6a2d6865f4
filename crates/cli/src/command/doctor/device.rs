//! `rowmill doctor device`: which GPUs there are, or why none, and whether kernels can be emulated.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use ::device::cuda::{Driver, DriverError};
use serde::Serialize;

use crate::error::{EXIT_FAILED, Error};
use crate::render;
use crate::resolve::{Session, device};

/// What was found.
#[derive(Serialize)]
struct Diagnosis {
    devices: Vec<CheckedGpu>,
    /// Why there is no GPU to use.
    problem: Option<String>,
    /// What to do about it.
    cure: Option<&'static str>,
    /// The C++ compiler of the emulator.
    compiler: String,
    has_compiler: bool,
}

/// A device of the driver.
#[derive(Serialize)]
struct CheckedGpu {
    device: String,
    name: String,
    free_bytes: usize,
    total_bytes: usize,
}

/// Runs the command.
pub fn run(session: &Session) -> Result<ExitCode, Error> {
    let diagnosis = diagnose();
    session.console.report(&diagnosis, table)?;
    let is_well = diagnosis.problem.is_none();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn diagnose() -> Diagnosis {
    let mut devices = Vec::new();
    let error = loop {
        match gpu(devices.len()) {
            Ok(gpu) => devices.push(gpu),
            // The one behind the last.
            Err(DriverError::NoDevice { count, .. }) if count > 0 => break None,
            Err(error) => break Some(error),
        }
    };
    let compiler = device::compiler();
    let mut version = Command::new(&compiler);
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let has_compiler = version.status().is_ok_and(|status| status.success());
    let cure = error.as_ref().map(device::cure);
    let problem = error.map(|error| error.to_string());
    let compiler = compiler.display().to_string();
    Diagnosis { devices, problem, cure, compiler, has_compiler }
}

fn gpu(ordinal: usize) -> Result<CheckedGpu, DriverError> {
    // Nothing is compiled here.
    let driver = Driver::cuda(ordinal, None, PathBuf::new())?;
    let [free_bytes, total_bytes] = driver.memory()?.unwrap_or_default();
    Ok(CheckedGpu {
        device: format!("cuda:{ordinal}"),
        name: driver.name(),
        free_bytes,
        total_bytes,
    })
}

fn table(diagnosis: &Diagnosis) -> String {
    let gib = |bytes: usize| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let row = |gpu: &CheckedGpu| {
        let memory = format!("{} of {} free", gib(gpu.free_bytes), gib(gpu.total_bytes));
        vec![gpu.device.clone(), "ok".into(), format!("{}, {memory}", gpu.name)]
    };
    let mut rows: Vec<Vec<String>> = diagnosis.devices.iter().map(row).collect();
    if let Some(problem) = &diagnosis.problem {
        rows.push(vec!["cuda".into(), "wrong".into(), problem.clone()]);
    }
    let (verdict, found) =
        if diagnosis.has_compiler { ("ok", "found") } else { ("wrong", "absent") };
    let compiler = format!("C++ compiler {} (CXX): {found}", diagnosis.compiler);
    rows.push(vec!["emulated".into(), verdict.into(), compiler]);
    let mut text = render::grid(&["device", "", "found"], &rows);
    if let Some(cure) = diagnosis.cure {
        text += &format!("\n→ {cure}");
    }
    text
}
