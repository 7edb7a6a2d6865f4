//! Reports the steps and phases of a run to the agent of this host, if an agent runs.

use fleet::ipc::socket::SocketPlace;
use fleet::steps::{Phase, Reporter};
use train::run::RunEvent;

use crate::capture_request::socket_place;

/// Reports steps to the agent. Remembers the last report, so that only changes are sent.
pub struct StepReporter {
    reporter: Option<Reporter>,
    phase: Phase,
    step: u64,
    samples: u64,
}

impl StepReporter {
    /// Creates a reporter to the agent that PyTorch jobs would poll. The agent's socket is in
    /// `KINETO_IPC_SOCKET_DIR`, or else it is the abstract socket.
    pub fn for_this_process() -> Self {
        Self::connect(&socket_place(None))
    }

    fn connect(place: &SocketPlace) -> Self {
        // If no agent runs, the run continues and reports nothing.
        let reporter = Reporter::new(place).ok();
        Self { reporter, phase: Phase::Setup, step: 0, samples: 0 }
    }

    /// Reports the step or phase that an event begins. Repeated events of the same phase are
    /// skipped.
    pub fn report_event(&mut self, event: &RunEvent<'_>) {
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
            // When a run is resumed, the samples before its first step are unknown, so no samples
            // are counted for that step.
            let is_resumed = self.samples == 0 && self.step > 0;
            let step_samples = if is_resumed { 0 } else { samples.saturating_sub(self.samples) };
            reporter.report(phase, step, step_samples);
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

    use super::StepReporter;

    #[test]
    fn every_step_and_every_change_of_phase_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join(NAME)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut steps = StepReporter::connect(&SocketPlace::Folder(folder.path().to_owned()));
        let mut reported = |event: RunEvent<'_>| {
            steps.report_event(&event);
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).ok()?;
            let message = StepMessage::parse(&bytes[..length]).unwrap();
            Some((message.phase.word(), message.step, message.samples))
        };
        let started = RunEvent::Started { step: 4, total_steps: 9, samples_per_epoch: 64 };
        assert_eq!(reported(started), Some(("setup", 4, 0)));
        assert_eq!(reported(RunEvent::Stepped { step: 5, samples: 160 }), Some(("train", 5, 0)));
        assert_eq!(reported(RunEvent::Stepped { step: 6, samples: 192 }), Some(("train", 6, 32)));
        let evaluating = || RunEvent::Evaluating { samples: 1, total: 2 };
        assert_eq!(reported(evaluating()), Some(("evaluate", 6, 0)));
        assert_eq!(reported(evaluating()), None);
        assert_eq!(reported(RunEvent::Saving), Some(("save", 6, 0)));
        assert_eq!(reported(RunEvent::Tables { step: 6, tables: &[] }), None);
        assert_eq!(reported(RunEvent::Stepped { step: 7, samples: 224 }), Some(("train", 7, 32)));
    }
}
