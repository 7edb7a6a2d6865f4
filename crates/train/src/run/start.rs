//! The starting point of a run: step, data position, running loss and initial weights.

use std::collections::BTreeSet;

use data::{Dataset, Fitted, Position};
use schema::{JobConfig, RowScope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trace::Clock;

use super::request::{RuleChange, RunRequest, Start};
use crate::Error;
use crate::checkpoint::{Checkpoint, SeenData};

/// Sum of losses since the last log line. Checkpoints store the sum, so that a resumed run reports
/// the same losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossTally {
    /// Sum of the samples' losses.
    pub sum: f64,
    pub samples: u64,
}

impl LossTally {
    /// Returns the mean loss per sample, or 0 without samples.
    pub fn mean(&self) -> f64 {
        self.sum / self.samples.max(1) as f64
    }
}

/// The progress of a run that checkpoints store besides parameters. Floating-point values are
/// stored as bits, so that they are exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
    pub loader: Position,
    tally_sum_bits: u64,
    tally_samples: u64,
    last_loss_bits: u64,
    /// The best evaluation so far, if the run keeps the best checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<BestEvaluation>,
}

/// The best evaluation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestEvaluation {
    pub step: u64,
    figure_bits: u64,
    /// Number of later evaluations, none of which was better.
    pub worse_since: u64,
}

impl BestEvaluation {
    /// Records the metric of an evaluation that is better than all earlier ones.
    pub fn new(step: u64, figure: f64) -> Self {
        Self { step, figure_bits: figure.to_bits(), worse_since: 0 }
    }

    /// Returns the value of the metric by which evaluations are compared.
    pub fn figure(&self) -> f64 {
        f64::from_bits(self.figure_bits)
    }
}

impl RunProgress {
    /// Creates the progress at position `loader`, with the running loss and the last reported loss.
    pub fn new(
        loader: Position,
        tally: LossTally,
        last_loss: f64,
        best: Option<BestEvaluation>,
    ) -> Self {
        Self {
            loader,
            best,
            tally_sum_bits: tally.sum.to_bits(),
            tally_samples: tally.samples,
            last_loss_bits: last_loss.to_bits(),
        }
    }

    /// Returns the running loss since the last log line.
    pub fn tally(&self) -> LossTally {
        LossTally { sum: f64::from_bits(self.tally_sum_bits), samples: self.tally_samples }
    }

    /// Returns the best evaluation so far, if the run keeps the best checkpoint.
    pub fn best(&self) -> Option<BestEvaluation> {
        self.best
    }

    /// Returns the loss reported by the last log line.
    pub fn last_loss(&self) -> f64 {
        f64::from_bits(self.last_loss_bits)
    }
}

/// The starting point of a run, which is identical on all ranks.
pub struct StartState {
    pub step: u64,
    pub samples: u64,
    /// Progress of the run, or `None` at a fresh start and for imported checkpoints.
    pub progress: Option<RunProgress>,
    /// The source of weights and optimizer state, or `None` for initial weights.
    pub checkpoint: Option<Checkpoint>,
    /// The columns of a row over which the tables' optimizer works in this run.
    pub row_scope: RowScope,
    /// The scope before this run, if it differs and the change was accepted.
    pub row_scope_before: Option<RowScope>,
    /// The common clock of all ranks' traces.
    pub clock: Clock,
}

impl StartState {
    /// Opens the starting point that `request` names and checks that it fits the request.
    pub fn read(request: &RunRequest) -> Result<Self, Error> {
        let clock = Clock::start();
        request.plan.groups().check_intervals(&request.config.training)?;
        let (optimizer, tables) =
            (request.config.optimizer.sparse.kind, &request.config.model.tables);
        let rule = request.config.optimizer.row_scope;
        let row_scope = RowScope::new(optimizer, rule, request.plan.tiles(), tables);
        let Start::Checkpoint(folder) = &request.start else {
            return Ok(Self {
                step: 0,
                samples: 0,
                progress: None,
                checkpoint: None,
                row_scope,
                row_scope_before: None,
                clock,
            });
        };
        let checkpoint = Checkpoint::open(folder)?;
        check_same_model(&request.config, &checkpoint)?;
        let row_scope_before = changed_scope(&checkpoint, &row_scope, request.rule_change)?;
        check_same_transforms(&request.train, &checkpoint)?;
        check_same_rows(&checkpoint, request, RunRows::Training)?;
        let manifest = checkpoint.manifest();
        let position = manifest.position.clone();
        let progress = match position {
            // An imported state dict has weights but no progress.
            serde_json::Value::Null => None,
            position => {
                Some(serde_json::from_value(position).map_err(|error| Error::Manifest {
                    path: checkpoint.folder().to_owned(),
                    problem: format!("position: {error}"),
                })?)
            }
        };
        let (step, samples) = (manifest.step, manifest.samples);
        let checkpoint = Some(checkpoint);
        Ok(Self { step, samples, progress, checkpoint, row_scope, row_scope_before, clock })
    }
}

