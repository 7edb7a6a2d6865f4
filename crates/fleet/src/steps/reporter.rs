//! Sends step reports to the agent. Sending never blocks the job, so messages may be lost.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use super::{NAME, Phase, StepMessage};
use crate::ipc::socket::SocketPlace;

/// Pause after a message that could not be delivered, so that a job without an agent does not try
/// at every step.
const AGAIN: Duration = Duration::from_secs(5);

/// Reports the steps of this process to the agent of its host.
#[derive(Debug)]
pub struct Reporter {
    socket: UnixDatagram,
    address: SocketAddr,
    began: Instant,
    not_before: Instant,
    /// Number of samples of steps whose message did not fit into the agent's queue.
    owed: u64,
}

impl Reporter {
    /// Creates a reporter that sends to the agent at `place`. The agent does not need to be
    /// running.
    ///
    /// # Errors
    /// Fails if the operating system cannot create a socket, or if the folder's path is too long
    /// for a socket.
    pub fn new(place: &SocketPlace) -> io::Result<Self> {
        let address = match place {
            // In the abstract namespace, the terminating zero belongs to the name.
            SocketPlace::Abstract => SocketAddr::from_abstract_name(format!("{NAME}\0"))?,
            SocketPlace::Folder(folder) => SocketAddr::from_pathname(folder.join(NAME))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let now = Instant::now();
        Ok(Self { socket, address, began: now, not_before: now, owed: 0 })
    }

    /// Reports the current phase and that `step` steps are done, of which the last one had
    /// `samples` samples. Returns whether the message was delivered. If the agent's queue is full,
    /// the samples are added to the next message.
    pub fn report(&mut self, phase: Phase, step: u64, samples: u64) -> bool {
        let now = Instant::now();
        if now < self.not_before {
            return false;
        }
        let monotonic_ns = u64::try_from((now - self.began).as_nanos()).unwrap_or(u64::MAX);
        let own_pid = std::process::id();
        let samples = samples.saturating_add(self.owed);
        let message = StepMessage { phase, own_pid, step, monotonic_ns, samples, exposed_ns: None };
        match self.socket.send_to_addr(&message.to_bytes(), &self.address) {
            Ok(_) => {
                self.owed = 0;
                true
            }
            // The agent empties a full queue within milliseconds, so the next message is sent
            // without a pause.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.owed = samples;
                false
            }
            Err(_) => {
                self.owed = 0;
                self.not_before = now + AGAIN;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::{NAME, Phase, Reporter, SocketPlace, StepMessage};

    #[test]
    fn undelivered_message_pauses_the_reporter() {
        let folder = tempfile::tempdir().unwrap();
        let place = SocketPlace::Folder(folder.path().to_owned());
        let socket = UnixDatagram::bind(folder.path().join(NAME)).unwrap();
        let mut reporter = Reporter::new(&place).unwrap();
        assert!(reporter.report(Phase::Train, 7, 512));
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        let message = StepMessage::parse(&bytes[..length]).unwrap();
        assert_eq!((message.phase, message.step, message.samples), (Phase::Train, 7, 512));
        assert_eq!((message.own_pid, message.exposed_ns), (std::process::id(), None));
        // Nobody reads the socket, so its queue fills up. `report` must return `false` instead of
        // waiting.
        assert!((0..100_000).any(|step| !reporter.report(Phase::Train, step, 1)));
        // Once the queue has space, the samples must be sent with the next message.
        while socket.recv(&mut bytes).unwrap() > 0 && !reporter.report(Phase::Train, 9, 5) {}
        socket.set_nonblocking(true).unwrap();
        let mut last = message;
        while let Ok(length) = socket.recv(&mut bytes) {
            last = StepMessage::parse(&bytes[..length]).unwrap();
        }
        assert_eq!((last.step, last.samples), (9, 6));
        drop(socket);
        assert!(!reporter.report(Phase::Train, 8, 1));
        let again = folder.path().join(NAME);
        std::fs::remove_file(&again).unwrap();
        let _socket = UnixDatagram::bind(again).unwrap();
        assert!(!reporter.report(Phase::Train, 9, 1), "silent after a refusal");
    }
}
