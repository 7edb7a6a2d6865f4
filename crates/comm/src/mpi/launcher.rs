//! Detects from the environment which launcher started this process, and the number of its
//! processes.

/// A family of launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LauncherKind {
    OpenMpi,
    /// MPICH's `mpirun`, and launchers with the same protocol (PMI).
    Hydra,
    /// `srun --mpi=pmix` of Slurm, which starts Open MPI.
    Slurm,
    /// `srun --mpi=pmi2`, which starts MPICH.
    SlurmPmi2,
    /// `torchrun`, which starts no MPI.
    Torchrun,
}

impl LauncherKind {
    /// The command of the launcher, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "mpirun of Open MPI",
            Self::Hydra => "mpirun of MPICH",
            Self::Slurm => "srun",
            Self::SlurmPmi2 => "srun --mpi=pmi2",
            Self::Torchrun => "torchrun",
        }
    }

    /// Environment variables with the local rank of a process on its host; the first one that is
    /// set is used.
    fn local_rank_variables(self) -> &'static [&'static str] {
        match self {
            Self::OpenMpi => &["OMPI_COMM_WORLD_LOCAL_RANK"],
            Self::Hydra => &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"],
            Self::Slurm | Self::SlurmPmi2 => &["SLURM_LOCALID"],
            Self::Torchrun => &["LOCAL_RANK"],
        }
    }
}

/// A detected launcher, and the ranks that it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    pub kind: LauncherKind,
    /// Processes that it started.
    pub size: u32,
    /// Rank of this process according to the launcher.
    pub rank: u32,
    /// Rank of this process on its host, if the launcher reports it.
    pub local_rank: Option<u32>,
}

/// Detects the launcher; `variable` looks up an environment variable.
#[must_use]
pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Option<Launcher> {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let with = |kind: LauncherKind, (rank, size): (&str, &str)| {
        let local_rank = kind.local_rank_variables().iter().find_map(|name| number(name));
        Some(Launcher { kind, size: number(size)?, rank: number(rank)?, local_rank })
    };
    if variable("OMPI_COMM_WORLD_RANK").is_some() {
        return with(LauncherKind::OpenMpi, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
    }
    // A batch script of Slurm has SLURM_PROCID=0 too; only a step has tasks.
    let is_pmi2 = variable("PMI_FD").is_some() && variable("PMIX_RANK").is_none();
    let slurm = if is_pmi2 { LauncherKind::SlurmPmi2 } else { LauncherKind::Slurm };
    let step = with(slurm, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"));
    if step.is_some_and(|step| step.size > 1) {
        return step;
    }
    if variable("PMI_RANK").is_some() {
        return with(LauncherKind::Hydra, ("PMI_RANK", "PMI_SIZE"));
    }
    if variable("RANK").is_some() {
        return with(LauncherKind::Torchrun, ("RANK", "WORLD_SIZE"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{LauncherKind, detect};

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
        // An sbatch script, and a step of one task.
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
        // In an allocation of Slurm, what Slurm says is of the batch script.
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
}
