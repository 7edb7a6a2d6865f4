//! Which MPI libraries are looked for, in which order, and what they turn out to be.

use super::launcher::LauncherKind;

/// How a library is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Open MPI's: handles are addresses of the library's objects.
    OpenMpi,
    /// MPICH's, also that of Intel MPI, MVAPICH and Cray MPICH: handles are integers.
    Mpich,
    /// That of the MPI 5 standard: handles are small numbers as wide as an address.
    Standard,
}

impl Interface {
    /// The interface of the library of this name that says this of itself. One library may come
    /// with its own and the standard interface, under two names.
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

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Standard => "MPI 5 ABI",
        }
    }
}

/// Shared libraries by the name of their interface's version. `libmpi.so` alone is not among them:
/// it is there only with development packages, and may be any.
const OPEN_MPI: &[&str] = &["libmpi.so.40"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12"];
const STANDARD: &[&str] = &["libmpi_abi.so.0"];

/// The libraries to try: those of the launcher's own kind first.
#[must_use]
pub fn candidates(launcher: Option<LauncherKind>) -> Vec<&'static str> {
    let order = match launcher {
        Some(LauncherKind::Hydra | LauncherKind::SlurmPmi2) => [MPICH, OPEN_MPI, STANDARD],
        _ => [OPEN_MPI, MPICH, STANDARD],
    };
    order.concat()
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The dynamic linker does not open it.
    #[error("{library}: {reason}")]
    Absent {
        /// As it was asked for.
        library: String,
        /// What the linker said.
        reason: String,
    },
    /// It is none of those known here.
    #[error("{library}: expected Open MPI, MPICH or one with the MPI 5 ABI, got {version:?}")]
    Unknown {
        /// As it was asked for.
        library: String,
        /// What it says of itself.
        version: String,
    },
    /// It lacks a function.
    #[error("{library}: has no {symbol}")]
    NoSymbol {
        /// As it was asked for.
        library: String,
        symbol: String,
    },
}

impl OpenError {
    pub(super) fn absent(library: &str, reason: &str) -> Self {
        // The linker begins with the name too.
        let own = format!("{library}: ");
        let reason = reason.strip_prefix(&own).unwrap_or(reason).to_owned();
        Self::Absent { library: library.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::Interface;

    #[test]
    fn libraries_are_known_by_what_they_say() {
        let mpich = "MPICH Version:      4.0.2\nMPICH Release date:";
        for (name, version, expected) in [
            ("libmpi.so.40", "Open MPI v4.1.4, package: Debian", Some(Interface::OpenMpi)),
            ("libmpich.so.12", mpich, Some(Interface::Mpich)),
            ("/opt/mpich/lib/libmpi_abi.so.0", mpich, Some(Interface::Standard)),
            ("libmpi.so.12", "Intel(R) MPI Library 2021.10 for Linux* OS", Some(Interface::Mpich)),
            ("libmpi.so.40", "Another MPI 1.0", None),
            ("libmpi_abi.so.0", "", None),
        ] {
            assert_eq!(Interface::recognise(name, version), expected, "{version}");
        }
    }
}
