//! The starting point of a run: step, data position, running loss and initial weights.

use std::collections::BTreeSet;

use data::{Dataset, Fitted, Position};
use schema::{JobConfig, RowScope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trace::Clock;

use super::{RuleChange, RunRequest, Start};
use crate::Error;
use crate::checkpoint::{Checkpoint, SeenData};

/// Loss since the last log line. Kept in the checkpoint, so that a resumed run reports the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossTally {
    /// Σ of the samples' losses.
    pub sum: f64,
    pub samples: u64,
}

impl LossTally {
    /// Mean loss.
    pub fn mean(&self) -> f64 {
        self.sum / self.samples.max(1) as f64
    }
}

/// Checkpoint content besides parameters; exact, so floating-point values are stored as bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
    pub loader: Position,
    tally_sum_bits: u64,
    tally_samples: u64,
    last_loss_bits: u64,
    /// The best evaluation so far, where a run looks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<BestEvaluation>,
}

/// The best evaluation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// The step it is of.
    pub step: u64,
    figure_bits: u64,
    /// Evaluations since that were no better.
    pub worse_since: u64,
}

impl BestEvaluation {
    /// A figure at a step, better than all before.
    pub fn new(step: u64, figure: f64) -> Self {
        Self { step, figure_bits: figure.to_bits(), worse_since: 0 }
    }

    /// Its figure.
    pub fn figure(&self) -> f64 {
        f64::from_bits(self.figure_bits)
    }
}

impl RunProgress {
    /// The progress at `loader`, with the running and the last reported loss.
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

    /// Loss since the last log line.
    pub fn tally(&self) -> LossTally {
        LossTally { sum: f64::from_bits(self.tally_sum_bits), samples: self.tally_samples }
    }

    /// The best evaluation so far.
    pub fn best(&self) -> Option<BestEvaluation> {
        self.best
    }

    /// Loss of the last log line.
    pub fn last_loss(&self) -> f64 {
        f64::from_bits(self.last_loss_bits)
    }
}

/// The state all ranks begin with.
pub struct StartState {
    pub step: u64,
    pub samples: u64,
    /// Data position and losses; none at a fresh start.
    pub progress: Option<RunProgress>,
    /// The source of weights and optimizer state; initial weights if none.
    pub checkpoint: Option<Checkpoint>,
    /// Over which columns of a row the tables' optimizer works in this run.
    pub row_scope: RowScope,
    /// The same before this run, where it was another and the change was accepted.
    pub row_scope_before: Option<RowScope>,
    /// The clock of all ranks' traces.
    pub clock: Clock,
}

impl StartState {
    /// The state `request` asks for.
    pub fn read(request: &RunRequest) -> Result<Self, Error> {
        let clock = Clock::start();
        let (optimizer, tables) =
            (request.config.optimizer.sparse.kind, &request.config.model.tables);
        let row_scope = RowScope::new(optimizer, request.plan.tiles(), tables);
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
            // An imported state dict has weights but no past.
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

/// The checkpoint's scope where `planned` is another and the change was accepted.
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

/// A checkpoint goes on only as the model it is of, under the optimizers whose state it holds.
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

/// The first key under which two values differ, and both values.
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
        // An imported state dict may come without them.
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

/// Whether two states turn the same values into the same input of a model.
pub fn have_same_transforms(a: &Fitted, b: &Fitted) -> bool {
    (a.version, &a.dense, &a.categorical) == (b.version, &b.dense, &b.categorical)
}

/// The rows that a run sees.
pub fn seen_data(request: &RunRequest) -> SeenData {
    let held_out = request.evaluation.as_ref();
    SeenData {
        training: request.train.manifest().fingerprint(),
        held_out: held_out.and_then(|(dataset, _)| dataset.manifest().fingerprint()),
    }
}

/// Which rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRows {
    /// Those it is trained on.
    Training,
    /// Those it is evaluated on.
    HeldOut,
}

/// A run goes on only with the rows it began with. Held-out rows may be added or left out.
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
