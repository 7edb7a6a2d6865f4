//! The loaders of a run: training batches starting from the run's data position, and held-out rows
//! in order.

use data::{Dataset, FeaturePlan, Loaded, Loader, LoaderOptions, Position, RowSharing, Shuffle};
use schema::{ModelConfig, TrainingConfig};

use super::request::RunRequest;
use super::start::StartState;
use crate::Error;

/// Starts the loader of the remaining training batches. Returns `None` if no steps remain.
pub fn training_batches(
    request: &RunRequest,
    start: &StartState,
    sharing: Option<RowSharing>,
) -> Result<Option<Loader>, Error> {
    let Some(options) = training_options(request, start) else { return Ok(None) };
    let features = feature_plan(&request.config.model);
    Ok(Some(Loader::start_shared(&request.train, &features, options, sharing)?))
}

/// Checks that the training batches can be read, for a loader that starts later.
pub fn check_training(request: &RunRequest, start: &StartState) -> Result<(), Error> {
    let Some(options) = training_options(request, start) else { return Ok(()) };
    let features = feature_plan(&request.config.model);
    Ok(Loader::check(&request.train, &features, &options)?)
}

/// Returns the options of the loader of training batches, or `None` if no steps remain.
fn training_options(request: &RunRequest, start: &StartState) -> Option<LoaderOptions> {
    let training = &request.config.training;
    let total_steps = total_run_steps(request);
    // The number of steps is also 0 if an epoch has no full batch. In that case the loader is
    // started, because it reports the reason.
    if start.step >= total_steps && total_steps > 0 {
        return None;
    }
    let shuffle = Shuffle { seed: training.seed, buffer_rows: training.shuffle_rows };
    Some(LoaderOptions {
        batch_size: training.batch_size,
        shuffle: (training.shuffle_rows > 0).then_some(shuffle),
        drop_last: training.drop_last,
        rows: request.train_rows.clone(),
        start: start.progress.as_ref().map(|saved| saved.loader.clone()).unwrap_or_default(),
        epochs: Some(training.epochs),
        batches: Some(total_steps.saturating_sub(start.step)).filter(|&batches| batches > 0),
    })
}

/// Reads the first batch of a run. If all rows were decoded for it, returns the freed memory to the
/// operating system first. The allocator would keep that memory for the decoder threads, which have
/// ended.
pub fn first_batch(loader: &mut Loader) -> Option<Result<Loaded, data::Error>> {
    let first = loader.next();
    if loader.is_one_window() {
        device::buffer::return_freed_memory();
    }
    first
}

/// Lists the model's features with the number of rows of their tables, in the form that the loader
/// needs.
#[must_use]
pub fn feature_plan(model: &ModelConfig) -> FeaturePlan {
    let column = |feature: &schema::model::Feature<'_>| {
        (feature.name.to_owned(), model.tables[feature.table].rows)
    };
    FeaturePlan { columns: model.features().iter().map(column).collect() }
}

/// Starts a loader of the held-out samples and returns it with their number. Returns `None` if
/// there is no held-out data.
pub fn held_out(
    request: &RunRequest,
    sharing: Option<RowSharing>,
) -> Result<Option<(Loader, u64)>, Error> {
    let Some((dataset, rows)) = &request.evaluation else { return Ok(None) };
    let training = &request.config.training;
    let most = training.evaluate_samples.unwrap_or(u64::MAX);
    let rows = rows.start..rows.end.min(rows.start.saturating_add(most));
    let total = rows.end - rows.start;
    let (features, options) =
        (feature_plan(&request.config.model), in_file_order(training.batch_size, rows));
    Ok(Some((Loader::start_shared(dataset, &features, options, sharing)?, total)))
}

/// Reads one held-out sample, so that data that does not fit the model fails before hours of
/// training are spent.
pub fn check_evaluation(request: &RunRequest) -> Result<(), Error> {
    let Some((dataset, rows)) = &request.evaluation else { return Ok(()) };
    if rows.is_empty() {
        return Ok(());
    }
    let first = rows.start..rows.start + 1;
    in_order(dataset, &request.config.model, 1, first).map(drop)
}

/// Starts a loader that reads `rows` once, in file order.
pub fn in_order(
    dataset: &Dataset,
    model: &ModelConfig,
    batch_size: usize,
    rows: std::ops::Range<u64>,
) -> Result<Loader, Error> {
    Ok(Loader::start(dataset, &feature_plan(model), in_file_order(batch_size, rows))?)
}

fn in_file_order(batch_size: usize, rows: std::ops::Range<u64>) -> LoaderOptions {
    LoaderOptions {
        batch_size,
        shuffle: None,
        drop_last: false,
        rows,
        start: Position::default(),
        epochs: Some(1),
        batches: None,
    }
}

/// Computes the number of steps of the whole run.
pub(super) fn total_run_steps(request: &RunRequest) -> u64 {
    let rows = &request.train_rows;
    total_steps(&request.config.training, rows.end.saturating_sub(rows.start))
}

/// Computes the number of steps of a run on `rows` rows per epoch.
#[must_use]
pub fn total_steps(training: &TrainingConfig, rows: u64) -> u64 {
    let batch = training.batch_size as u64;
    let per_epoch = if training.drop_last { rows / batch } else { rows.div_ceil(batch) };
    let all = per_epoch.saturating_mul(training.epochs);
    training.steps.map_or(all, |steps| steps.min(all))
}
