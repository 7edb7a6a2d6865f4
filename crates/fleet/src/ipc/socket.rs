//! The Unix datagram socket to which processes send their polls, either in the abstract namespace
//! or in a folder.
//!
//! The kernel attaches the process and user id of the sender, translated to our namespace. A sender
//! cannot forge these ids.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrLike, UnixAddr, UnixCredentials, recvmsg, sa_family_t,
    sendto, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;

use crate::process::own_uid;
use crate::untrusted::{MissingFolder, OwnFolder, UntrustedError};

/// Name of the socket to which PyTorch sends. In the abstract namespace, the terminating zero is
/// part of the name.
pub(crate) const NAME: &str = "dynolog";
/// The environment variable of the polling process that names the folder.
pub const VARIABLE: &str = "KINETO_IPC_SOCKET_DIR";
/// Maximum size of a message in bytes. A poll has 40 + 16 bytes, and 4 bytes for each of about a
/// dozen processes.
const MESSAGE_MAX: usize = 4096;
/// Maximum number of users that have a separate socket for answers at the same time.
const SPARES_MAX: usize = 64;
/// Maximum length of the socket folder's path. The path of a socket has at most 108 bytes, and a
/// client's socket needs `/`, 52 bytes and a terminating zero after the folder.
pub const FOLDER_MAX: usize = 54;

/// The location of the daemon's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketPlace {
    /// The abstract namespace of Linux, of which each network namespace has its own.
    Abstract,
    /// A socket file in this folder, which is named by `KINETO_IPC_SOCKET_DIR`.
    Folder(PathBuf),
}

impl SocketPlace {
    /// Makes the folder's path absolute. Kineto exits if it gets an answer from a relative path.
    pub fn in_folder(folder: &Path) -> Self {
        // If the current folder does not exist, the path stays relative, and opening the socket
        // reports the error.
        Self::Folder(std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))
    }
}

/// The reason why a socket could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon already uses the name of the socket.
    #[error("{place}: another daemon answers there already")]
    Taken { place: String },
    /// The folder's name is too long for the sockets of clients in it.
    #[error("{}: expected a socket folder of at most {FOLDER_MAX} bytes, got {got}", folder.display())]
    FolderLong { folder: PathBuf, got: usize },
    /// The name belongs to a socket of another user, which this user may not remove.
    #[error("{place}: user {uid} has taken the name")]
    Foreign { place: String, uid: u32 },
    /// The folder's permissions would allow other users to replace the socket.
    #[error(transparent)]
    Unsafe(#[from] UntrustedError),
    #[error("{place}: cannot open a socket: {source}")]
    Open { place: String, source: io::Error },
    #[error("cannot read from the socket: {0}")]
    Receive(io::Error),
}

impl SocketError {
    /// Wraps the error of binding the name `place`.
    pub(crate) fn open(place: String, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::Taken { place },
            _ => Self::Open { place, source },
        }
    }
}

/// The sender of a message, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in our namespace, or 0 if the process is outside our namespace.
    pub pid: u32,
    pub uid: u32,
}

/// A received message, with its sender as reported by the kernel.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub peer: Peer,
    pub bytes: Vec<u8>,
    /// Time that the message spent in the kernel's queue; `None` if the kernel does not report it.
    pub age: Option<Duration>,
    from: Option<UnixAddr>,
}

/// The open socket of the daemon. The socket's file is removed on drop.
#[derive(Debug)]
pub struct Socket {
    socket: UnixDatagram,
    /// The address from which processes receive answers.
    name: SocketAddr,
    file: Option<PathBuf>,
    wait: Cell<Duration>,
    /// Separate sockets for the answers to each user, which are used while too many answers sent
    /// from `socket` are unread.
    spares: RefCell<BTreeMap<u32, UnixDatagram>>,
}

impl SocketPlace {
    /// Formats the location of the socket for messages to users.
    pub fn words(&self) -> String {
        match self {
            Self::Abstract => format!("@{NAME}"),
            Self::Folder(folder) => folder.join(NAME).display().to_string(),
        }
    }
}

impl Datagram {
    /// Whether the sender has an address to which an answer can be sent.
    pub fn can_be_answered(&self) -> bool {
        self.from.is_some()
    }
}

impl Socket {
    /// Binds the socket under the daemon's name.
    ///
    /// # Errors
    /// Fails if another daemon uses the name, if the folder's path is too long, or if the operating
    /// system refuses.
    pub fn bind(place: &SocketPlace) -> Result<Self, SocketError> {
        Self::bind_as(place, NAME)
    }

