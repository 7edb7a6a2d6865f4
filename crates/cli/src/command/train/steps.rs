//! Tells the agent of this host, where there is one, what a run does.

use fleet::ipc::socket::SocketPlace;
use fleet::steps::{Phase, Reporter};
use train::run::RunEvent;

use crate::capture_request::socket_place;

/// What was last told.
pub struct ToldSteps {
    reporter: Option<Reporter>,
    phase: Phase,
    step: u64,
    samples: u64,
}

impl ToldSteps {
    /// To the agent at `KINETO_IPC_SOCKET_DIR`, or at its name in the kernel: as PyTorch jobs do.
    pub fn for_this_process() -> Self {
        Self::to(&socket_place(None))
    }

    fn to(place: &SocketPlace) -> Self {
        // A run without anyone to tell goes on.
        let reporter = Reporter::new(place).ok();
        Self { reporter, phase: Phase::Setup, step: 0, samples: 0 }
    }

    /// Tells what an event means, if it is news.
    pub fn see(&mut self, event: &RunEvent<'_>) {
        let Some(reporter) = &mut self.reporter else { return };
        let (phase, step, samples) = match *event {
            RunEvent::Started { step, .. } => (Phase::Setup, step, 0),
            RunEvent::Stepped { step, samples } => (Phase::Train, step, samples),
            RunEvent::Evaluating { .. } => (Phase::Evaluate, self.step, self.samples),
            RunEvent::Saving => (Phase::Save, self.step, self.samples),
            _ => return,
        };
        let is_step = matches!(event, RunEvent::Started { .. } | RunEvent::Stepped { .. });
        if is_step || phase != self.phase {
            // What a resumed run did before this session is not known.
            let is_resumed = self.samples == 0 && self.step > 0;
            let of_step = if is_resumed { 0 } else { samples.saturating_sub(self.samples) };
            reporter.report(phase, step, of_step);
        }
        (self.phase, self.step, self.samples) = (phase, step, samples);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use fleet::ipc::socket::SocketPlace;
    use fleet::steps::{NAME, StepMessage};
    use train::run::RunEvent;

    use super::ToldSteps;

    #[test]
    fn every_step_is_told_and_every_change_of_phase_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join(NAME)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut steps = ToldSteps::to(&SocketPlace::Folder(folder.path().to_owned()));
        let mut told = |event: RunEvent<'_>| {
            steps.see(&event);
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).ok()?;
            let message = StepMessage::parse(&bytes[..length]).unwrap();
            Some((message.phase.word(), message.step, message.samples))
        };
        let started = RunEvent::Started { step: 4, total_steps: 9, samples_per_epoch: 64 };
        assert_eq!(told(started), Some(("setup", 4, 0)));
        assert_eq!(told(RunEvent::Stepped { step: 5, samples: 160 }), Some(("train", 5, 0)));
        assert_eq!(told(RunEvent::Stepped { step: 6, samples: 192 }), Some(("train", 6, 32)));
        let evaluating = || RunEvent::Evaluating { samples: 1, total: 2 };
        assert_eq!(told(evaluating()), Some(("evaluate", 6, 0)));
        assert_eq!(told(evaluating()), None);
        assert_eq!(told(RunEvent::Saving), Some(("save", 6, 0)));
        assert_eq!(told(RunEvent::Tables { step: 6, tables: &[] }), None);
        assert_eq!(told(RunEvent::Stepped { step: 7, samples: 224 }), Some(("train", 7, 32)));
    }
}
