//! The agent's control socket on this host: its location, how the agent binds it, and how a command
//! connects to it.
//!
//! PyTorch's clients bind their sockets beside the socket of the daemon, so every user may write to
//! that folder. The agent's socket is in a subfolder that only the agent's user can write.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};

use super::socket::{SocketError, SocketPlace, is_foreign, remove_foreign};
use crate::process::own_uid;
use crate::untrusted::{MissingFolder, OwnFolder};

/// Names of the subfolder in the socket folder, and of the control socket in that subfolder.
const FOLDER: &str = "rowmill";
const FILE: &str = "agent";
/// Name of the control socket in the abstract namespace, used without a socket folder.
const NAME: &str = "rowmill-agent";

/// Returns the path of the control socket in a socket folder.
pub fn file(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join(FILE)
}

/// Formats the location of the socket for messages.
pub fn words(place: &SocketPlace) -> String {
    match place {
        SocketPlace::Abstract => format!("@{NAME}"),
        SocketPlace::Folder(folder) => file(folder).display().to_string(),
    }
}

/// Binds the control socket. If another user created an entry at the place of its folder, root's
/// agent removes that entry.
///
/// # Errors
/// Fails if another agent answers at the socket, if other users could change the folder, or if the
/// operating system refuses.
pub fn bind(place: &SocketPlace) -> Result<UnixListener, SocketError> {
    let SocketPlace::Folder(folder) = place else {
        let place = format!("@{NAME}");
        let address = SocketAddr::from_abstract_name(NAME);
        let bound = address.and_then(|address| UnixListener::bind_addr(&address));
        return bound.map_err(|source| SocketError::open(place, source));
    };
    let shared = OwnFolder::open_shared(folder, MissingFolder::Refuse)?;
    remove_foreign(&shared, FOLDER)?;
    let own = OwnFolder::open(&folder.join(FOLDER), MissingFolder::Make(0o755))?;
    let path = file(folder);
    if UnixStream::connect(&path).is_err() {
        // Nobody answers, so the socket file was left by an agent that was killed.
        own.remove_file(FILE);
    }
    let open = |source| SocketError::open(path.display().to_string(), source);
    let listener = UnixListener::bind(&path).map_err(open)?;
    // Every user may connect, because the kernel reports the user id of each caller, and the agent
    // checks it for each request.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(open)?;
    Ok(listener)
}

/// Checks that the folder of the socket can be created or used.
///
/// # Errors
/// The errors of [`bind`], except that another agent may be running.
pub fn check(folder: &Path) -> Result<(), SocketError> {
    let shared = OwnFolder::open_shared(folder, MissingFolder::Refuse)?;
    if own_uid() == 0 && is_foreign(&shared, FOLDER) {
        return Ok(());
    }
    match OwnFolder::open(&folder.join(FOLDER), MissingFolder::Refuse) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Removes the socket and its folder when an agent ends.
pub fn remove(folder: &Path) {
    let _ = fs::remove_file(file(folder));
    let _ = fs::remove_dir(folder.join(FOLDER));
}

/// Connects to the agent and checks that it runs as root or as our own user, because requests and
/// answers must not reach other users.
///
/// # Errors
/// Fails if nobody answers, or if the program that answers belongs to another user.
pub fn connect(place: &SocketPlace) -> io::Result<UnixStream> {
    let (stream, path) = match place {
        SocketPlace::Folder(folder) => {
            let path = file(folder);
            (UnixStream::connect(&path)?, path.display().to_string())
        }
        SocketPlace::Abstract => {
            let address = SocketAddr::from_abstract_name(NAME)?;
            (UnixStream::connect_addr(&address)?, format!("@{NAME}"))
        }
    };
    let uid = getsockopt(&stream, sockopt::PeerCredentials)?.uid();
    if uid != 0 && uid != own_uid() {
        let own = own_uid();
        let own = if own == 0 { String::new() } else { format!(" or of user {own}") };
        let text = format!("{path}: expected an agent of root{own}, got one of user {uid}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::{bind, connect, file};
    use crate::ipc::socket::{Socket, SocketError, SocketPlace};

    /// Id of an unprivileged user, as whom the tests run their attacks.
    const SOMEBODY: u32 = 54_321;

    /// Creates a folder with the permissions `mode`, to which every user may write, like
    /// `/run/kineto`.
    fn open_folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        folder
    }

    /// Runs `script` as another user in a process that stays alive. If that is impossible, the test
    /// is reported as skipped.
    fn somebody(script: &str, folder: &Path, ready: &Path) -> Option<Child> {
        let attack = "an attack of another user";
        if !testkit::has_root(attack) || !testkit::has_program("python3", attack) {
            return None;
        }
        let script = format!(
            "import os, socket, sys, time\nos.setuid({SOMEBODY})\nos.chdir(sys.argv[1])\n{script}\ntime.sleep(600)"
        );
        let mut python = Command::new("python3");
        let python = python.args(["-c", &script]).arg(folder).stderr(Stdio::null());
        let child = python.spawn().unwrap();
        while !ready.exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Some(child)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn squatted_names_do_not_prevent_root_from_starting() {
        let folder = open_folder(0o1777);
        let place = SocketPlace::Folder(folder.path().to_owned());
        let script = "os.makedirs('rowmill/deep')\ns = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\ns.bind('rowmill/agent')\ns.listen()\nd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\nd.bind('dynolog')";
        let Some(child) = somebody(script, folder.path(), &folder.path().join("dynolog")) else {
            return;
        };
        // A client must refuse to connect to the socket of the other user.
        let refused = connect(&place).unwrap_err().to_string();
        assert!(refused.contains("expected an agent of root"), "{refused}");
        let _socket = Socket::bind(&place).unwrap();
        let _listener = bind(&place).unwrap();
        assert!(connect(&place).is_ok());
        end(child);
        // The names of a running agent of our own must not be taken over.
        assert!(matches!(Socket::bind(&place), Err(SocketError::Taken { .. })));
        assert!(bind(&place).is_err());
    }

    #[test]
    fn socket_folder_with_replaceable_entries_is_an_error() {
        let folder = open_folder(0o777);
        let place = SocketPlace::Folder(folder.path().to_owned());
        let refused = Socket::bind(&place).unwrap_err().to_string();
        assert!(refused.contains("expected a folder that only its owner may write"), "{refused}");
        assert!(bind(&place).is_err() && !file(folder.path()).exists());
        if !testkit::has_root("a folder of another user") {
            return;
        }
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        chown(folder.path(), Some(SOMEBODY), None).unwrap();
        let refused = Socket::bind(&place).unwrap_err().to_string();
        assert!(refused.contains(&format!("got one of user {SOMEBODY}")), "{refused}");
    }
}