    /// Checks that the socket could be created at a place. Another daemon may already use the name.
    ///
    /// # Errors
    /// Fails if the folder's path is too long, or if other users could replace the socket.
    pub fn check(place: &SocketPlace) -> Result<(), SocketError> {
        let SocketPlace::Folder(folder) = place else { return Ok(()) };
        let got = folder.as_os_str().len();
        if got > FOLDER_MAX {
            return Err(SocketError::FolderLong { folder: folder.clone(), got });
        }
        OwnFolder::open_shared(folder, MissingFolder::Refuse)?;
        Ok(())
    }

    /// Binds the socket under another name in the same place.
    ///
    /// # Errors
    /// The errors of [`Socket::bind`].
    pub fn bind_as(place: &SocketPlace, name: &str) -> Result<Self, SocketError> {
        let open = |source: io::Error| SocketError::open(place.words(), source);
        let (socket, file) = match place {
            SocketPlace::Abstract => {
                let name = SocketAddr::from_abstract_name(format!("{name}\0")).map_err(open)?;
                (UnixDatagram::bind_addr(&name).map_err(open)?, None)
            }
            SocketPlace::Folder(folder) => {
                Self::check(place)?;
                let file = folder.join(name);
                clear(folder, name)?;
                let socket = UnixDatagram::bind(&file).map_err(open)?;
                (socket, Some(file))
            }
        };
        if let Some(file) = &file {
            // Jobs of other users poll as well, so every user may send. Which requests a process
            // receives depends on its user id, not on this permission.
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).map_err(open)?;
        }
        Self::prepare(socket, file).map_err(open)
    }

    /// Takes over a socket that another process such as systemd has bound.
    ///
    /// # Errors
    /// Fails if the socket cannot carry credentials.
    pub fn adopt(socket: UnixDatagram) -> io::Result<Self> {
        Self::prepare(socket, None)
    }

    fn prepare(socket: UnixDatagram, file: Option<PathBuf>) -> io::Result<Self> {
        let (wait, spares) = (Cell::new(Duration::ZERO), RefCell::default());
        let name = socket.local_addr()?;
        let bound = Self { socket, name, file, wait, spares };
        setsockopt(&bound.socket, sockopt::PassCred, &true)?;
        // If the kernel does not support this option, the age of a message is unknown, and the
        // server estimates it.
        let _ = setsockopt(&bound.socket, sockopt::ReceiveTimestampns, &true);
        Ok(bound)
    }

    /// Returns the next message if one arrives within `wait`.
    ///
    /// # Errors
    /// Fails if the socket cannot be read.
    pub fn receive(&self, wait: Duration) -> Result<Option<Datagram>, SocketError> {
        let wait = wait.max(Duration::from_millis(1));
        if self.wait.replace(wait) != wait {
            self.socket.set_read_timeout(Some(wait)).map_err(SocketError::Receive)?;
        }
        self.take(MsgFlags::empty())
    }

    /// Returns the next message if one is already queued.
    ///
    /// # Errors
    /// Fails if the socket cannot be read.
    pub fn waiting(&self) -> Result<Option<Datagram>, SocketError> {
        self.take(MsgFlags::MSG_DONTWAIT)
    }

    fn take(&self, flags: MsgFlags) -> Result<Option<Datagram>, SocketError> {
        let mut buffer = [0; MESSAGE_MAX];
        let mut control = nix::cmsg_space!(UnixCredentials, TimeSpec);
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let message =
            recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut slices, Some(&mut control), flags);
        let message = match message {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(SocketError::Receive(errno.into())),
        };
        let (mut credentials, mut age) = (None, None);
        for control in message.cmsgs().ok().into_iter().flatten() {
            match control {
                ControlMessageOwned::ScmCredentials(given) => {
                    let pid = u32::try_from(given.pid()).unwrap_or(0);
                    credentials = Some(Peer { pid, uid: given.uid() });
                }
                ControlMessageOwned::ScmTimestampns(arrived) => age = since(arrived),
                _ => {}
            }
        }
        // The address of an unnamed sender has only its family, or nothing at all.
        let from = message.address.filter(|from| from.len() as usize > size_of::<sa_family_t>());
        let from = from.filter(|from| self.is_beside(from));
        let length = message.bytes;
        // A message without credentials is dropped, because its sender is unknown.
        let Some(peer) = credentials else { return Ok(None) };
        let bytes = buffer[..length].to_vec();
        Ok(Some(Datagram { peer, bytes, age, from }))
    }

    /// Answers a message. Returns whether the answer was sent, which does not mean that the process
    /// has read it.
    ///
    /// The kernel counts unread answers against the sending socket, and a client that is connected
    /// to our socket may leave any number of answers unread. Once our socket cannot send any more,
    /// each user gets a separate socket, so that only users who do not read their answers are
    /// affected.
    pub fn answer(&self, to: &Datagram, bytes: &[u8]) -> bool {
        let Some(from) = &to.from else { return false };
        let send = |socket: &UnixDatagram| {
            // `MSG_DONTWAIT`: a process with a full queue must not block the answers to other
            // processes.
            sendto(socket.as_raw_fd(), bytes, from, MsgFlags::MSG_DONTWAIT)
        };
        match send(&self.socket) {
            Err(Errno::EAGAIN) => {}
            sent => return sent.is_ok(),
        }
        let mut spares = self.spares.borrow_mut();
        if spares.len() >= SPARES_MAX && !spares.contains_key(&to.peer.uid) {
            spares.clear();
        }
        if let Entry::Vacant(vacant) = spares.entry(to.peer.uid) {
            let Ok(spare) = self.bind_spare() else { return false };
            vacant.insert(spare);
        }
        spares.get(&to.peer.uid).is_some_and(|spare| send(spare).is_ok())
    }

    /// Whether a sender's socket is in the same folder or namespace as this socket, comparing paths
    /// as text.
    ///
    /// PyTorch binds its socket at `$KINETO_IPC_SOCKET_DIR/…` or in the abstract namespace. PyTorch
    /// exits if an answer comes from a path with another prefix, such as `/run/kineto/dynolog` for
    /// a job with `/run/../run/kineto`. Polls of such a job are not answered.
    fn is_beside(&self, from: &UnixAddr) -> bool {
        match (self.name.as_pathname(), from.path()) {
            (Some(own), Some(from)) => {
                let from = from.as_os_str().as_bytes();
                let folder = from.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
                own.as_os_str().as_bytes().starts_with(&from[..folder])
            }
            (own, from) => own.is_none() && from.is_none(),
        }
    }

    /// Binds a separate socket for the answers to one user, in the same folder or namespace as this
    /// socket (see [`Socket::is_beside`]). The socket's name is random, so that another user cannot
    /// create it first.
    fn bind_spare(&self) -> io::Result<UnixDatagram> {
        let name = format!("{NAME}-{:016x}", RandomState::new().build_hasher().finish());
        let Some(own) = self.name.as_pathname() else {
            return UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("{name}\0"))?);
        };
        let file = own.with_file_name(name);
        let spare = UnixDatagram::bind(&file)?;
        // The socket keeps its name after its file is removed, and no file is left behind if the
        // agent is killed.
        fs::remove_file(&file)?;
        Ok(spare)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // If the file stayed, every polling process would wait ten seconds for an answer at its
            // exit.
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns the time since a kernel timestamp, or `None` if the clock was set back since then.
fn since(arrived: TimeSpec) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::from(arrived))
}

