//! `rowmill predict train-kernels`: tables of measurements → models.

use std::io::Write;
use std::path::PathBuf;

use kernel_model::{KernelModel, Kind, MODEL_BYTES_MOST, few_shot};

use super::{file, model, read, table};
use crate::args::PredictTrainKernels;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::output;
use setup::render;

/// Runs `rowmill predict train-kernels` and prints its result.
pub fn run(args: &PredictTrainKernels, session: &Session) -> Result<(), Error> {
    let mut models = learned(&args.tables, session)?;
    if let Some(path) = &args.shots {
        let rows = table(path)?;
        let has_kind = |kind: Kind| rows.iter().any(|row| row.work.kind() == kind);
        let wrong = |source| UsageError::Kernels { path: path.clone(), source };
        for kind in Kind::ALL.into_iter().filter(|kind| has_kind(*kind)) {
            let at = models.iter().position(|model| model.kind() == kind);
            let base = at.map_or_else(|| model(None, kind), |at| Ok(models.swap_remove(at)))?;
            models.push(few_shot::calibrate(base, &rows).map_err(wrong)?);
        }
    }
    let _made = output::folder(&args.output)?;
    models.iter().try_for_each(|model| write(model, args, session))
}

fn learned(paths: &[PathBuf], session: &Session) -> Result<Vec<KernelModel>, Error> {
    let (rows, sources) = read(paths)?;
    let mut models = Vec::new();
    for (kind, sources) in Kind::ALL.into_iter().zip(sources) {
        if sources.is_empty() {
            continue;
        }
        let path = paths.first().cloned().unwrap_or_default();
        let found = kernel_model::train(kind, &rows, sources, session.threads);
        models.push(found.map_err(|source| UsageError::Kernels { path, source })?);
        session.console.detail(format_args!("learned {}", kind.name()));
    }
    Ok(models)
}

fn write(model: &KernelModel, args: &PredictTrainKernels, session: &Session) -> Result<(), Error> {
    let path = file(&args.output, model.kind());
    let bytes =
        model.to_bytes().map_err(|source| UsageError::Kernels { path: path.clone(), source })?;
    if bytes.len() > MODEL_BYTES_MOST {
        session.console.warn(format_args!(
            "{}: {} bytes, more than the {} a model should have; learn from fewer devices at once",
            path.display(),
            render::count(bytes.len() as u64),
            render::count(MODEL_BYTES_MOST as u64)
        ));
    }
    output::put(&path, |file| file.write_all(&bytes).map_err(Error::io(&path, "write")))?;
    session.console.say(format_args!(
        "{}: {} devices, {} bytes",
        path.display(),
        model.devices().len(),
        render::count(bytes.len() as u64)
    ));
    Ok(())
}
