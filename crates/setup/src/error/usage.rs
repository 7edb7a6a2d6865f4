//! Errors that the user corrects on the command line, in the configuration or in an input file.
//! These errors end the process with exit code 2. Failures of the machine are in [`super::run`].

use std::path::PathBuf;

use device::cuda::DriverError;
use kernel_model::Error as KernelError;
use schema::proposal::ProposalError;
use schema::reference::distance;
use schema::topology::HardwareError;
use schema::unit::counted;
use schema::{Bytes, ConfigError};
use train::memory::MemoryMoment;

use super::define::errors_with_hints;
use super::library_hint;
use crate::args::{DeviceName, RANKS_MAX};
use crate::device_cure::suggest_cure;
use crate::machine::available_memory::AvailableMemory;
use crate::memory_fix::{MemoryFix, list_largest_parts};
use crate::shell::quoted;

errors_with_hints! {
    /// Reason for which a command line, a configuration or an input file is rejected.
    pub enum UsageError {
        // Errors of the command line.
        #[error("rowmill {was}: no such command any more")]
        #[hint("run: {now}")]
        MovedCommand { was: String, now: String },
        #[error("--format parquet writes a file, got no --output")]
        #[hint("add --output FILE.parquet if the command has it, or choose --format csv")]
        ParquetToStdout,
        #[error("--format parquet: this command prints its rows, and cannot write them to a file")]
        #[hint("choose --format csv")]
        NoParquet,
        #[error("this command prints a report instead of rows: expected --format table or json")]
        NoTable,
        #[error("--format sarif: only rowmill trace findings can write it")]
        NoSarif,
        #[error("-: expected the name of a file to write")]
        #[hint("/dev/stdout writes to standard output, ./- a file of this name")]
        OutputIsDash,
        #[error("{}: already exists", path.display())]
        #[hint("remove it or choose another name")]
        Exists { path: PathBuf },
        #[error("{}: the output would overwrite the input", path.display())]
        #[hint("choose another place to write")]
        OutputIsInput { path: PathBuf },
        #[error("{}: expected different files to write, got the same one twice", path.display())]
        #[hint("choose another name for one of them")]
        SameOutput { path: PathBuf },
        #[error("{}: no such file or folder", path.display())]
        #[hint(path.is_relative().then(|| {
            "paths are relative to the folder the command runs in".to_owned()
        }))]
        NoSuchInput { path: PathBuf },
        #[error(
            "{}: expected files or one prepared folder, got {count} paths with folders among them",
            path.display()
        )]
        #[hint("prepare all files into one folder: rowmill data convert FILE… --config CONFIG --output FOLDER")]
        MixedInputs { path: PathBuf, count: usize },

        // Errors in a job configuration.
        #[error("configuration {name:?}: no such file, and no ready-made configuration of that name")]
        #[hint("{}", suggest_configs(name, known))]
        UnknownConfig { name: String, known: Vec<&'static str> },
        #[error("configuration {origin}: {source}")]
        #[hint(library_hint::suggest_for_config(source))]
        Config { origin: String, source: Box<ConfigError> },
        #[error("{}: expected a configuration in TOML, got what looks like data", path.display())]
        #[hint("rowmill init {} writes a configuration that trains on it", quoted(&path.display().to_string()))]
        NotAConfig { path: PathBuf },
        #[error("{}: the configuration exists already", path.display())]
        #[hint("replace the file with --force, or write another file with --output FILE")]
        ConfigExists { path: PathBuf },
        #[error("standard input: expected files, which init reads more than once")]
        #[hint("write the input to a file first: … | cat > FILE")]
        InitOfStream,
        #[error("{}: expected files, got data that is already prepared", path.display())]
        #[hint("give the files that the data was prepared from")]
        InitOfPrepared { path: PathBuf },
        #[error("{files}: {source}")]
        #[hint(suggest_label(source))]
        NoProposal { files: String, source: ProposalError },
        #[error("key {key:?}: no such key of a configuration")]
        #[hint("{}", suggest_keys(near))]
        NoSuchKey { key: String, near: Vec<String> },
        #[error("model.tables: {doing} needs numbers of rows, got rows = \"auto\" for {tables}")]
        #[hint(
            "rowmill train prints the rows that the data needs; set them with --set \
             model.tables.NAME.rows=N, or in the configuration"
        )]
        RowsUnknown { doing: &'static str, tables: String },

        // Errors of jobs and runs.
        #[error("configuration {config} names no training data")]
        #[hint(
            "give files with --train FILE…, or try it on generated rows: rowmill train {config} \
             --synthetic 1000000"
        )]
        NoData { config: String },
        #[error("no held-out data: data.hold_out is 0 and no evaluation files were given")]
        #[hint(
            "set data.hold_out, or name labelled files: rowmill eval RUN --data FILE…, rowmill \
             train CONFIG --evaluation FILE…"
        )]
        NoEvaluation,
        #[error(
            "{config}: expected a run of at most {} ({}), got one of {} while {}: {}",
            available.bytes, available.limit, peak.total, peak.when.name(), list_largest_parts(peak)
        )]
        #[hint("{fix}")]
        Memory {
            config: String,
            peak: Box<MemoryMoment>,
            available: AvailableMemory,
            fix: MemoryFix,
        },
        #[error(
            "{config}: expected a run of at most {free} free of {total} on {name}, got one of {}: \
             {}",
            peak.total, list_largest_parts(peak)
        )]
        #[hint("{fix}")]
        DeviceMemory {
            config: String,
            name: DeviceName,
            peak: Box<MemoryMoment>,
            free: Bytes,
            total: Bytes,
            fix: MemoryFix,
        },
        #[error("{}: the run already has checkpoints, the newest is {newest}", run.display())]
        #[hint("add --resume to continue from there, or choose another folder with --run FOLDER")]
        RunExists { run: PathBuf, newest: String },
        #[error("--resume: expected the run's folder or the configuration, got neither")]
        #[hint("rowmill train --resume --run RUN")]
        ResumeOfNothing,
        #[error("{}: expected a run with checkpoints or run.json, found neither", run.display())]
        #[hint("give the folder of a run with --run, as printed at its end")]
        NothingToResume { run: PathBuf },
        #[error("{}: expected a run folder with metrics.jsonl", run.display())]
        #[hint(
            "give the folder of a run, as `rowmill train --run FOLDER` writes it; for a page about a \
             trace, use rowmill trace report"
        )]
        NoMetrics { run: PathBuf },
        #[error(
            "{}: expected metrics.jsonl with the times of lookups and updates of each rank, got none",
            run.display()
        )]
        #[hint(
            "train for more steps than training.log_every, for example with --set training.log_every=10; \
             older versions of rowmill did not record these times"
        )]
        NoTiming { run: PathBuf },
        #[error(
            "{}: expected the times of lookups and row updates, which a GPU does not report",
            run.display()
        )]
        #[hint("check a run on CPUs; for GPUs, compare a trace with rowmill predict")]
        NoStageTimes { run: PathBuf },
        #[error(
            "{}: expected a run of several ranks in one replica group, got {} in {}",
            run.display(),
            counted(u64::from(*ranks), "rank"),
            counted(u64::from(*groups), "group")
        )]
        #[hint("one rank has no plan to improve; check a run with --ranks 2 or more")]
        CheckedRanks { run: PathBuf, ranks: u32, groups: u32 },
        #[error(
            "{}: metrics.jsonl: expected the times of the plan's {expected} ranks, got those of {got}",
            run.display()
        )]
        #[hint("metrics.jsonl and run.json must be those of one run")]
        CheckedTiming { run: PathBuf, expected: u32, got: usize },
        #[error(
            "--threads: expected {recorded} for each rank, as {} records, got {got}",
            run.join("run.json").display()
        )]
        #[hint("leave --threads out, because the run is checked with its own threads")]
        CheckedThreads { run: PathBuf, recorded: usize, got: usize },
        #[error("{}: expected a plan of the model's tables, got one of another model", run.display())]
        #[hint("run.json and the checkpoints must be those of one run")]
        CheckedTables { run: PathBuf },
        /// The results of a run depend, to the bit, on the CPU's bf16 instruction, so a CPU without
        /// it must not continue the run.
        #[error(
            "{}: this run multiplies bf16 by VDPBF16PS, expected a CPU that has it, got one \
             without: other arithmetic would give other bytes",
            run.display()
        )]
        #[hint(
            "resume it on such a CPU, or begin a new run with --run, which may start from this \
             one's weights: rowmill checkpoint export, then import"
        )]
        OtherArithmetic { run: PathBuf },
        #[error(
            "{}: expected a checkpoint of the run {}, which has {}",
            path.display(), run.display(), list_names(names)
        )]
        #[hint("give one of RUN/checkpoints/step-…, or name the checkpoint's own run with --run")]
        NotOfRun { path: PathBuf, run: PathBuf, names: Vec<String> },
        /// An imported checkpoint holds weights from elsewhere, so rowmill fitted no transforms for
        /// its columns.
        #[error(
            "{}: the checkpoint has weights, but no transforms of its standardised columns or \
             exact ids",
            path.display()
        )]
        #[hint("import the model again with --data FOLDER, or train it with --resume")]
        NoTransforms { path: PathBuf },
        #[error("{}: the folder exists and is not a quickstart's", folder.display())]
        #[hint("choose another with --folder")]
        ForeignFolder { folder: PathBuf },

        // Errors of devices, processes and plans.
        #[error("--device {name}: {source}; `rowmill doctor device` lists the devices")]
        #[hint("{}", suggest_cure(source))]
        NoDevice { name: DeviceName, source: Box<DriverError> },
        #[error("torchrun started {size} processes, which cannot communicate without MPI")]
        #[hint("start the processes with mpirun -n {size} rowmill train …")]
        Torchrun { size: u32 },
        #[error(
            "MPI: no library can be used:{}",
            tried.iter().map(|error| format!("\n  {error}")).collect::<String>()
        )]
        #[hint(
            "install Open MPI (Debian: openmpi-bin) or MPICH (mpich), or name a library with \
             --mpi-library FILE"
        )]
        NoMpi { tried: Vec<comm::mpi::OpenError> },
        #[error(
            "{} started {} processes, but {library} found {size}: the library does not belong to this launcher",
            launcher.kind.name(), launcher.size
        )]
        #[hint(
            "start it with the mpirun that belongs to the library, or name the library of this \
             one with --mpi-library FILE"
        )]
        OtherLauncher { launcher: comm::mpi::Launcher, library: String, size: u32 },
        #[error("expected {started} ranks, one for each process that was started, got {asked}")]
        #[hint(
            "leave --ranks out, and give a --plan for as many ranks as processes, or as those of \
             one of the --groups"
        )]
        OtherRanks { asked: u32, started: u32 },
        #[error("expected at most {RANKS_MAX} ranks over all replica groups, got {got}")]
        #[hint("lower --groups, or give a --plan for fewer ranks")]
        TooManyRanks { got: u32 },
        #[error("the option '--sync-every' applies only to several replica groups, got 1")]
        #[hint("leave the option out, or ask for more groups with --groups N")]
        OneGroup,
        #[error("--sync-every {sync_every}: expected a table that groups train apart, got replicated ones only")]
        #[hint(
            "choose another --sharding, or --sync-every 1: gradients of replicated tables are always summed \
             over all ranks"
        )]
        NothingToAverage { sync_every: u64 },
        #[error(
            "the sharding plan of the run is for {}, and no --sharding is recorded with which it could be made \
             for others",
            counted(u64::from(*ranks), "rank")
        )]
        #[hint("choose how to split the tables with --sharding or --plan, or resume with as many ranks and groups")]
        OtherRanksOfPlan { ranks: u32 },
        #[error("{source}")]
        #[hint("{}", library_hint::suggest_for_groups(source))]
        ReplicaGroups { source: schema::ReplicaGroupsError },
        #[error("the option '--{option}' applies only to several ranks, got 1")]
        #[hint("leave the option out, or ask for more ranks with --ranks N")]
        OneRank { option: &'static str },
        #[error(
            "--sharding {sharding}: expected several hosts, got one host with {ranks} ranks, on which \
             --sharding row is the same plan"
        )]
        #[hint(
            "group ranks into hosts (--ranks-per-host N of train, --hardware HOSTSxGPUxN of predict), or choose --sharding row; with --groups, each \
             group needs several whole hosts"
        )]
        OneHost { sharding: String, ranks: usize },
        #[error("{source}")]
        #[hint("give --ranks-per-host a divisor of the ranks, or choose a plan without hosts")]
        Hosts { source: schema::HostLayoutError },
        #[error("{}: {source}", path.display())]
        #[hint("rowmill train --help shows the form of a plan")]
        PlanFile { path: PathBuf, source: serde_json::Error },
        #[error("{}: expected a plan in {form}, got {got}", path.display())]
        #[hint(
            "rowmill plan writes plans of both forms with --output and --torchrec, and rowmill plan \
             convert --to rowmill|torchrec converts one into the other"
        )]
        PlanForm { path: PathBuf, form: &'static str, got: String },
        #[error("{}: {source}", path.display())]
        #[hint("the plan may be of another model; rowmill plan makes one for this model")]
        Plan { path: PathBuf, source: Box<schema::plan::PlanError> },
        #[error("{}: {source}", path.display())]
        #[hint("rowmill plan --help shows examples")]
        TorchrecPlan { path: PathBuf, source: Box<plan::torchrec::TorchrecError> },
        #[error("{}: {source}", path.display())]
        #[hint("if the plan is for several hosts, give --ranks-per-host")]
        TorchrecPlanOfOneHost { path: PathBuf, source: Box<plan::torchrec::TorchrecError> },
        #[error("{source}")]
        #[hint("change [plan] or training.batch_size of the configuration, or use more devices")]
        PlanSearch { source: Box<plan::Error> },
        #[error("--ranks-per-host: expected --to torchrec, whose placements name devices of hosts")]
        #[hint("leave the option out")]
        ConvertedHosts,
        #[error("--ranks: expected --to rowmill, because plans of rowmill contain their ranks")]
        #[hint("leave the option out")]
        RanksToTorchrec,
        #[error("{source}")]
        #[hint("choose another --cost")]
        TorchrecPlanner { source: Box<plan::torchrec::TorchrecError> },
        #[error("--hardware {name}: expected GPUs, got a measured CPU")]
        #[hint("rowmill train --sharding auto plans for the CPU of this machine")]
        PlannedCpu { name: String },
        #[error("{}: {source}", path.display())]
        #[hint("rowmill data stats --feature-stats FILE writes the statistics of the model's data")]
        FeatureStats { path: PathBuf, source: Box<schema::FeatureStatsFileError> },
        #[error("{}: expected feature statistics: {source}", path.display())]
        #[hint("rowmill data stats --feature-stats FILE writes the statistics of the model's data")]
        FeatureStatsForm { path: PathBuf, source: serde_json::Error },
        #[error("--pooling: bag sizes are already given by the feature statistics {file}")]
        #[hint("leave --pooling out, or do not give statistics by --stats or plan.stats")]
        PoolingBesideStats { file: String },
        #[error("--feature-stats: expected --config or a prepared folder, which define the features")]
        #[hint("name the configuration of the files with --config CONFIG")]
        FeaturesUnknown,
        #[error("--explain {table}: expected the name of a table")]
        #[hint("the first tables are {}", tables.join(", "))]
        ExplainedTable { table: String, tables: Vec<String> },

        // Errors of traces and findings.
        #[error("--rank {rank}: the traces have the ranks {known}")]
        NoSuchRank { rank: u32, known: String },
        #[error("step {step}: expected a step in 0..{count}, which all ranks recorded")]
        NoSuchStep { step: usize, count: usize },
        #[error(
            "expected two recordings, BEFORE and AFTER, each a file, or a folder or an archive \
             with all its ranks; got {got}"
        )]
        TwoRecordings { got: usize },
        #[error("{paths}: expected one trace, got {}", counted(*ranks as u64, "rank"))]
        #[hint("rowmill trace merge puts all ranks into one file; --to parquet writes tables of all")]
        SeveralRanks { paths: String, ranks: usize },
        #[error("{}: expected a name that ends in .json or .pftrace, which .gz or .zst may follow", path.display())]
        #[hint("or name the format with --to kineto|perfetto|parquet")]
        UnknownFormat { path: PathBuf },
        #[error("--class {given:?}: expected CLASS=PATTERN, CLASS one of compute, communication, memory, other")]
        #[hint("for example --class communication=my_all_to_all")]
        ClassPattern { given: String },
        #[error("--what-if: expected --by category or none")]
        WhatIfTable,
        #[error("rule {rule:?}: no such rule")]
        #[hint("rowmill explain lists the rules, and rowmill explain config the keys of a configuration")]
        NoSuchRule { rule: String },
        #[error("{}: {reason}", path.display())]
        #[hint("rowmill trace findings --help shows the form of a rules file")]
        RulesFile { path: PathBuf, reason: String },

        // Errors in the inputs of predictions.
        #[error("{}: {source}", path.display())]
        #[hint("rowmill predict what-if --help shows the form of edits")]
        EditsFile { path: PathBuf, source: Box<toml::de::Error> },
        #[error("{}: {source}", path.display())]
        Edits { path: PathBuf, source: Box<predict::Error> },
        #[error("--measured: expected traces of rank {rank}, got none")]
        NotMeasured { rank: u32 },
        #[error("--write-edit {rule}: expected a rule with a finding, got {got}")]
        #[hint("rowmill trace findings lists the findings of the recording")]
        NoFinding { rule: String, got: String },
        #[error("--write-edit {rule}: expected a remedy that edits can express, but {reason}")]
        #[hint("docs/transforms/README.md lists the edits that you can write yourself")]
        NoEdit { rule: String, reason: String },
        #[error("{}: {source}", path.display())]
        #[hint("write a new calibration: rowmill predict calibrate PATH --output FILE")]
        CalibrationFile { path: PathBuf, source: Box<predict::Error> },
        #[error("{}: expected a calibration of {expected}, got one of {got}", path.display())]
        #[hint("calibrate on this machine, or use the calibration all the same with --force")]
        OtherMachine { path: PathBuf, expected: String, got: String },
        #[error("{origin}: {source}")]
        #[hint("rowmill trace execution-trace PATH shows what a file holds; record the trace again if it is cut off")]
        ExecutionTrace { origin: String, source: Box<predict::Error> },
        /// A table of measurements, or a file with a kernel model, that cannot be used.
        #[error("{}: {source}", path.display())]
        #[hint(suggest_kernels(source))]
        Kernels { path: PathBuf, source: KernelError },
        #[error("{text:?}: expected an operation and its sizes, such as \"linear 512 1024 1024\"")]
        WorkSizes { text: String },

        // Errors of captured processes and of agents on other hosts.
        #[error("--pid {pid}: no such process")]
        NoSuchProcess { pid: u32 },
        #[error("no token for the agents of other hosts")]
        #[hint(
            "name the file with the secret that the agents know: --token-file FILE; this host's \
             own agent is asked without --hosts"
        )]
        NoToken,
        #[error("--hub {url}: expected https://HOST:PORT, or http:// with a loopback address")]
        #[hint("the token would be readable on the way; set `certificate` and `key` of the hub")]
        HubUrl { url: String },
        #[error("{}: expected the secret that the agents know, got an empty file", path.display())]
        #[hint("write the secret from the agents' configuration into it, readable for you alone")]
        EmptyToken { path: PathBuf },
        #[error("{}: expected certificates in PEM, got none", path.display())]
        NoCertificate { path: PathBuf },

        // Errors of library crates. `From` in `error.rs` chooses between this enum and `RunError`.
        #[error("{source}")]
        Analyze { source: analyze::Error },
        #[error("{source}")]
        Predict { source: predict::Error },
        #[error("{source}")]
        #[hint(suggest_hardware(source))]
        Kernel { source: KernelError },
        #[error("{source}")]
        Report { source: report::Error },
        #[error("{source}")]
        #[hint(library_hint::suggest_for_train(source))]
        Train { source: Box<train::Error> },
        #[error("{source}")]
        #[hint(library_hint::suggest_for_data(source))]
        Data { source: data::Error },
    }
}

