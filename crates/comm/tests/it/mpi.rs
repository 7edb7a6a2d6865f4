//! Runs the conformance suite over MPI. The installed launchers start this test program as ranks.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::mpi::{LauncherKind, Mpi, MpiLibrary, OpenError, PIECE_BYTES, launcher};
use comm::{Communicator, Error};
use schema::HostLayout;
use testkit::{MPICH, OPEN_MPI, ProgramOutput};

use crate::{by_host, conformance};

/// Environment variable that makes the test program a rank of one part of the suite.
const PART: &str = "ROWMILL_TEST_PART";

/// Starts `ranks` processes of this program that run `part` of the suite. Returns `None` if the
/// launcher is not installed.
fn launched(by: &str, ranks: u32, part: &str, variables: &[(&str, &str)]) -> Option<ProgramOutput> {
    let mut command = testkit::launch_test(by, ranks, "mpi::a_rank_that_a_launcher_started")?;
    command.env(PART, part).envs(variables.iter().copied());
    Some(ProgramOutput::collect(&mut command))
}

fn text(output: &ProgramOutput) -> String {
    format!("{}\n{}", output.stdout, output.stderr)
}

fn conforms(by: &str) {
    for ranks in [2, 4] {
        let Some(output) = launched(by, ranks, "conformance", &[]) else { return };
        let text = text(&output);
        assert_eq!(output.code, Some(0), "{text}");
        // Each rank prints this line at its end, so a missing line means that a rank failed.
        let conformed = text.matches(&format!(" of {ranks} conforms")).count();
        assert_eq!(conformed, ranks as usize, "{text}");
    }
}

#[test]
fn issue_28_open_mpi_conforms() {
    conforms(OPEN_MPI);
}

#[test]
fn issue_28_mpich_conforms() {
    conforms(MPICH);
}

/// A program that loads another MPI library than its launcher's runs as several jobs of one rank.
#[test]
fn issue_28_a_launcher_of_the_other_library_gives_single_ranks() {
    let library = [("ROWMILL_TEST_LIBRARY", "libmpich.so.12")];
    let Some(output) = launched(OPEN_MPI, 2, "size", &library) else { return };
    if MpiLibrary::open("libmpich.so.12").is_err() {
        testkit::skip("MPICH under the launcher of Open MPI", "libmpich.so.12");
        return;
    }
    let text = text(&output);
    assert_eq!(text.matches("OpenMpi says 2, the library 1").count(), 2, "{text}");
}

#[test]
fn issue_28_a_silent_rank_is_named_and_all_ranks_are_ended() {
    for by in [OPEN_MPI, MPICH] {
        let began = Instant::now();
        let Some(output) = launched(by, 2, "hang", &[]) else { continue };
        let text = text(&output);
        assert_ne!(output.code, Some(0), "{text}");
        assert!(text.contains("rank 0 waited 1 s for rank 1 in barrier #1"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn a_file_that_is_not_an_mpi_library_is_refused() {
    let refused = |name: &str| MpiLibrary::open(name).err().unwrap();
    assert!(matches!(refused("libmpi-none.so.1"), OpenError::Absent { .. }));
    assert!(matches!(refused("libc.so.6"), OpenError::NoSymbol { .. }));
}

/// Runs the part of the suite that [`PART`] selects, in a process that a launcher started.
#[test]
fn a_rank_that_a_launcher_started() {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(part) = variable(PART) else { return };
    let launcher = launcher::detect(variable).unwrap();
    let found = match variable("ROWMILL_TEST_LIBRARY") {
        Some(name) => MpiLibrary::open(&name).unwrap(),
        None => MpiLibrary::search(Some(launcher.kind)).unwrap(),
    };
    // The launcher kind is detected from environment variables. All launchers of MPICH share the
    // kind `Hydra`.
    assert!(matches!(launcher.kind, LauncherKind::OpenMpi | LauncherKind::Hydra));
    let piece = if part == "conformance" { 50_000 } else { PIECE_BYTES };
    let mpi = Arc::new(found.start(piece).unwrap());
    let mut end = Communicator::over(Arc::clone(&mpi) as _);
    match part.as_str() {
        "conformance" => {
            let hosts = end.gather_host_layout().unwrap();
            assert_eq!(hosts.host_count(), 1, "all ranks are on this machine");
            conformance::check(&mut end, 0..60);
            let hosts = HostLayout::with_ranks_per_host(end.world_size(), 2).unwrap();
            by_host::check(&mut end, &hosts, 0..20);
            println!("rank {} of {} conforms", end.rank().0, end.world_size());
        }
        "size" => {
            let size = end.world_size();
            println!("{:?} says {}, the library {size}", launcher.kind, launcher.size);
        }
        _ => return hang(&mpi, &mut end),
    }
    mpi.finalize().unwrap();
}

fn hang(mpi: &Mpi, end: &mut Communicator) {
    if end.rank().0 == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    end.set_timeout(Some(Duration::from_secs(1)));
    let error = end.barrier().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }));
    // Write the line with one call, so that output of the launcher cannot split it.
    std::io::stderr().write_all(format!("{error}\n").as_bytes()).unwrap();
    mpi.abort(1, Duration::from_secs(10));
}