/// Removes the socket file of this name if it belongs to an ended daemon or to another user. The
/// socket of a running daemon is kept.
fn clear(folder: &Path, name: &str) -> Result<(), SocketError> {
    let own = OwnFolder::open_shared(folder, MissingFolder::Refuse)?;
    remove_foreign(&own, name)?;
    let file = folder.join(name);
    let place = || file.display().to_string();
    let probe = UnixDatagram::unbound().and_then(|socket| socket.connect(&file));
    match probe {
        Ok(()) => Err(SocketError::Taken { place: place() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(&file).map_err(|source| SocketError::open(place(), source))
        }
        Err(_) => Ok(()),
    }
}

/// Removes the entry `name` if it belongs neither to this user nor to root. Otherwise any user
/// could prevent the agent from starting by creating its socket names first.
///
/// # Errors
/// Fails if this process does not run as root, or if the operating system refuses.
pub(crate) fn remove_foreign(folder: &OwnFolder, name: &str) -> Result<(), SocketError> {
    if !is_foreign(folder, name) {
        return Ok(());
    }
    if own_uid() == 0 {
        return Ok(folder.remove_tree(name)?);
    }
    let place = folder.path().join(name).display().to_string();
    Err(SocketError::Foreign { place, uid: folder.owner(name).unwrap_or(u32::MAX) })
}

/// Whether the entry `name` belongs to a user other than this process's own and root.
pub(crate) fn is_foreign(folder: &OwnFolder, name: &str) -> bool {
    folder.owner(name).is_some_and(|uid| uid != 0 && uid != own_uid())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::{Socket, SocketError, SocketPlace};

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn message_has_its_sender_and_can_be_answered() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let place = SocketPlace::Folder(folder.path().to_owned());
        let socket = Socket::bind(&place).unwrap();
        let client = UnixDatagram::bind(folder.path().join("dynoconfigclient1")).unwrap();
        client.set_read_timeout(Some(WAIT)).unwrap();
        client.send_to(b"hello", folder.path().join("dynolog")).unwrap();
        let message = socket.receive(WAIT).unwrap().unwrap();
        assert_eq!(message.bytes, b"hello");
        assert_eq!(message.peer.pid, std::process::id());
        socket.answer(&message, b"and you");
        let mut bytes = [0; 64];
        let length = client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"and you");
        assert!(socket.receive(Duration::from_millis(1)).unwrap().is_none());
        // `answer` must not panic or block if the process has ended.
        drop(client);
        std::fs::remove_file(folder.path().join("dynoconfigclient1")).unwrap();
        socket.answer(&message, b"gone?");
    }

    #[test]
    fn unread_answers_do_not_block_other_users() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let place = SocketPlace::Folder(folder.path().to_owned());
        let socket = Socket::bind(&place).unwrap();
        let client = |name: &str| {
            let client = UnixDatagram::bind(folder.path().join(name)).unwrap();
            client.set_read_timeout(Some(WAIT)).unwrap();
            client.send_to(b"hello", folder.path().join("dynolog")).unwrap();
            (client, socket.receive(WAIT).unwrap().unwrap())
        };
        let (deaf, mut message) = client("dynoconfigclient-deaf");
        // The kernel does not limit the queue of a client that is connected to the sender.
        deaf.connect(folder.path().join("dynolog")).unwrap();
        message.peer.uid = 54_321;
        let sent = (0..100_000).take_while(|_| socket.answer(&message, b"x")).count();
        assert!(sent < 100_000, "the kernel bounds what one user leaves unread");
        let (reads, message) = client("dynoconfigclient-reads");
        assert!(socket.answer(&message, b"and you"));
        let mut bytes = [0; 64];
        let (length, from) = reads.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"and you");
        // PyTorch exits if the answer is unnamed, or comes from outside its folder.
        let from = from.as_pathname().expect("the answer has a name");
        assert_eq!(from.parent(), Some(folder.path()), "{}", from.display());
        assert_ne!(from, folder.path().join("dynolog"), "the own socket may send no more");
        assert!(!from.exists(), "nothing is left if the agent is killed now");
    }

    #[test]
    fn client_with_another_path_prefix_is_not_answered() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let socket = Socket::bind(&SocketPlace::Folder(folder.path().to_owned())).unwrap();
        let other = tempfile::tempdir_in("/tmp").unwrap();
        let spelled = folder.path().join("../").join(folder.path().file_name().unwrap());
        for (beside, is_answered) in [
            (folder.path().join("client"), true),
            (other.path().join("client"), false),
            (spelled.join("client-spelled"), false),
        ] {
            let client = UnixDatagram::bind(&beside).unwrap();
            client.send_to(b"hello", folder.path().join("dynolog")).unwrap();
            let message = socket.receive(WAIT).unwrap().unwrap();
            assert_eq!(message.can_be_answered(), is_answered, "{}", beside.display());
            assert_eq!(socket.answer(&message, b"and you"), is_answered);
            std::fs::remove_file(&beside).unwrap();
        }
    }

    #[test]
    fn name_can_be_bound_once_and_is_removed() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let place = SocketPlace::Folder(folder.path().to_owned());
        let first = Socket::bind(&place).unwrap();
        assert!(matches!(Socket::bind(&place), Err(SocketError::Taken { .. })));
        drop(first);
        assert!(!folder.path().join("dynolog").exists());
        // An ended daemon leaves its socket file, and the next daemon must take over the name.
        drop(UnixDatagram::bind(folder.path().join("dynolog")).unwrap());
        assert!(folder.path().join("dynolog").exists());
        // A program that another test starts holds copies of our sockets until it executes, so the
        // name may become free a moment later.
        let is_bound = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Socket::bind(&place).is_ok()
        });
        assert!(is_bound);
    }

    #[test]
    fn folder_with_a_long_name_is_an_error() {
        let folder = std::path::PathBuf::from(format!("/{}", "x".repeat(54)));
        let refused = Socket::bind(&SocketPlace::Folder(folder));
        assert!(matches!(refused, Err(SocketError::FolderLong { got: 55, .. })));
    }
}
