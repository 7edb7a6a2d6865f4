//! Which option helps against which error. The rooms say what is wrong; only this file knows the
//! command line's way out.

use std::io;

use schema::reference::distance;
use schema::{ConfigError, Share};

use super::Error;
use crate::device_cure::suggest_cure;
use crate::shell::quoted;
use kernel_model::Error as KernelError;
use schema::proposal::ProposalError;

impl Error {
    /// What the user of `verb` can do about it. For verbs that read files as they are, without a
    /// configuration, a hint that names what they lack is replaced or left out.
    pub fn applicable_hint(&self, verb: &clap::Command) -> Option<String> {
        let is_of_config =
            |id: &clap::Id| ["checkpoint", "config", "set", "run", "resume"].contains(&id.as_str());
        match self {
            Self::Data(error) if !verb.get_arguments().any(|one| is_of_config(one.get_id())) => {
                let plain = hint_without_config(error).map(ToOwned::to_owned);
                [self.hint(), plain].into_iter().flatten().find(|hint| is_applicable(hint, verb))
            }
            _ => self.hint(),
        }
    }

    /// What the user can do about it.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Trace(error) => trace_hint(error),
            Self::Data(error) => data_hint(error),
            Self::Train(error) => train_hint(error),
            Self::Io { source, .. } | Self::Output(source) => disk_hint(source),
            Self::OnRank { source, .. } => source.hint(),
            Self::MovedCommand { now, .. } => Some(format!("run: {now}")),
            Self::NoDevice { source, .. } => Some(suggest_cure(source).to_owned()),
            Self::ManyJobs { .. } => {
                Some("a report is of one job: choose it with --run, --user or --pid".to_owned())
            }
            Self::SameRank { .. } => {
                Some("choose one of them with --pid, or end the one that is left over".to_owned())
            }
            Self::SameHost { .. } => Some("name each machine once".to_owned()),
            Self::NoProcess { .. } => Some(
                "`rowmill fleet status` lists processes and their jobs on all hosts".to_owned(),
            ),
            _ => self.own_hint(),
        }
    }

    /// The hint of an error that no library reported. Some errors need none.
    fn own_hint(&self) -> Option<String> {
        let hint = match self {
            Self::UnknownConfig { name, known } => return Some(known_configs(name, known)),
            #[rustfmt::skip]
            Self::Torchrun { .. } | Self::NoMpi { .. } | Self::OtherLauncher { .. }
            | Self::MpiStart { .. } | Self::NoProcesses | Self::OtherRanks { .. }
            | Self::OneRank { .. } => return self.processes_hint(),
            Self::Config { source, .. } => return config_hint(source),
            #[rustfmt::skip]
            Self::Memory { .. } | Self::Disk { .. } | Self::BenchMemory { .. }
            | Self::DeviceMemory { .. } | Self::BenchDisk { .. } => return self.room_hint(),
            Self::NotAConfig { .. }
            | Self::ConfigExists { .. }
            | Self::InitOfStream
            | Self::InitOfPrepared { .. }
            | Self::NoProposal { .. }
            | Self::NoSuchKey { .. }
            | Self::RowsUnknown { .. }
            | Self::NothingToResume { .. }
            | Self::NoMetrics { .. }
            | Self::OtherArithmetic { .. }
            | Self::ResumeOfNothing => return self.config_hint(),
            Self::ForeignFolder { .. } => "choose another with --folder".into(),
            Self::NoData { .. }
            | Self::NoEvaluation
            | Self::MixedInputs { .. }
            | Self::NoSuchInput { .. } => return self.input_hint(),
            Self::OneLabel { label, positive, .. } => label_hint(*label, positive),
            Self::RunExists { .. }
            | Self::NoCheckpoint { .. }
            | Self::NoneWhole { .. }
            | Self::NotOfRun { .. }
            | Self::NotScored { .. }
            | Self::NoTransforms { .. }
            | Self::DamagedCheckpoint { .. }
            | Self::Damaged { .. } => return self.checkpoint_hint(),
            Self::Exists { .. }
            | Self::OutputIsInput { .. }
            | Self::OutputIsFolder { .. }
            | Self::OutputIsSpecial { .. }
            | Self::NoOutputFolder { .. }
            | Self::OutputBelowFile { .. }
            | Self::Alignment { .. } => return self.output_hint(),
            Self::ParquetToStdout
            | Self::SeveralRanks { .. }
            | Self::ClassPattern { .. }
            | Self::UnknownFormat { .. }
            | Self::Serve { .. }
            | Self::NoSuchRule { .. }
            | Self::RulesFile { .. } => return self.table_hint(),
            #[rustfmt::skip]
            Self::Socket(_) | Self::NobodyAsked { .. } | Self::NoToken
            | Self::EmptyToken { .. } => return self.capture_hint(),
            #[rustfmt::skip]
            Self::Plan { .. } | Self::PlanFile { .. } | Self::CalibrationFile { .. }
            | Self::EditsFile { .. } | Self::ExecutionTrace { .. } | Self::Kernels { .. }
            | Self::OtherMachine { .. } => return self.file_hint(),
            // They say all there is to say; or their hint is another's.
            #[rustfmt::skip]
            Self::NoTable | Self::NoSarif | Self::NoSuchRank { .. } | Self::TwoRecordings { .. }
            | Self::Measurement { .. } | Self::WhatIfTable | Self::Json(_) | Self::Device(_)
            | Self::Analyze(_) | Self::NoSuchProcess { .. } | Self::Report(_) | Self::Predict(_)
            | Self::Edits { .. } | Self::NotMeasured { .. } | Self::ManyJobs { .. }
            | Self::SameRank { .. } | Self::SameHost { .. } | Self::NoOrder { .. }
            | Self::NoProcess { .. } | Self::Kernel(_) | Self::WorkSizes { .. } | Self::Tune { .. }
            | Self::NoDevice { .. } | Self::NoSuchStep { .. } | Self::MovedCommand { .. }
            | Self::Trace(_) | Self::Data(_)
            | Self::Train(_) | Self::Io { .. } | Self::Output(_) | Self::OnRank { .. }
            | Self::Thread { .. } | Self::NoCertificate { .. } | Self::Program { .. }
            | Self::Slurm { .. } => return None,
        };
        Some(hint)
    }

    fn config_hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotAConfig { path } => format!(
                "rowmill init {} writes a configuration that trains on it",
                quoted(&path.display().to_string())
            ),
            Self::ConfigExists { .. } => {
                "replace it with --force, or write another with --output FILE".into()
            }
            Self::InitOfStream => "write it to a file first: … | cat > FILE".into(),
            Self::InitOfPrepared { .. } => "give the files it was prepared from".into(),
            Self::NoProposal { source: ProposalError::NoLabel { .. }, .. } => {
                "name it with --label COLUMN".into()
            }
            Self::NoProposal { source: ProposalError::NoClasses { .. }, .. } => {
                "choose another with --label COLUMN, or make it 0 and 1 in the file".into()
            }
            Self::NoSuchKey { near, .. } if near.is_empty() => {
                "rowmill explain config lists the keys".into()
            }
            Self::NoSuchKey { near, .. } => format!("did you mean {}?", near.join(" or ")),
            Self::RowsUnknown { .. } => {
                "give them with --set model.tables.NAME.rows=N for this command".into()
            }
            Self::NothingToResume { .. } => {
                "give the folder of a run with --run, as printed at its end".into()
            }
            Self::NoMetrics { .. } => {
                "give the folder of a run, as `rowmill train --run FOLDER` leaves it; pages of traces \
                 are made by rowmill trace report"
                    .into()
            }
            Self::OtherArithmetic { .. } => {
                "resume it on such a CPU, or begin a new run with --run, which may start from this \
                 one's weights: rowmill checkpoint export, then import"
                    .into()
            }
            Self::ResumeOfNothing => "rowmill train --resume --run RUN".into(),
            _ => return None,
        };
        Some(hint)
    }

    fn processes_hint(&self) -> Option<String> {
        let hint = match self {
            Self::Torchrun { size } => format!("start it with mpirun -n {size} rowmill train …"),
            Self::NoMpi { .. } => {
                "install Open MPI (Debian: openmpi-bin) or MPICH (mpich), or name a library with \
                 --mpi-library FILE"
                    .into()
            }
            Self::OtherLauncher { .. } => {
                "start it with the mpirun that belongs to the library, or name the library of this \
                 one with --mpi-library FILE"
                    .into()
            }
            Self::MpiStart { .. } => "rowmill doctor mpi says what there is".into(),
            Self::OneRank { .. } => {
                "leave the option out, or ask for more ranks with --ranks N".to_owned()
            }
            Self::OtherRanks { .. } => {
                "leave --ranks out, and give a --plan for as many ranks as processes".into()
            }
            _ => return None,
        };
        Some(hint)
    }

    fn file_hint(&self) -> Option<String> {
        let hint = match self {
            Self::Plan { .. } | Self::PlanFile { .. } => {
                "rowmill train --help shows the form of a plan"
            }
            Self::EditsFile { .. } => "rowmill predict what-if --help shows the form of edits",
            Self::CalibrationFile { .. } => {
                "write a new one: rowmill predict calibrate PATH --output FILE"
            }
            Self::ExecutionTrace { .. } => {
                "rowmill trace execution-trace PATH shows what a file holds; record it again where \
                 it is cut off"
            }
            Self::Kernels { source: KernelError::OtherCpu { .. }, .. } => {
                "learn from each machine apart, into a folder of its own"
            }
            Self::Kernels { source: KernelError::Column { .. }, .. } => {
                "rowmill predict learn --help lists the columns of a table"
            }
            Self::OtherMachine { .. } => {
                "calibrate on this machine, or use it all the same with --force"
            }
            _ => return None,
        };
        Some(hint.into())
    }

    fn output_hint(&self) -> Option<String> {
        let hint = match self {
            Self::Alignment { .. } => {
                "the scores so far are out of place; remove empty lines and line breaks within fields".into()
            }
            Self::Exists { .. } => "remove it or choose another name".into(),
            Self::OutputIsSpecial { .. } => "write a file and read it from there".into(),
            Self::OutputIsInput { .. } | Self::OutputBelowFile { .. } => {
                "choose another place to write".into()
            }
            Self::OutputIsFolder { path } => {
                format!("add the name of a file: {}", path.join("NAME").display())
            }
            Self::NoOutputFolder { folder, .. } => {
                format!("make it first: mkdir -p {}", folder.display())
            }
            _ => return None,
        };
        Some(hint)
    }

    fn table_hint(&self) -> Option<String> {
        let hint = match self {
            Self::ParquetToStdout => "add --output FILE.parquet".into(),
            Self::SeveralRanks { .. } => {
                "rowmill trace merge puts all ranks into one file; --to parquet writes tables of all"
                    .into()
            }
            Self::ClassPattern { .. } => "for example --class communication=my_all_to_all".into(),
            Self::UnknownFormat { .. } => "or say it with --to kineto|perfetto|parquet".into(),
            Self::Serve { .. } => "leave --port out for a free one".into(),
            Self::NoSuchRule { .. } => "rowmill explain lists the rules".into(),
            Self::RulesFile { .. } => {
                "rowmill trace findings --help shows the form of a rules file".into()
            }
            _ => return None,
        };
        Some(hint)
    }

    fn input_hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoData { config } => {
                return Some(format!(
                    "give files with --train FILE…, or try it on generated rows: rowmill train \
                     {config} --synthetic 1000000"
                ));
            }
            Self::NoEvaluation => {
                "set data.hold_out, or name labelled files: rowmill eval RUN --data FILE…, rowmill \
                 train CONFIG --evaluation FILE…"
            }
            Self::MixedInputs { .. } => {
                "prepare all files into one folder: rowmill data convert FILE… --config CONFIG \
                 --output FOLDER"
            }
            Self::NoSuchInput { path } if !path.is_absolute() => {
                "paths are relative to the folder the command runs in"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    fn capture_hint(&self) -> Option<String> {
        let hint = match self {
            Self::NobodyAsked { .. } => {
                "start the job with KINETO_USE_DAEMON=1; rowmill doctor capture says what a running \
                 one lacks"
            }
            Self::NoToken => {
                "name the file with the secret that the agents know: --token-file FILE; this host's own \
                 agent is asked without --hosts"
            }
            Self::EmptyToken { .. } => {
                "write the secret into it, as the agents' configuration has it, readable for you alone"
            }
            Self::Socket(fleet::ipc::socket::SocketError::Taken { .. }) => {
                "another rowmill capture or dynolog runs; end it, or use a folder of your own: \
                 --socket-dir FOLDER here, KINETO_IPC_SOCKET_DIR=FOLDER in the job"
            }
            Self::Socket(fleet::ipc::socket::SocketError::Unsafe(_)) => {
                "another user could exchange the socket: capture as the folder's own user, or give the \
                 folder mode 0755 or 1777"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    fn room_hint(&self) -> Option<String> {
        let hint = match self {
            Self::Memory { offer, .. } | Self::DeviceMemory { offer, .. } => offer.to_string(),
            Self::BenchMemory { .. } => "ask for fewer --tables, --rows or --dim".into(),
            Self::BenchDisk { .. } => {
                "ask for fewer --megabytes, or name a folder on another disk in TMPDIR".into()
            }
            Self::Disk { .. } => "free some space, or choose another folder with --folder".into(),
            _ => return None,
        };
        Some(hint)
    }

    fn checkpoint_hint(&self) -> Option<String> {
        let hint = match self {
            Self::RunExists { .. } => {
                "add --resume to go on from there, or choose another folder with --run FOLDER"
                    .into()
            }
            Self::NoCheckpoint { .. } => {
                "give RUN or RUN/checkpoints/step-…, as printed at the end of training".into()
            }
            Self::NoneWhole { .. } => {
                "start again in another folder with --run, or bring back a copy".into()
            }
            Self::NotOfRun { .. } => {
                "give one of RUN/checkpoints/step-…, or name the checkpoint's own run with --run"
                    .into()
            }
            Self::NotScored { .. } => {
                "the model has diverged, or these rows have numbers that are not finite; score with an \
                 earlier checkpoint, or mend the rows"
                    .into()
            }
            Self::NoTransforms { .. } => {
                "import it again with --data FOLDER, or train it with --resume".into()
            }
            Self::DamagedCheckpoint { previous: Some(previous), .. } => {
                format!(
                    "the previous one is whole; use it with: --resume-from {}",
                    previous.display()
                )
            }
            Self::DamagedCheckpoint { previous: None, .. } => {
                "no earlier checkpoint is whole; start again in another folder with --run".into()
            }
            Self::Damaged { .. } => "go on from a whole one with --resume-from CHECKPOINT".into(),
            _ => return None,
        };
        Some(hint)
    }
}

/// Whether `verb`, which reads no configuration, has every option that `hint` names, and `hint`
/// names no key. What follows `rowmill` in a hint is a command of its own.
fn is_applicable(hint: &str, verb: &clap::Command) -> bool {
    let own = hint.split("rowmill ").next().unwrap_or(hint);
    let has = |name: &str| verb.get_arguments().any(|option| option.get_long() == Some(name));
    let names_key = ["data.", "[data]"].iter().any(|key| own.contains(key));
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let pieces: Vec<&str> = own.split("--").collect();
    let options = pieces.windows(2).filter(|pair| !pair[0].ends_with(is_letter));
    let mut names = options.filter_map(|pair| pair[1].split(|c: char| !is_letter(c)).next());
    !names_key && names.all(has)
}

/// What helps where files are read without a configuration.
fn hint_without_config(error: &data::Error) -> Option<&'static str> {
    let hint = match error {
        data::Error::TooManyMalformed { .. } | data::Error::NoGoodRows { .. } => {
            "correct the rows, or name what parts their fields with --delimiter TEXT"
        }
        data::Error::OtherForm { .. } => "give files of one format; describe others apart",
        data::Error::MissingColumn { .. } => {
            "give files with the same columns; describe others apart"
        }
        data::Error::Parquet { .. } => "the file is cut short, or not Parquet; write it again",
        _ => return None,
    };
    Some(hint)
}

/// How labels come to be all the same.
fn label_hint(label: f32, positive: &[String]) -> String {
    if positive.is_empty() {
        return "data.label names the column; if the rows are sorted by it, shuffle them, or name \
                files with --evaluation instead of holding out the end"
            .to_owned();
    }
    let whose = if label == 0.0 { "no row's" } else { "every row's" };
    format!(
        "{whose} label is one of data.label.positive ({}); compare the spelling with the file's",
        positive.join(", ")
    )
}

fn known_configs(name: &str, known: &[&'static str]) -> String {
    let near = known.iter().min_by_key(|known| distance(name, known));
    let list = known.join(", ");
    match near {
        Some(near) if distance(name, near) <= 3 => {
            format!("did you mean {near}? ready-made are {list}")
        }
        _ => format!("give the path of a TOML file, or one of {list}"),
    }
}

fn config_hint(error: &ConfigError) -> Option<String> {
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
            "rowmill explain config KEY says what a key may be; docs/configuration.md has them all"
        }
        ConfigError::Shape { .. } | ConfigError::Syntax { .. } => return None,
    };
    Some(hint.to_owned())
}

const ID_OUT_OF_RANGE: &str = "correct the id, give the table more rows, or set out_of_range = \"modulo\" or \
     \"missing\" for the column";
const IDS_OF_BOTH_SIGNS: &str = "where -1 stands for a missing id, set missing = -1 for the column; ids that are hashes \
     can be read with kind = \"string\"";

fn data_hint(error: &data::Error) -> Option<String> {
    if let Some(hint) = remote_hint(error).or_else(|| form_or_size_hint(error)) {
        return Some(hint);
    }
    let hint = match error {
        data::Error::Malformed(_) => "without --strict such lines are counted and left out",
        data::Error::TooManyMalformed { rows, losses, read, .. } => {
            let share = Share::from_parts(losses.malformed_lines, rows + losses.malformed_lines).0;
            let percent = if read.is_some() { 100.0 } else { (100.0 * share).ceil() };
            return Some(format!(
                "correct the rows, or what [data] says of them; --malformed-max {percent}% would \
                 leave them out"
            ));
        }
        data::Error::Codec { .. } => {
            "write it again, in pandas: df.to_parquet(FILE, compression=\"zstd\")"
        }
        data::Error::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "the user that runs rowmill needs the right to read it"
        }
        data::Error::IdOutOfRange { .. } => ID_OUT_OF_RANGE,
        data::Error::IdsOfBothSigns { .. } => IDS_OF_BOTH_SIGNS,
        data::Error::NoGoodRows { .. } => {
            "do data.format and data.columns describe this file? compare with: rowmill data stats"
        }
        data::Error::MissingColumn { available, .. } => column_hint(available),
        data::Error::Parquet { .. } => {
            "the file is cut short, or not Parquet; data.format says what it is read as"
        }
        data::Error::Read { source, .. } if is_damage(source) => {
            "the file is cut short or damaged; copy it again"
        }
        data::Error::Write { source, .. } | data::Error::Io { source, .. } => {
            return disk_hint(source);
        }
        data::Error::OtherPreparation { .. } => {
            "use the inputs and configuration of that one, or begin anew with --restart"
        }
        data::Error::InputChanged { .. } => "restore the input, or begin anew with --restart",
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
            "the data or its columns changed since; use the same, or begin a new run with --run"
        }
        data::Error::Stdin { .. } => "write it to a file first: … | cat > FILE",
        #[rustfmt::skip]
        data::Error::Open { .. } | data::Error::Read { .. } | data::Error::EmptyInput { .. }
        | data::Error::RecordTooLong { .. } | data::Error::UnclosedQuote { .. }
        | data::Error::AmbiguousColumn { .. } | data::Error::ColumnType { .. }
        | data::Error::Config { .. } | data::Error::Array { .. } | data::Error::Reuse { .. }
        | data::Error::Synthetic { .. } | data::Error::LoaderStopped { .. }
        | data::Error::OtherForm { .. } | data::Error::Archive { .. }
        | data::Error::CarriageReturns { .. } | data::Error::EmptyFolder { .. }
        | data::Error::HeaderOnly { .. }
        | data::Error::TableTooSmall { .. } | data::Error::Disk { .. }
        | data::Error::VocabularyMemory { .. } => return None,
    };
    Some(hint.to_owned())
}

