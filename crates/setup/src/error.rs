//! Errors of commands, with their hints and exit codes. [`UsageError`] is for errors that the user
//! corrects, and [`RunError`] for work that the machine prevented. Each variant is defined together
//! with its message and its hint.

use std::io;
use std::path::PathBuf;

use data::RemoteProblem;

mod define;
mod library_hint;
mod run;
mod usage;

pub use run::RunError;
pub use usage::UsageError;

/// Exit code of a run that Ctrl-C stopped after it had saved its state.
pub const EXIT_INTERRUPTED: u8 = 130;
/// Exit code of [`RunError`], and of commands whose result is negative.
pub const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
/// Exit code of `--fail-on` if findings reach its threshold.
pub const EXIT_FOUND: u8 = 3;
/// Exit code of `findings --fail-on` and `doctor` if parts of the recording are missing.
pub const EXIT_BROKEN: u8 = 4;

/// Cause for which a command failed, with the rank that failed if there are several.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Run(#[from] RunError),
    /// An error of one rank among several. `peer` ends the message with the host of the rank that
    /// the error names, or is empty.
    #[error("rank {rank} on {host}: {source}{peer}")]
    OnRank { rank: u32, host: String, peer: String, source: Box<Self> },
}

impl Error {
    /// Returns a function for `map_err` that converts an I/O error to [`RunError::Io`].
    pub fn io(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| RunError::Io { path, doing, source }.into()
    }

    /// Creates the error for a standard output that cannot be written.
    pub fn output(source: io::Error) -> Self {
        RunError::Output { source }.into()
    }

    /// Returns the exit code with which the process ends.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Run(RunError::Interrupted) => EXIT_INTERRUPTED,
            Self::Run(_) => EXIT_FAILED,
            Self::OnRank { source, .. } => source.exit_code(),
        }
    }

    /// Returns whether the reader of standard output closed it, as in `rowmill … | head`. A closed
    /// output does not count as a failure.
    pub fn is_closed_output(&self) -> bool {
        matches!(
            self,
            Self::Run(RunError::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe
        )
    }

    /// Returns the hint for a user of the command `verb`. Commands that read files without a
    /// configuration get no hint that names a key or an option which they do not have.
    pub fn applicable_hint(&self, verb: &clap::Command) -> Option<String> {
        let has_config = verb.get_arguments().any(|argument| {
            ["checkpoint", "config", "set", "run", "resume"].contains(&argument.get_id().as_str())
        });
        match self {
            Self::Usage(UsageError::Data { source }) | Self::Run(RunError::Data { source })
                if !has_config =>
            {
                let plain = library_hint::suggest_without_config(source).map(ToOwned::to_owned);
                [self.hint(), plain].into_iter().flatten().find(|hint| is_applicable(hint, verb))
            }
            _ => self.hint(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Usage(error) => error.hint(),
            Self::Run(error) => error.hint(),
            Self::OnRank { source, .. } => source.hint(),
        }
    }
}

/// Ignores that a reader closed standard output early, for commands whose exit code carries the
/// result.
pub fn unless_closed(output: Result<(), Error>) -> Result<(), Error> {
    match output {
        Err(error) if error.is_closed_output() => Ok(()),
        other => other,
    }
}

/// Returns whether `verb` has every option that `hint` names, and `hint` names no key of a
/// configuration. Text after `rowmill` is a separate command line and is not checked.
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

impl From<data::Error> for Error {
    fn from(error: data::Error) -> Self {
        let problem = match &error {
            data::Error::Open { source, .. } => RemoteProblem::find_in(source),
            _ => None,
        };
        match problem {
            // In these cases the address or the credentials are wrong, rather than the store being
            // unreachable.
            Some(
                RemoteProblem::Address { .. }
                | RemoteProblem::NotFound { .. }
                | RemoteProblem::Denied { .. }
                | RemoteProblem::Credentials(_),
            ) => UsageError::Data { source: error }.into(),
            _ => RunError::Data { source: error }.into(),
        }
    }
}

impl From<train::Error> for Error {
    fn from(error: train::Error) -> Self {
        match error {
            train::Error::OtherRequest { .. } | train::Error::NotShared { .. } => {
                UsageError::Train { source: Box::new(error) }.into()
            }
            _ => RunError::Train { source: error }.into(),
        }
    }
}

impl From<report::Error> for Error {
    fn from(error: report::Error) -> Self {
        match error {
            report::Error::NoSuchStep { .. } => UsageError::Report { source: error }.into(),
            _ => RunError::Report { source: error }.into(),
        }
    }
}

impl From<serde_json::Error> for Error {
    fn from(source: serde_json::Error) -> Self {
        RunError::Json { source }.into()
    }
}

macro_rules! from_library {
    ($($source:ty => $target:ident::$variant:ident),* $(,)?) => {
        $(impl From<$source> for Error {
            fn from(source: $source) -> Self {
                $target::$variant { source }.into()
            }
        })*
    };
}

from_library! {
    analyze::Error => UsageError::Analyze,
    predict::Error => UsageError::Predict,
    kernel_model::Error => UsageError::Kernel,
    device::Error => RunError::Device,
    trace::Error => RunError::Trace,
    fleet::ipc::socket::SocketError => RunError::Socket,
}

impl From<plan::Error> for Error {
    fn from(source: plan::Error) -> Self {
        match source {
            plan::Error::Ended => RunError::Interrupted.into(),
            _ => UsageError::PlanSearch { source: Box::new(source) }.into(),
        }
    }
}

impl From<plan::torchrec::TorchrecError> for Error {
    fn from(source: plan::torchrec::TorchrecError) -> Self {
        UsageError::TorchrecPlanner { source: Box::new(source) }.into()
    }
}
