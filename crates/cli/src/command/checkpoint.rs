//! The command `rowmill checkpoint`, which describes, verifies, exports and imports checkpoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use data::{Dataset, Fitted};
use schema::{Bytes, RowScope};
use serde::Serialize;
use train::RuleChange;
use train::checkpoint::Checkpoint as Opened;
use train::state_dict::{self, Dialect, ImportRequest};

use crate::args::{CheckpointCommand, StateDict};
use setup::error::{Error, RunError, UsageError};
use setup::error_text::plain;
use setup::{Session, checkpoint, config, rows};
use setup::{output, render};

/// Runs `rowmill checkpoint` and prints its result.
pub fn run(command: CheckpointCommand, session: &Session) -> Result<(), Error> {
    match command {
        CheckpointCommand::Info { checkpoint } => info(&checkpoint, session),
        CheckpointCommand::Verify { checkpoint } => verify(&checkpoint, session),
        CheckpointCommand::Export { checkpoint, to, out, optimizer, rule_change, loader } => {
            let rule_change = rule_change.rule_change();
            let request = Export { to, out, optimizer, rule_change };
            export(&checkpoint, &request, session)?;
            loader.as_deref().map_or(Ok(()), |loader| write_loader(loader, &request.out, session))
        }
        CheckpointCommand::Import {
            from,
            file,
            config,
            set,
            run,
            data,
            optimizer,
            accept_rule_change,
            step,
        } => {
            let mut job = config::job(&config, &set)?;
            if let Some(folder) = &data {
                let dataset = Dataset::open(folder)?;
                // A checkpoint cannot be imported into tables without a size, so `rows = "auto"` is
                // resolved by the prepared data.
                if job.config.model.tables.iter().any(schema::TableConfig::is_auto) {
                    rows::size_tables(session, &mut job.config, &dataset)?;
                }
            }
            rows::check_known(&job.config.model.tables, "checkpoint import")?;
            let rule_change =
                if accept_rule_change { RuleChange::Accept } else { RuleChange::Refuse };
            let request = Import { file, from, run, data, optimizer, rule_change, step };
            import(&request, &job.config, session)
        }
    }
}

/// The result of `rowmill checkpoint info`, in the form in which it is printed.
#[derive(Serialize)]
struct Info {
    #[serde(serialize_with = "render::path_text")]
    checkpoint: PathBuf,
    model: String,
    created_by: String,
    step: u64,
    samples: u64,
    world_size: u32,
    tables: usize,
    /// Number of tables that the run replicated on every rank.
    #[serde(skip_serializing_if = "is_zero")]
    replicated: usize,
    table_rows: u64,
    sparse_optimizer: schema::Optimizer,
    row_scope: schema::RowScope,
    files: usize,
    chunks: usize,
    bytes: u64,
    position: serde_json::Value,
}