/// Returns the checkpoint's row scope if `planned` differs from it and the change was accepted.
fn changed_scope(
    checkpoint: &Checkpoint,
    planned: &RowScope,
    change: RuleChange,
) -> Result<Option<RowScope>, Error> {
    let saved = checkpoint.row_scope();
    if saved.continues_as(planned) {
        return Ok(None);
    }
    match change {
        RuleChange::Accept => Ok(Some(saved)),
        RuleChange::Refuse => Err(checkpoint.other_row_scope(planned)),
    }
}

/// Fails unless the checkpoint has the same model and optimizers as the configuration.
fn check_same_model(config: &JobConfig, checkpoint: &Checkpoint) -> Result<(), Error> {
    let described = |job: &JobConfig| {
        let optimizer = &job.optimizer;
        serde_json::json!({
            "model": job.model,
            "optimizer": {
                "sparse": { "kind": optimizer.sparse.kind },
                "dense": { "kind": optimizer.dense.kind },
            },
        })
    };
    match first_difference("", &described(checkpoint.config()), &described(config)) {
        None => Ok(()),
        Some((key, expected, got)) => {
            Err(Error::OtherModel { path: checkpoint.folder().to_owned(), key, expected, got })
        }
    }
}

/// Finds the first key under which two values differ, and returns it with both values.
fn first_difference(key: &str, a: &Value, b: &Value) -> Option<(String, String, String)> {
    if let (Value::Object(a), Value::Object(b)) = (a, b) {
        let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
        return keys.into_iter().find_map(|name| {
            let path = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            let side = |values: &Map<String, Value>| values.get(name).cloned().unwrap_or_default();
            first_difference(&path, &side(a), &side(b))
        });
    }
    (a != b).then(|| (key.to_owned(), a.to_string(), b.to_string()))
}

fn check_same_transforms(train: &Dataset, checkpoint: &Checkpoint) -> Result<(), Error> {
    let saved = &checkpoint.manifest().fitted;
    if saved.is_null() {
        // A checkpoint imported from a state dict may lack fitted transforms.
        return Ok(());
    }
    let path = checkpoint.folder().to_owned();
    let saved = match Fitted::deserialize(saved) {
        Ok(saved) => saved,
        Err(error) => {
            let problem = format!("fitted transforms: {error}");
            return Err(Error::Manifest { path, problem });
        }
    };
    if !have_same_transforms(&saved, train.fitted()) {
        return Err(Error::OtherTransforms { path, data: train.dir().to_owned() });
    }
    Ok(())
}

/// Returns whether two sets of fitted transforms map equal raw values to equal model inputs.
pub fn have_same_transforms(a: &Fitted, b: &Fitted) -> bool {
    (a.version, &a.dense, &a.categorical) == (b.version, &b.dense, &b.categorical)
}

/// Returns the fingerprints of the training and held-out rows of a run.
pub fn seen_data(request: &RunRequest) -> SeenData {
    let held_out = request.evaluation.as_ref();
    SeenData {
        training: request.train.manifest().fingerprint(),
        held_out: held_out.and_then(|(dataset, _)| dataset.manifest().fingerprint()),
    }
}

/// Selects the training rows or the held-out rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRows {
    Training,
    HeldOut,
}

/// Fails if the run would continue with other rows than those it began with. Held-out rows may be
/// added or left out.
pub fn check_same_rows(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    rows: RunRows,
) -> Result<(), Error> {
    let saved = checkpoint.manifest().data;
    let (which, dataset, expected) = match rows {
        RunRows::Training => ("training", Some(&request.train), saved.training),
        RunRows::HeldOut => {
            let dataset = request.evaluation.as_ref().map(|(dataset, _)| dataset);
            ("held-out", dataset, saved.held_out)
        }
    };
    let (Some(dataset), Some(expected)) = (dataset, expected) else { return Ok(()) };
    let got = dataset.manifest().fingerprint();
    if got == Some(expected) {
        return Ok(());
    }
    let got = got.map_or_else(|| "none".to_owned(), |got| got.to_string());
    let (path, data) = (checkpoint.folder().to_owned(), dataset.dir().to_owned());
    Err(Error::OtherRows { path, which, data, expected, got })
}