/// The hint for files in an unexpected form, and for too little memory or disk.
fn form_or_size_hint(error: &data::Error) -> Option<String> {
    let hint = match error {
        data::Error::OtherForm { form, .. } => return Some(conversion_hint(form)),
        data::Error::Archive { .. } => "unpack it and give the files",
        data::Error::CarriageReturns { .. } => "convert the line ends: tr '\\r' '\\n' < FILE > NEW",
        data::Error::EmptyFolder { .. } => "give a folder with files; hidden ones do not count",
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

/// How to make of a file of this form what can be read.
fn conversion_hint(form: &str) -> String {
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
    format!("write it as Parquet, in pandas: pd.{read}.to_parquet(NEW)")
}

/// The hint for an object in a remote store.
fn remote_hint(error: &data::Error) -> Option<String> {
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
            "for sign-in and roles: eval \"$(aws configure export-credentials --format env)\""
        }
        P::Status { .. } | P::Credentials(_) | P::Answer(_) => return None,
    };
    Some(hint.to_owned())
}

/// What kind of file gives these columns where another was expected.
fn column_hint(available: &[String]) -> &'static str {
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

/// Whether the bytes are at fault, rather than the access to them.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}

fn disk_hint(error: &io::Error) -> Option<String> {
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

fn train_hint(error: &train::Error) -> Option<String> {
    let hint = match error {
        train::Error::Data(error) => return data_hint(error),
        train::Error::Io { source, .. } => return disk_hint(source),
        train::Error::TensorFile { path, .. } if !path.with_file_name("manifest.json").exists() => {
            "expected a file as safetensors.torch.save_file or torch.save writes it"
        }
        train::Error::Pickled { .. } => {
            "save the weights alone, in Python: torch.save(model.state_dict(), \"weights.pt\")"
        }
        train::Error::Checksum { .. }
        | train::Error::FileLength { .. }
        | train::Error::TensorFile { .. } => {
            "find a whole checkpoint with: rowmill checkpoint verify RUN"
        }
        train::Error::OtherModel { .. } | train::Error::StateKind { .. } => {
            "resume with the configuration that wrote the checkpoint, or begin a new run with --run"
        }
        train::Error::OtherRowScope { .. } => {
            "keep to the plan that wrote the checkpoint (--ranks, --sharding, --plan), or accept the \
             other rule with --accept-rule-change, whose help says what becomes of the state"
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
        train::Error::RunBusy { .. } => "wait for it, or choose another folder with --run FOLDER",
        train::Error::ManifestVersion { .. } => "read it with the version of rowmill that wrote it",
        #[rustfmt::skip]
        train::Error::Config { .. } | train::Error::Manifest { .. }
        | train::Error::TensorMissing { .. } | train::Error::TensorUnexpected { .. }
        | train::Error::TensorShape { .. } | train::Error::Uncovered { .. }
        | train::Error::RowOutOfRange { .. } | train::Error::BatchShape { .. }
        | train::Error::Device(_) | train::Error::Communication(_)
        | train::Error::OtherRequest { .. } | train::Error::NotShared { .. }
        | train::Error::NoBatch { .. } | train::Error::Reply { .. } | train::Error::Trace(_)
        | train::Error::StateDict { .. } | train::Error::NotExpressible { .. } => return None,
    };
    Some(hint.to_owned())
}

fn trace_hint(error: &trace::Error) -> Option<String> {
    use trace::Error as E;
    let hint = match error {
        E::NotATrace { reason, .. } if reason.contains("execution trace") => {
            "rowmill trace execution-trace reads those"
        }
        E::NotATrace { reason, .. } if reason.contains("Perfetto trace") => {
            "convert or merge the recording again: a .pftrace is read only whole"
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
        E::Write { source, .. } => return disk_hint(source),
        E::Read { .. }
        | E::NothingRecorded { .. }
        | E::StepNotRecorded { .. }
        | E::Empty { .. }
        | E::Cancelled
        | E::Ranks { .. }
        | E::NoText { .. } => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::known_configs;

    #[test]
    fn the_nearest_name_is_offered() {
        let known = ["adult-income", "dlrm-default"];
        assert_eq!(
            known_configs("dlrm-defualt", &known),
            "did you mean dlrm-default? ready-made are adult-income, dlrm-default"
        );
        assert_eq!(
            known_configs("xyz", &known),
            "give the path of a TOML file, or one of adult-income, dlrm-default"
        );
    }
}