fn info(path: &Path, session: &Session) -> Result<(), Error> {
    let folder = checkpoint::find(path, session.console)?;
    let opened = Opened::open(&folder)?;
    let manifest = opened.manifest();
    let model = &opened.config().model;
    let info = Info {
        model: model.name.clone(),
        created_by: manifest.created_by.clone(),
        step: manifest.step,
        samples: manifest.samples,
        world_size: manifest.world_size,
        tables: model.tables.len(),
        replicated: manifest.replicated.len(),
        table_rows: model.tables.iter().map(|table| table.rows).sum(),
        sparse_optimizer: manifest.sparse_optimizer,
        row_scope: opened.row_scope(),
        files: manifest.files.len(),
        chunks: manifest.chunks.len(),
        bytes: opened.bytes(),
        position: manifest.position.clone(),
        checkpoint: folder,
    };
    session.console.report(&info, |info| {
        render::facts(&[
            ("checkpoint", info.checkpoint.display().to_string()),
            ("model", info.model.clone()),
            ("written by", info.created_by.clone()),
            ("step", render::count(info.step)),
            ("samples", render::count(info.samples)),
            ("ranks that wrote it", info.world_size.to_string()),
            ("tables", describe_tables(info)),
            ("optimizer of the tables", describe_optimizer(info)),
            (
                "size",
                format!(
                    "{} in {}",
                    Bytes(info.bytes),
                    render::counted(info.files as u64 + 1, "file")
                ),
            ),
        ])
    })?;
    session.console.detail(&manifest.config);
    Ok(())
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn describe_tables(info: &Info) -> String {
    let text = format!("{} with {}", info.tables, render::counted(info.table_rows, "row"));
    match info.replicated {
        0 => text,
        replicated => format!("{text}; {replicated} of them on every rank"),
    }
}

/// Names the optimizer of the tables. For an optimizer that computes a value per row, also says
/// whether it treats whole rows or column tiles, because the results differ.
fn describe_optimizer(info: &Info) -> String {
    match &info.row_scope {
        RowScope::EachWeight => info.sparse_optimizer.to_string(),
        RowScope::Undecided => format!("{}, without a state yet", info.sparse_optimizer),
        RowScope::WholeRows => format!("{} over whole rows", info.sparse_optimizer),
        scope @ RowScope::ColumnTiles(_) => {
            format!("{} over column tiles ({scope})", info.sparse_optimizer)
        }
    }
}

/// The damage that `rowmill checkpoint verify` found in one checkpoint.
#[derive(Serialize)]
struct CheckpointDamage {
    #[serde(serialize_with = "render::path_text")]
    checkpoint: PathBuf,
    bytes: u64,
    damage: Vec<String>,
}

fn verify(path: &Path, session: &Session) -> Result<(), Error> {
    let verified: Vec<CheckpointDamage> =
        checkpoint::all(path)?.into_iter().map(verify_folder).collect();
    let damaged = verified.iter().filter(|checked| !checked.damage.is_empty()).count();
    session.console.report(&verified, |verified| {
        let lines = verified.iter().map(|checked| match checked.damage.as_slice() {
            [] => format!("{}: whole ({})", checked.checkpoint.display(), Bytes(checked.bytes)),
            damage => {
                format!("{}: damaged\n  {}", checked.checkpoint.display(), damage.join("\n  "))
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    })?;
    if damaged == 0 {
        Ok(())
    } else {
        Err(RunError::Damaged { damaged, count: verified.len() }.into())
    }
}

fn verify_folder(folder: PathBuf) -> CheckpointDamage {
    let (bytes, damage) = match Opened::open(&folder) {
        Ok(opened) => (
            opened.bytes(),
            opened.verify().iter().map(|damage| plain(&damage.to_string())).collect(),
        ),
        Err(error) => (0, vec![plain(&error.to_string())]),
    };
    CheckpointDamage { checkpoint: folder, bytes, damage }
}

/// The checked arguments of `rowmill checkpoint export`.
struct Export {
    to: StateDict,
    out: PathBuf,
    /// The file for optimizer states. `None` if they are not exported.
    optimizer: Option<PathBuf>,
    rule_change: RuleChange,
}

/// The result of `rowmill checkpoint export`, in the form in which it is printed.
#[derive(Serialize)]
struct ExportResult<'a> {
    #[serde(serialize_with = "render::path_text")]
    checkpoint: &'a Path,
    #[serde(serialize_with = "render::path_text")]
    file: &'a Path,
    bytes: u64,
    #[serde(serialize_with = "render::path_text_or_null")]
    optimizer: Option<&'a Path>,
}

fn export(path: &Path, request: &Export, session: &Session) -> Result<(), Error> {
    let folder = checkpoint::find(path, session.console)?;
    let opened = Opened::open(&folder)?;
    let (out, optimizer) = (request.out.as_path(), request.optimizer.as_deref());
    let outs = std::iter::once(out).chain(optimizer);
    output::clear_up_beside(outs.map(Path::to_owned).collect());
    let dialect = dialect(request.to);
    // The optimizer states are exported first, because this export may be refused.
    if let Some(file) = optimizer {
        state_dict::export_optimizer(&opened, dialect, file, request.rule_change)?;
    }
    let bytes = state_dict::export(&opened, dialect, out)?;
    let exported = ExportResult { checkpoint: &folder, file: out, bytes, optimizer };
    session.console.report(&exported, |exported| {
        format!(
            "{} written ({}); in Python: model.load_state_dict(safetensors.torch.load_file({:?}))",
            exported.file.display(),
            Bytes(exported.bytes),
            exported.file.display().to_string()
        )
    })
}

/// The Python file that builds a `torch.nn.Module` from an exported state dict.
const LOADER: &str = include_str!("checkpoint/loader.py");

fn write_loader(path: &Path, weights: &Path, session: &Session) -> Result<(), Error> {
    output::put(path, |file| file.write_all(LOADER.as_bytes()).map_err(Error::io(path, "write")))?;
    let module = path.file_stem().unwrap_or_default().to_string_lossy();
    session.console.say(format_args!(
        "{} written; in Python: import {module}; model = {module}.load({:?})",
        path.display(),
        weights.display().to_string()
    ));
    Ok(())
}

/// The checked arguments of `rowmill checkpoint import`.
struct Import {
    file: PathBuf,
    from: StateDict,
    run: PathBuf,
    data: Option<PathBuf>,
    optimizer: Option<PathBuf>,
    rule_change: RuleChange,
    step: u64,
}

/// The result of `rowmill checkpoint import`, in the form in which it is printed.
#[derive(Serialize)]
struct ImportResult {
    #[serde(serialize_with = "render::path_text")]
    checkpoint: PathBuf,
    bytes: u64,
}

fn import(request: &Import, config: &schema::JobConfig, session: &Session) -> Result<(), Error> {
    // An import starts a run, so its checkpoint must not be mixed with the checkpoints of another
    // run.
    if let Some(newest) = train::checkpoint::list(&request.run)?.pop() {
        return Err(UsageError::Exists { path: newest }.into());
    }
    let _made = output::folder(&request.run)?;
    let fitted = match &request.data {
        Some(folder) => serde_json::to_value(Dataset::open(folder)?.fitted())?,
        None => serde_json::Value::Null,
    };
    let committed = state_dict::import(&ImportRequest {
        path: &request.file,
        source: dialect(request.from),
        config,
        fitted,
        run_folder: &request.run,
        optimizer: request.optimizer.as_deref(),
        rule_change: request.rule_change,
        step: request.step,
    })?;
    let imported = ImportResult { checkpoint: committed.folder, bytes: committed.bytes };
    session.console.report(&imported, |imported| {
        format!("{} written ({})", imported.checkpoint.display(), Bytes(imported.bytes))
    })?;
    if request.data.is_none() && Fitted::without_data(&config.data).is_none() {
        session.console.say(
            "the model has standardized columns or exact ids, whose parameters come from data: without \
             --data, train it (train --resume) before it can score rows",
        );
    }
    Ok(())
}

fn dialect(names: StateDict) -> Dialect {
    match names {
        StateDict::Torch => Dialect::Torch,
        StateDict::Torchrec => Dialect::Torchrec,
    }
}
