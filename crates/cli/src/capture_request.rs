//! The parts of a trace request that `rowmill capture` and `rowmill fleet trace` share: the socket,
//! the output folder and the recorded details.

use std::path::{Path, PathBuf};
use std::{fs, io};

use fleet::ipc::config::{Detail, Switch};
use fleet::ipc::socket::SocketPlace;
use setup::error::{Error, UsageError};

use crate::args::With;

/// The socket at which processes poll for trace requests. The socket is in the folder `given`, or
/// else in the folder that `KINETO_IPC_SOCKET_DIR` names. If neither is set, the abstract socket is
/// used.
pub fn socket_place(given: Option<&Path>) -> SocketPlace {
    let own = || std::env::var_os(fleet::ipc::socket::VARIABLE).map(PathBuf::from);
    let folder = given.map(Path::to_owned).or_else(own).filter(|path| !path.as_os_str().is_empty());
    folder.map_or(SocketPlace::Abstract, |folder| SocketPlace::in_folder(&folder))
}

/// Checks that a folder is empty or does not exist yet.
///
/// # Errors
/// [`UsageError::Exists`] if the folder contains files or cannot be listed.
pub fn check_empty_folder(folder: &Path) -> Result<(), Error> {
    let is_free = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        // A folder that cannot be listed may contain anything, so it counts as occupied.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if is_free { Ok(()) } else { Err(UsageError::Exists { path: folder.to_owned() }.into()) }
}

/// Converts the values of `--with` into the switches that Kineto understands.
pub fn trace_detail(with: &[With]) -> Detail {
    let switch = |what| if with.contains(&what) { Switch::On } else { Switch::Off };
    Detail {
        shapes: switch(With::Shapes),
        stacks: switch(With::Stacks),
        flops: switch(With::Flops),
        modules: switch(With::Modules),
        memory: switch(With::Memory),
    }
}