fn list_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn suggest_configs(name: &str, known: &[&'static str]) -> String {
    let nearest = known.iter().min_by_key(|known| distance(name, known));
    let list = known.join(", ");
    match nearest {
        Some(nearest) if distance(name, nearest) <= 3 => {
            format!("did you mean {nearest}? ready-made are {list}")
        }
        _ => format!("give the path of a TOML file, or one of {list}"),
    }
}

fn suggest_keys(near: &[String]) -> String {
    match near {
        [] => "rowmill explain config lists the keys".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    }
}

fn suggest_label(error: &ProposalError) -> Option<String> {
    let hint = match error {
        ProposalError::NoLabel { .. } => "name it with --label COLUMN",
        ProposalError::NoClasses { .. } => {
            "choose another with --label COLUMN, or make it 0 and 1 in the file"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

fn suggest_hardware(error: &KernelError) -> Option<String> {
    let KernelError::Hardware(HardwareError::Unknown { name, .. }) = error else { return None };
    let hint = match name.eq_ignore_ascii_case("cpu") {
        true => {
            "rowmill predict learn measures this CPU for predictions, and rowmill train --sharding \
             auto plans for it"
        }
        false => {
            "rowmill predict kernels --list-hardware lists the devices; a TOML file describes another \
             one (docs/add-a-device.md)"
        }
    };
    Some(hint.to_owned())
}

fn suggest_kernels(error: &KernelError) -> Option<String> {
    let hint = match error {
        KernelError::OtherCpu { .. } => {
            "learn from each machine separately, into a folder of its own"
        }
        KernelError::Unlikely { .. } => "check the unit of the times and the data sheet's rates",
        KernelError::Column { .. } => "rowmill predict learn --help lists the columns of a table",
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::suggest_configs;

    #[test]
    fn the_nearest_configuration_is_suggested() {
        let known = ["adult-income", "dlrm-default"];
        assert_eq!(
            suggest_configs("dlrm-defualt", &known),
            "did you mean dlrm-default? ready-made are adult-income, dlrm-default"
        );
        assert_eq!(
            suggest_configs("xyz", &known),
            "give the path of a TOML file, or one of adult-income, dlrm-default"
        );
    }
}
