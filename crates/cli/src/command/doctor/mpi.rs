//! The command `rowmill doctor mpi`, which finds the MPI library and the launcher of this process,
//! and checks whether they fit together.

use std::process::ExitCode;

use comm::Transport;
use comm::mpi::{MpiLibrary, OpenError, PIECE_BYTES, candidates, launcher};
use serde::Serialize;

use setup::Session;
use setup::error::{EXIT_FAILED, Error};
use setup::render;

/// The MPI library and the launcher that were found, and whether they fit together.
#[derive(Serialize)]
struct MpiDiagnosis {
    /// Name of the launcher that started this process. `None` if it was started without a launcher.
    launcher: Option<&'static str>,
    /// Number of processes that the launcher started.
    launched: Option<u32>,
    libraries: Vec<LibraryCheck>,
    /// The MPI library that `rowmill train` would use.
    taken: Option<String>,
    ranks: Option<usize>,
    rank: Option<usize>,
    threads: Option<&'static str>,
    /// The reason why training over MPI would not work.
    problem: Option<String>,
}

/// An MPI library that was tried, with its version if it could be loaded, or else the problem.
#[derive(Serialize)]
struct LibraryCheck {
    name: String,
    interface: Option<&'static str>,
    version: Option<String>,
    problem: Option<String>,
}

/// Runs `rowmill doctor mpi` and prints its result.
pub fn run(library: Option<&str>, session: &Session) -> Result<ExitCode, Error> {
    let diagnosis = diagnose(library);
    // If there is no problem, only rank 0 prints, because all other ranks would print the same.
    if diagnosis.problem.is_some() || diagnosis.rank.unwrap_or(0) == 0 {
        session.console.report(&diagnosis, table)?;
    }
    let is_well = diagnosis.problem.is_none();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn diagnose(library: Option<&str>) -> MpiDiagnosis {
    let launcher = launcher::detect(|name| std::env::var(name).ok());
    let names = library.map_or_else(
        || candidates(launcher.map(|launcher| launcher.kind)),
        |library| vec![library],
    );
    // The search stops at the first library that can be opened, because the symbols of two MPI
    // libraries in one process would clash.
    let mut libraries = Vec::new();
    let mut taken = None;
    for name in names {
        let opened = MpiLibrary::open(name);
        libraries.push(check_library(name, opened.as_ref()));
        if let Ok(found) = opened {
            taken = Some(found);
            break;
        }
    }
    let mut diagnosis = MpiDiagnosis {
        launcher: launcher.map(|launcher| launcher.kind.name()),
        launched: launcher.map(|launcher| launcher.size),
        libraries,
        taken: taken.as_ref().map(|found| found.name().to_owned()),
        ranks: None,
        rank: None,
        threads: None,
        problem: None,
    };
    let Some(found) = taken else {
        diagnosis.problem = Some("no library can be used".to_owned());
        return diagnosis;
    };
    match found.start(PIECE_BYTES) {
        Err(problem) => diagnosis.problem = Some(problem),
        Ok(mpi) => {
            let ranks = mpi.world_size();
            (diagnosis.ranks, diagnosis.rank) = (Some(ranks), Some(mpi.rank()));
            diagnosis.threads = Some(thread_level_name(mpi.thread_level()));
            let ended = mpi.finalize();
            let launched = launcher.map_or(ranks, |launcher| launcher.size as usize);
            diagnosis.problem = if launched == ranks {
                ended.err()
            } else {
                Some(format!(
                    "the launcher started {launched} processes, but the library sees {ranks}"
                ))
            };
        }
    }
    diagnosis
}

fn check_library(name: &str, opened: Result<&MpiLibrary, &OpenError>) -> LibraryCheck {
    let name = name.to_owned();
    match opened {
        Ok(found) => LibraryCheck {
            name,
            interface: Some(found.interface().name()),
            version: found.version().lines().next().map(|line| line.trim().to_owned()),
            problem: None,
        },
        Err(error) => {
            LibraryCheck { name, interface: None, version: None, problem: Some(error.to_string()) }
        }
    }
}

/// The name of an MPI thread level. MPI implementations define the numbers.
fn thread_level_name(level: i32) -> &'static str {
    match level {
        0 => "single",
        1 => "funneled",
        2 => "serialized",
        _ => "multiple",
    }
}

fn table(diagnosis: &MpiDiagnosis) -> String {
    let launched = match (diagnosis.launcher, diagnosis.launched) {
        (Some(launcher), Some(size)) => format!("{launcher}, {size} processes"),
        _ => "none".to_owned(),
    };
    let mut rows = vec![("launcher", launched)];
    for library in &diagnosis.libraries {
        let text = match (&library.interface, &library.version, &library.problem) {
            (Some(interface), Some(version), _) => {
                format!("{}: {interface}: {version}", library.name)
            }
            (_, _, problem) => problem.clone().unwrap_or_else(|| library.name.clone()),
        };
        rows.push(("library", text));
    }
    if let (Some(ranks), Some(threads)) = (diagnosis.ranks, diagnosis.threads) {
        rows.push(("ranks", ranks.to_string()));
        rows.push(("thread level", format!("{threads} (funneled is enough)")));
    }
    let verdict = diagnosis.problem.clone().unwrap_or_else(|| "works".to_owned());
    rows.push(("training over MPI", verdict));
    render::facts(&rows)
}
