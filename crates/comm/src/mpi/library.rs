//! The names of MPI libraries to try, their order, and the detection of their binary interface.

use super::launcher::LauncherKind;

/// The binary interface of an MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Open MPI, whose handles are addresses of the library's objects.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH and Cray MPICH, whose handles are integers.
    Mpich,
    /// The MPI 5 standard, whose handles are small numbers as wide as an address.
    Standard,
}

impl Interface {
    /// Detects the interface from a library's name and version text. One library may exist under
    /// two names, one with its own interface and one with the standard interface.
    #[must_use]
    pub fn recognise(name: &str, version: &str) -> Option<Self> {
        let starts = |names: &[&str]| names.iter().any(|name| version.starts_with(name));
        let mpich = ["MPICH", "Intel(R) MPI", "MVAPICH", "MPI VERSION    : CRAY MPICH"];
        let is_known = starts(&["Open MPI"]) || starts(&mpich);
        if is_known && name.contains("libmpi_abi.so") {
            return Some(Self::Standard);
        }
        if starts(&["Open MPI"]) {
            return Some(Self::OpenMpi);
        }
        starts(&mpich).then_some(Self::Mpich)
    }

    /// Returns the name of the interface in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Standard => "MPI 5 ABI",
        }
    }
}

/// Names of shared libraries with the version of their interface. Plain `libmpi.so` is missing,
/// because it exists only with development packages and may be any library.
const OPEN_MPI: &[&str] = &["libmpi.so.40"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12"];
const STANDARD: &[&str] = &["libmpi_abi.so.0"];

/// Returns the libraries to try. Libraries that match the launcher come first.
#[must_use]
pub fn candidates(launcher: Option<LauncherKind>) -> Vec<&'static str> {
    let order = match launcher {
        Some(LauncherKind::Hydra | LauncherKind::SlurmPmi2) => [MPICH, OPEN_MPI, STANDARD],
        _ => [OPEN_MPI, MPICH, STANDARD],
    };
    order.concat()
}

/// The reason why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The dynamic linker cannot open the library.
    #[error("{library}: {reason}")]
    Absent { library: String, reason: String },
    /// The binary interface of the library is unknown.
    #[error("{library}: expected Open MPI, MPICH or one with the MPI 5 ABI, got {version:?}")]
    Unknown { library: String, version: String },
    /// The library lacks a function.
    #[error("{library}: has no {symbol}")]
    NoSymbol { library: String, symbol: String },
}

impl OpenError {
    pub(super) fn absent(library: &str, reason: &str) -> Self {
        // The linker's message also begins with the name, so remove it.
        let own = format!("{library}: ");
        let reason = reason.strip_prefix(&own).unwrap_or(reason).to_owned();
        Self::Absent { library: library.to_owned(), reason }
    }
}
