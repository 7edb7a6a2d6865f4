//! Hints for errors of library crates, which do not know the options of the command line.

use std::io;

use schema::{ConfigError, ReplicaGroupsError, Share};

/// Returns the hint for replica groups that do not fit a run.
pub fn suggest_for_groups(error: &ReplicaGroupsError) -> String {
    match error {
        ReplicaGroupsError::Ranks { .. } => {
            "choose --groups as a divisor of the ranks; a resumed run keeps its groups unless \
             --groups changes them"
                .to_owned()
        }
        ReplicaGroupsError::Interval { key, sync_every, got } => format!(
            "set training.{key}={}, or choose --sync-every as a divisor of the intervals of \
             evaluations and checkpoints",
            got.next_multiple_of(*sync_every)
        ),
    }
}

/// Returns the hint for a configuration that is rejected.
pub fn suggest_for_config(error: &ConfigError) -> Option<String> {
    let hint = match error {
        ConfigError::Override { .. } => {
            "keys are dotted paths of the TOML, or the end of one: --set batch_size=4096, --set \
             dense.learning_rate=0.1, --set model.tables.NAME.rows=1000"
        }
        ConfigError::Shape { key, .. } if key == "model.dense_features" => {
            "make model.dense_features the number of [data] dense columns"
        }
        ConfigError::Shape { key, .. } if key.starts_with("model.tables ") => {
            "each feature takes its ids from the [data] categorical column of the same name"
        }
        ConfigError::Keys { .. } => {
            "rowmill explain config KEY lists the values of a key; docs/configuration.md describes all keys"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the hint for data that cannot be read or prepared.
pub fn suggest_for_data(error: &data::Error) -> Option<String> {
    if let Some(hint) = suggest_for_remote(error) {
        return Some(hint);
    }
    let hint = match error {
        data::Error::Malformed(_) => "without --strict malformed lines are counted and left out",
        data::Error::TooManyMalformed { rows, losses, read, .. } => {
            let share = Share::from_parts(losses.malformed_lines, rows + losses.malformed_lines).0;
            let percent = if read.is_some() { 100.0 } else { (100.0 * share).ceil() };
            return Some(format!(
                "correct the rows, or what [data] says of them; --malformed-max {percent}% would \
                 leave them out"
            ));
        }
        data::Error::Codec { .. } => {
            "write the file again, in pandas: df.to_parquet(FILE, compression=\"zstd\")"
        }
        data::Error::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "the user that runs rowmill needs permission to read this path"
        }
        data::Error::IdOutOfRange { .. } => {
            "correct the id, give the table more rows, or set out_of_range = \"modulo\" or \
             \"missing\" for the column"
        }
        data::Error::IdsOfBothSigns { .. } => {
            "where -1 stands for a missing id, set missing = -1 for the column; ids that are \
             hashes can be read with kind = \"string\""
        }
        data::Error::NoGoodRows { .. } => {
            "do data.format and data.columns describe this file? compare with: rowmill data stats"
        }
        data::Error::MissingColumn { available, .. } => suggest_columns(available),
        data::Error::Parquet { .. } => {
            "the file is cut short, or not Parquet; data.format says what it is read as"
        }
        data::Error::Read { source, .. } if is_damage(source) => {
            "the file is cut short or damaged; copy it again"
        }
        data::Error::Write { source, .. } | data::Error::Io { source, .. } => {
            return suggest_for_disk(source);
        }
        data::Error::OtherPreparation { .. } => {
            "use the same inputs and configuration, or start again with --restart"
        }
        data::Error::InputChanged { .. } => "restore the input, or start again with --restart",
        data::Error::Checksum { .. }
        | data::Error::PartSize { .. }
        | data::Error::Manifest { .. } => {
            "the file is damaged, or another version wrote it: restore it from a copy, or prepare the \
             data again"
        }
        data::Error::OutExists { .. } => "remove it or choose another folder",
        data::Error::PositionMismatch { .. } => {
            "resume with the data, batch size and seed of the run, or begin a new one with --run"
        }
        data::Error::FittedMismatch { .. } => {
            "the data or its columns changed; use those of the run, or begin a new run with --run"
        }
        data::Error::Stdin { .. } => "write the input to a file first: … | cat > FILE",
        data::Error::OtherForm { form, .. } => return Some(suggest_conversion(form)),
        data::Error::Archive { .. } => "unpack the archive and give its files",
        data::Error::CarriageReturns { .. } => "convert the line ends: tr '\\r' '\\n' < FILE > NEW",
        data::Error::EmptyFolder { .. } => "give a folder with files; hidden files do not count",
        data::Error::TableTooSmall { .. } => {
            "give the table more rows, raise data.ids.min_count, or use data.ids.mode = \"modulo\""
        }
        data::Error::Disk { .. } => {
            "free some space there, raise data.ids.memory_mib or data.ids.min_count, or write to \
             another disk"
        }
        data::Error::VocabularyMemory { .. } => {
            "raise data.ids.memory_mib in the configuration (rowmill data convert also takes --memory \
             4GiB)"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the hint for commands that read files without a configuration.
pub fn suggest_without_config(error: &data::Error) -> Option<&'static str> {
    let hint = match error {
        data::Error::TooManyMalformed { .. } | data::Error::NoGoodRows { .. } => {
            "correct the rows, or name the separator of fields with --delimiter TEXT"
        }
        data::Error::OtherForm { .. } => {
            "give files of one format; describe other files separately"
        }
        data::Error::MissingColumn { .. } => {
            "give files with the same columns; describe other files separately"
        }
        data::Error::Parquet { .. } => "the file is cut short, or not Parquet; write it again",
        _ => return None,
    };
    Some(hint)
}

/// Returns how to convert a file of this form into one that rowmill reads.
fn suggest_conversion(form: &str) -> String {
    let read = match form {
        "a Parquet file" => {
            return "data.format = \"parquet\", or --set data.format=parquet".into();
        }
        "a NumPy array" => return "data.format = \"npy\", or --set data.format=npy".into(),
        "an Arrow or Feather file" | "a Feather file" => "read_feather(FILE)",
        "an ORC file" => "read_orc(FILE)",
        "a Python pickle" => "read_pickle(FILE)",
        "an HDF5 file" => "read_hdf(FILE)",
        "JSON lines" => "read_json(FILE, lines=True)",
        "a JSON array" | "a JSON object" | "JSON lines or a JSON object" => "read_json(FILE)",
        _ => {
            return "write the rows as CSV or Parquet; gzip, Zstandard, bzip2, xz and zip are read"
                .into();
        }
    };
    format!("write the file as Parquet, in pandas: pd.{read}.to_parquet(NEW)")
}

/// Returns the hint for an object in a remote store that cannot be read.
fn suggest_for_remote(error: &data::Error) -> Option<String> {
    use data::RemoteProblem as P;
    let (data::Error::Open { source, .. } | data::Error::Read { source, .. }) = error else {
        return None;
    };
    let hint = match P::find_in(source)? {
        P::Address { .. } => "expected an address such as s3://BUCKET/FOLDER/FILE.csv",
        P::NotFound { .. } => "compare the address with a listing of the store, case included",
        P::Denied { credentials, .. } if credentials.contains("none were found") => {
            "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE for s3://, \
             GOOGLE_APPLICATION_CREDENTIALS for gs://"
        }
        P::Denied { .. } => "these credentials need the right to read the object",
        P::Unreachable { .. } => {
            "check the host and the network; a proxy is taken from HTTPS_PROXY, certificates of your \
             own from SSL_CERT_FILE, another store for s3:// from AWS_ENDPOINT_URL"
        }
        P::Changed { .. } => "start again when nothing writes to the object any more",
        P::Credentials(problem) if problem.contains("aws_access_key_id") => {
            "for a sign-in or a role: eval \"$(aws configure export-credentials --format env)\""
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the hint for a missing column. A single column with separators in its name means that
/// the file was split at the wrong character.
fn suggest_columns(available: &[String]) -> &'static str {
    match available.first().map(String::as_str) {
        Some(line) if available.len() == 1 && line.contains('\t') => {
            "the fields are separated by tabs: data.format = \"tsv\", or --set data.format=tsv"
        }
        Some(line) if available.len() == 1 && line.contains(',') => {
            "the fields are separated by commas: data.format = \"csv\", or --set data.format=csv"
        }
        _ => "name the columns as the file does; a file without a header needs data.columns",
    }
}

/// Returns whether the content of a file is damaged, rather than access to it denied.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}

/// Returns the hint for a file that cannot be written, because the disk is full or the user lacks
/// permission.
pub fn suggest_for_disk(error: &io::Error) -> Option<String> {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space there, or choose a folder on another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "choose a place where you have the permission, or change its mode or owner"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the hint for a training run or a checkpoint that failed.
pub fn suggest_for_train(error: &train::Error) -> Option<String> {
    let hint = match error.cause() {
        train::Error::Data(error) => return suggest_for_data(error),
        train::Error::Io { source, .. } => return suggest_for_disk(source),
        train::Error::TensorFile { path, .. } if !path.with_file_name("manifest.json").exists() => {
            "expected a file that safetensors.torch.save_file or torch.save wrote"
        }
        train::Error::Pickled { .. } => {
            "save the weights alone, in Python: torch.save(model.state_dict(), \"weights.pt\")"
        }
        train::Error::Checksum { .. }
        | train::Error::FileLength { .. }
        | train::Error::TensorFile { .. } => {
            "find an undamaged checkpoint with: rowmill checkpoint verify RUN"
        }
        train::Error::OtherModel { .. } | train::Error::StateKind { .. } => {
            "resume with the configuration that wrote the checkpoint, or begin a new run with --run"
        }
        train::Error::ReplicaGroups(error) => return Some(suggest_for_groups(error)),
        train::Error::OtherRowScope { .. } => {
            "keep the rule of the checkpoint with --set optimizer.row_scope=column_tiles and its plan \
             (--ranks, --sharding, --plan), or accept the other rule with --accept-rule-change, \
             whose help says what becomes of the state"
        }
        train::Error::Value { path, .. } if path.is_dir() => {
            "the model had diverged when it was saved: use an earlier checkpoint of the run"
        }
        train::Error::Value { .. } => {
            "export the weights again from before they diverged, or choose a wider data_type for the \
             table"
        }
        train::Error::OtherRule { .. } => {
            "set optimizer.sparse.kind and optimizer.dense.kind to the rules of the file, or accept \
             another rule's states with --accept-rule-change"
        }
        train::Error::NotEvaluated { .. } => {
            "the model has diverged, or a row has a number that is not finite: evaluate an earlier \
             checkpoint, and look at the rows with: rowmill data stats"
        }
        train::Error::OtherTransforms { .. } | train::Error::OtherRows { .. } => {
            "resume on the data the run began with, or begin a new run with --run"
        }
        train::Error::Diverged { checkpoint, .. } => {
            return Some(format!(
                "lower the learning rates (optimizer.sparse.learning_rate, \
                 optimizer.dense.learning_rate){}",
                match checkpoint {
                    Some(_) =>
                        " and go on from a checkpoint with --resume, or an earlier one with \
                                --resume-from",
                    None => "",
                }
            ));
        }
        train::Error::NothingToTrace { .. } => {
            "choose steps of the run with --trace-steps A..B, or train longer with --set steps=N"
        }
        train::Error::CacheFull { .. } => {
            "increase storage.cache_mib, or lower training.batch_size"
        }
        train::Error::StoredRows { .. } => {
            "the disk lost or changed data: resume from the last checkpoint with another \
             storage.folder"
        }
        train::Error::StorageFolder { .. } => {
            "correct storage.folder, or create the folder on every host"
        }
        train::Error::RunBusy { .. } => "let that run end, or choose a folder with --run FOLDER",
        train::Error::ManifestVersion { .. } => "read it with the version of rowmill that wrote it",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the hint for a trace that cannot be read or written.
pub fn suggest_for_trace(error: &trace::Error) -> Option<String> {
    use trace::Error as E;
    let hint = match error {
        E::NotATrace { reason, .. } if reason.ends_with("got a Kineto trace") => {
            "--execution-trace reads what torch.profiler's ExecutionTraceObserver writes; give a \
             Kineto trace as PATH, without that option"
        }
        E::NotATrace { reason, .. } if reason.contains("execution trace") => {
            "rowmill trace execution-trace reads execution traces"
        }
        E::NotATrace { reason, .. } if reason.contains("Perfetto trace") => {
            "convert or merge the recording again; a cut .pftrace cannot be read"
        }
        E::ForeignTrace { .. } => {
            "rowmill reads back the .pftrace files of rowmill trace convert and merge; of other \
             traces, give the .json that the profiler wrote"
        }
        E::NotATrace { .. } | E::NoTraces { .. } => {
            "expected what torch.profiler's export_chrome_trace, the on-demand profiler or \
             rowmill train --trace writes"
        }
        E::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "rowmill trace --help lists the tables; paths are relative to the folder the command \
             runs in"
        }
        E::Write { source, .. } => return suggest_for_disk(source),
        _ => return None,
    };
    Some(hint.to_owned())
}
