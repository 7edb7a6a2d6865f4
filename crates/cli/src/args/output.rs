//! Derives the files and folders that each command will write from its arguments alone. Before a
//! long run begins, one check can thus find out whether all of them can be written, and that none
//! is a plan or configuration which the command reads.

use std::path::{Path, PathBuf};

use setup::args::{OutputPath, Selection};

use super::{
    CheckpointCommand, Command, ConvertTo, Data, FleetVerb, PlanSearch, PlanVerb, Predict,
    TraceVerb, Train,
};

impl Command {
    /// The files and folders that the command will write.
    pub fn outputs(&self) -> Vec<OutputPath> {
        match self {
            Self::Quickstart(quickstart) => vec![OutputPath::Folder(quickstart.folder.clone())],
            Self::Init(init) => {
                regular_files([init.target().as_ref(), init.feature_stats.as_ref()])
            }
            Self::Train(train) => train_outputs(train),
            Self::Score(score) => files([score.output.as_ref()]),
            Self::Report(report) => files([report.output.as_ref()]),
            Self::Data(data) => data_outputs(data),
            Self::Checkpoint(checkpoint) => checkpoint_outputs(checkpoint),
            Self::Trace(trace) => match &trace.verb {
                None => selection_outputs(&trace.selection),
                Some(verb) => trace_outputs(verb),
            },
            Self::Predict(predict) => predict_outputs(predict),
            Self::Capture(capture) => vec![OutputPath::Folder(capture.output.clone())],
            Self::Fleet(fleet) => match &fleet.verb {
                FleetVerb::Trace(trace) => vec![OutputPath::Folder(trace.output.clone())],
                _ => Vec::new(),
            },
            Self::Plan(args) => match &args.verb {
                Some(PlanVerb::Check(check)) => files([check.output.as_ref()]),
                Some(PlanVerb::Convert(convert)) => files([Some(&convert.output)]),
                Some(PlanVerb::Simulate(simulated)) => files([simulated.svg.as_ref()]),
                None => {
                    let PlanSearch { output, torchrec, svg, .. } = &args.search;
                    files([output, torchrec, svg].map(Option::as_ref))
                }
            },
            Self::Eval(_)
            | Self::Tune(_)
            | Self::Doctor(_)
            | Self::Explain(_)
            | Self::Bench { .. }
            | Self::Completions { .. } => Vec::new(),
        }
    }
}

impl Command {
    /// The files that `rowmill plan` reads, as far as the names are those of files. Other commands
    /// check by themselves that they do not overwrite what they read.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let Self::Plan(args) = self else { return Vec::new() };
        match &args.verb {
            Some(PlanVerb::Convert(convert)) => {
                vec![convert.plan.clone(), PathBuf::from(&convert.model)]
            }
            Some(_) => Vec::new(),
            None => {
                let PlanSearch { model, hardware, stats, .. } = &args.search;
                [model, hardware, stats].into_iter().flatten().map(PathBuf::from).collect()
            }
        }
    }
}

impl Train {
    /// The folder of the run, which is the value of `--run`, or else `runs/` followed by the name
    /// of the configuration.
    pub fn run_folder(&self) -> PathBuf {
        let name = self.config.as_deref().map(Path::new).and_then(Path::file_stem);
        self.run.clone().unwrap_or_else(|| Path::new("runs").join(name.unwrap_or_default()))
    }
}

fn files<'a>(paths: impl IntoIterator<Item = Option<&'a PathBuf>>) -> Vec<OutputPath> {
    paths.into_iter().flatten().cloned().map(OutputPath::File).collect()
}

fn regular_files<'a>(paths: impl IntoIterator<Item = Option<&'a PathBuf>>) -> Vec<OutputPath> {
    paths.into_iter().flatten().cloned().map(OutputPath::RegularFile).collect()
}

fn train_outputs(train: &Train) -> Vec<OutputPath> {
    if train.list || train.print_config {
        return Vec::new();
    }
    let folders = std::iter::once(train.run_folder()).chain(train.trace.clone());
    folders.map(OutputPath::Folder).collect()
}

fn data_outputs(data: &Data) -> Vec<OutputPath> {
    match data {
        Data::Synth(synth) => regular_files([Some(&synth.out)]),
        Data::Convert(convert) => vec![OutputPath::Folder(convert.out.clone())],
        Data::Stats(stats) => files([stats.feature_stats.as_ref()]),
        Data::Cache(cache) => files([cache.svg.as_ref()]),
    }
}

fn checkpoint_outputs(checkpoint: &CheckpointCommand) -> Vec<OutputPath> {
    match checkpoint {
        CheckpointCommand::Export { out, optimizer, loader, .. } => {
            regular_files([Some(out), optimizer.as_ref(), loader.as_ref()])
        }
        CheckpointCommand::Import { run, .. } => vec![OutputPath::Folder(run.clone())],
        CheckpointCommand::Info { .. } | CheckpointCommand::Verify { .. } => Vec::new(),
    }
}

fn predict_outputs(predict: &Predict) -> Vec<OutputPath> {
    match predict {
        Predict::Calibrate(args) => files([args.svg.as_ref(), args.output.as_ref()]),
        Predict::Step(args) => {
            args.write_trace.iter().cloned().map(OutputPath::FolderBelow).collect()
        }
        Predict::WhatIf(args) => files([args.page.as_ref()]),
        Predict::Kernels(args) => files([args.output.as_ref()]),
        Predict::Sweep(args) => files([args.svg.as_ref(), args.output.as_ref()]),
        Predict::Learn(args) => vec![OutputPath::Folder(args.output.clone())],
        _ => Vec::new(),
    }
}

fn selection_outputs(selection: &Selection) -> Vec<OutputPath> {
    files([selection.output.as_ref()])
}

fn trace_outputs(verb: &TraceVerb) -> Vec<OutputPath> {
    use TraceVerb as Verb;
    match verb {
        Verb::Breakdown { selection, .. }
        | Verb::Idle { selection, .. }
        | Verb::Overlap { selection, .. }
        | Verb::Kernels { selection, .. }
        | Verb::Launches { selection, .. }
        | Verb::Queue { selection, .. }
        | Verb::Memory { selection, .. }
        | Verb::Ops { selection, .. }
        | Verb::Steps { selection, .. }
        | Verb::Collectives { selection, .. }
        | Verb::Stragglers { selection, .. }
        | Verb::CriticalPath { selection, .. }
        | Verb::Diff { selection, .. }
        | Verb::Findings { selection, .. }
        | Verb::Doctor { selection } => selection_outputs(selection),
        Verb::Convert { out, to, .. } if ConvertTo::is_parquet(*to, out) => {
            vec![OutputPath::Folder(out.clone())]
        }
        Verb::Merge { out, .. } | Verb::Convert { out, .. } => regular_files([Some(out)]),
        Verb::Report { output, .. } => files([Some(output)]),
        Verb::ExecutionTrace { output, .. } => files([output.as_ref()]),
        Verb::Serve { .. } => Vec::new(),
    }
}
