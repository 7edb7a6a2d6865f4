//! Tests that launchers are recognized by environment variables, and MPI libraries by their version
//! text.

use comm::mpi::launcher::detect;
use comm::mpi::{Interface, LauncherKind};

#[test]
fn the_launcher_is_detected_from_the_environment() {
    let check = |variables: &[(&str, &str)], expected: Option<(LauncherKind, u32, u32)>| {
        let found = detect(|name| {
            let at = variables.iter().find(|(known, _)| *known == name);
            at.map(|(_, value)| (*value).to_owned())
        });
        let found = found.map(|found| (found.kind, found.rank, found.size));
        assert_eq!(found, expected, "{variables:?}");
    };
    check(&[], None);
    let open = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    check(&open, Some((LauncherKind::OpenMpi, 1, 4)));
    check(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], Some((LauncherKind::Hydra, 0, 2)));
    check(&[("RANK", "0"), ("WORLD_SIZE", "8")], Some((LauncherKind::Torchrun, 0, 8)));
    // A batch script and a step of a single task must not be detected as a launcher.
    check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], None);
    check(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")], None);
    let step = [("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "3")];
    check(&step, Some((LauncherKind::Slurm, 2, 3)));
    let pmi2 = [step[0], step[1], ("PMI_FD", "11"), ("PMI_RANK", "2"), ("PMI_SIZE", "3")];
    check(&pmi2, Some((LauncherKind::SlurmPmi2, 2, 3)));
    let pmix = [step[0], step[1], ("PMIX_RANK", "2")];
    check(&pmix, Some((LauncherKind::Slurm, 2, 3)));
}

#[test]
fn each_launcher_numbers_the_processes_of_a_host() {
    let check = |rank_and_size: [&str; 2], more: &[(&str, &str)], expected: Option<u32>| {
        let launcher = detect(|name| {
            let known = more.iter().find(|(known, _)| *known == name);
            let value = known.map(|(_, value)| (*value).to_owned());
            value.or_else(|| rank_and_size.contains(&name).then(|| "5".to_owned()))
        });
        assert_eq!(launcher.unwrap().local_rank, expected, "{more:?}");
    };
    let open_mpi = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
    // In a Slurm allocation, SLURM_LOCALID belongs to the batch script and must be ignored.
    let of_script = ("SLURM_LOCALID", "0");
    check(open_mpi, &[("OMPI_COMM_WORLD_LOCAL_RANK", "1"), of_script], Some(1));
    check(open_mpi, &[of_script], None);
    let hydra = ["PMI_RANK", "PMI_SIZE"];
    for name in ["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"] {
        check(hydra, &[(name, "3")], Some(3));
    }
    check(["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], &[("SLURM_LOCALID", "2")], Some(2));
    check(["RANK", "WORLD_SIZE"], &[("LOCAL_RANK", "0")], Some(0));
    check(["RANK", "WORLD_SIZE"], &[("LOCAL_RANK", "x")], None);
}

#[test]
fn libraries_are_recognized_by_their_version_text() {
    let mpich = "MPICH Version:      4.0.2\nMPICH Release date:";
    for (name, version, expected) in [
        ("libmpi.so.40", "Open MPI v4.1.4, package: Debian", Some(Interface::OpenMpi)),
        ("libmpich.so.12", mpich, Some(Interface::Mpich)),
        ("/opt/mpich/lib/libmpi_abi.so.0", mpich, Some(Interface::Standard)),
        ("libmpi.so.12", "Intel(R) MPI Library 2021.10 for Linux* OS", Some(Interface::Mpich)),
        ("libmpi.so.40", "Another MPI 1.0", None),
        ("libmpi_abi.so.0", "", None),
    ] {
        assert_eq!(Interface::recognise(name, version), expected, "{version}");
    }
}
