//! Detects from the environment which launcher started this process, and how many processes it
//! started.

/// A family of launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LauncherKind {
    OpenMpi,
    /// MPICH's `mpirun`, and launchers with the same protocol (PMI).
    Hydra,
    /// Slurm's `srun --mpi=pmix`, which starts Open MPI.
    Slurm,
    /// Slurm's `srun --mpi=pmi2`, which starts MPICH.
    SlurmPmi2,
    /// PyTorch's `torchrun`, which does not start MPI.
    Torchrun,
}

impl LauncherKind {
    /// Returns the command of the launcher, for messages.
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

    /// Returns the environment variables that may contain the local rank of a process on its host.
    /// The first one that is set is used.
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
    /// Number of processes that the launcher started.
    pub size: u32,
    /// Rank of this process according to the launcher.
    pub rank: u32,
    /// Rank of this process on its host, if the launcher reports it.
    pub local_rank: Option<u32>,
}

/// Detects the launcher of this process. `variable` looks up an environment variable.
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
    // A batch script of Slurm also has SLURM_PROCID=0, but only a job step has the variable with
    // the number of tasks.
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
