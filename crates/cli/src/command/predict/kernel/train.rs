//! The command `rowmill predict learn --kernels`, which trains kernel models from tables of
//! measured latencies.

use std::io::Write;
use std::path::PathBuf;

use kernel_model::{
    Error as KernelError, KernelModel, Kind, MODEL_BYTES_MOST, Measured, Source, few_shot,
};
use schema::HardwareSpec;

use crate::args::PredictLearn;
use crate::command::predict::learn::device::write_device;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::hardware_file::read_device;
use setup::kernel_files::{model_path, read_model, read_table};
use setup::output;
use setup::render;

/// Runs `rowmill predict learn --kernels` and prints its result.
pub fn run(args: &PredictLearn, session: &Session) -> Result<(), Error> {
    let added = args.hardware.as_deref().map(read_device).transpose()?;
    let mut models = train_models(&args.measured, session)?;
    if let Some(path) = &args.shots {
        let rows = read_table(path)?;
        let has_kind = |kind: Kind| rows.iter().any(|row| row.work.kind() == kind);
        let wrong = |source| UsageError::Kernels { path: path.clone(), source };
        let is_other = |device: &HardwareSpec| added.is_some_and(|own| own.key != device.key);
        if let Some(row) = rows.iter().find(|row| is_other(row.device)) {
            let expected = format!("rows of {:?} alone", added.map_or("", |own| &own.key));
            let got = format!("{:?}", row.device.key);
            return Err(wrong(KernelError::Model { expected, got }).into());
        }
        for kind in Kind::ALL.into_iter().filter(|kind| has_kind(*kind)) {
            // A model that was just trained is adapted to the device. Without one, the built-in
            // model is adapted.
            let at = models.iter().position(|model| model.kind() == kind);
            let base =
                at.map_or_else(|| read_model(None, kind), |at| Ok(models.swap_remove(at)))?;
            models.push(few_shot::calibrate(base, &rows).map_err(wrong)?);
        }
    }
    let _made = output::folder(&args.output)?;
    models.iter().try_for_each(|model| write_model(model, args, session))?;
    // With the data sheet beside the models, --hardware takes the folder.
    added.map_or(Ok(()), |spec| write_device(&args.output, spec))
}

/// Reads the measurements in tables, and the sources of the measurements for each kind of kernel.
fn read_tables(paths: &[PathBuf]) -> Result<(Vec<Measured>, Vec<Vec<Source>>), Error> {
    let mut all = Vec::new();
    let mut sources = vec![Vec::new(); Kind::ALL.len()];
    for path in paths {
        let table = read_table(path)?;
        let text = std::fs::read(path).map_err(Error::io(path, "read"))?;
        let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&text));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (kind, sources) in Kind::ALL.into_iter().zip(&mut sources) {
            let rows = table.iter().filter(|row| row.work.kind() == kind).count();
            if rows > 0 {
                sources.push(Source { name: name.clone(), rows, checksum: checksum.clone() });
            }
        }
        all.extend(table);
    }
    Ok((all, sources))
}

fn train_models(paths: &[PathBuf], session: &Session) -> Result<Vec<KernelModel>, Error> {
    let (rows, sources) = read_tables(paths)?;
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

fn write_model(model: &KernelModel, args: &PredictLearn, session: &Session) -> Result<(), Error> {
    let path = model_path(&args.output, model.kind());
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
