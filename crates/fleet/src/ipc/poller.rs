//! Polls the daemon of a host for trace requests, as Kineto does in PyTorch.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use super::config::RequestedTrace;
use super::message::{FREE, ProcessMessage, parse_poll_answer};
use super::socket::{NAME, SocketPlace};

/// Longest wait for the answer to a poll. The daemon answers within a millisecond.
const ANSWER: Duration = Duration::from_millis(300);
/// Largest size of an answer in bytes.
const ANSWER_MAX: usize = 16 << 10;

/// Asks the daemon for traces to take, and receives its answers on a socket of this process. When
/// the value is dropped, the file of the socket is removed.
#[derive(Debug)]
pub struct Poller {
    socket: UnixDatagram,
    daemon: SocketAddr,
    file: Option<PathBuf>,
    /// Id of the last request, which the daemon repeats until it sees that the profiler is busy.
    last_id: Option<String>,
}

impl Poller {
    /// Opens a socket to the daemon at `place`. The daemon does not need to be running.
    ///
    /// # Errors
    /// If the operating system cannot create a socket, or if the folder's path is too long for one.
    pub fn open(place: &SocketPlace) -> io::Result<Self> {
        let own = format!("dynoconfigclient-rowmill-{}", std::process::id());
        let (address, daemon, file) = match place {
            // In the abstract namespace, the terminating zero belongs to the name.
            SocketPlace::Abstract => (
                SocketAddr::from_abstract_name(format!("{own}\0"))?,
                SocketAddr::from_abstract_name(format!("{NAME}\0"))?,
                None,
            ),
            SocketPlace::Folder(folder) => {
                let file = folder.join(own);
                // A process of the past with the same id may have left its file.
                let _ = std::fs::remove_file(&file);
                let daemon = SocketAddr::from_pathname(folder.join(NAME))?;
                (SocketAddr::from_pathname(&file)?, daemon, Some(file))
            }
        };
        let socket = UnixDatagram::bind_addr(&address)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.set_write_timeout(Some(ANSWER))?;
        Ok(Self { socket, daemon, file, last_id: None })
    }

    /// Asks the daemon once. Returns a new request if there is one. A daemon that does not answer
    /// is not an error, because it may start later.
    pub fn poll(&mut self, is_free: bool) -> Option<RequestedTrace> {
        let own_pid = std::process::id();
        let job = std::env::var("SLURM_JOB_ID").ok().and_then(|job| job.parse().ok()).unwrap_or(0);
        let free = if is_free { FREE } else { 0 };
        let pids = vec![i32::try_from(own_pid).ok()?];
        let message = ProcessMessage::Poll { free, job, pids };
        self.socket.send_to_addr(&message.to_bytes(), &self.daemon).ok()?;
        let mut bytes = vec![0; ANSWER_MAX];
        let length = self.socket.recv(&mut bytes).ok()?;
        let requested = RequestedTrace::parse(parse_poll_answer(&bytes[..length])?, own_pid)?;
        let is_new = self.last_id.as_ref() != Some(&requested.trace_id);
        self.last_id = Some(requested.trace_id.clone());
        is_new.then_some(requested)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let _ = self.file.as_ref().map(std::fs::remove_file);
    }
}
