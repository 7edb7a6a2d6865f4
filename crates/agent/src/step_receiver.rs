//! The thread that receives the step messages of jobs. While messages arrive, it polls the socket
//! between pauses, so that a message does not have to wake it. The wake-up would be two thirds of a
//! message's cost to the job.

use std::thread;
use std::time::{Duration, Instant};

use fleet::ipc::socket::{Datagram, Socket};
use fleet::quota::{Quotas, Rate};
use fleet::steps::StepMessage;

use crate::state::{AgentState, lock};

/// The shortest and the longest pause between two polls of the socket.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Number of messages that fit into the socket's queue under the smallest kernel setting in use
/// (`net.unix.max_dgram_qlen`).
const QUEUE: usize = 10;
/// If no message arrives for this long, the thread stops polling and blocks until one arrives.
const QUIET: Duration = Duration::from_secs(10);
/// Rate limit for the step messages of one user.
const USER: Rate = Rate { burst: 20_000.0, per_s: 20_000.0 };
/// Number of users that have a rate limit of their own. All further users share one limit.
const USERS_MAX: usize = 256;
/// Interval at which a blocked thread checks whether the agent is ending.
const TICK: Duration = Duration::from_millis(500);

/// Receives the step messages of jobs until the agent ends.
pub fn run(state: &AgentState, socket: &Socket) {
    let mut heard: Option<Instant> = None;
    let mut pause = PAUSES.0;
    let mut users = Quotas::new(USER, USERS_MAX);
    while !state.is_ending() {
        let is_quiet = heard.is_none_or(|heard| heard.elapsed() > QUIET);
        let message_count = if is_quiet {
            socket.receive(TICK).map(|message| usize::from(take(state, &mut users, message)))
        } else {
            thread::sleep(pause);
            drain(state, &mut users, socket)
        };
        match message_count {
            Ok(count) => {
                pause = next(pause, count);
                if count > 0 {
                    heard = Some(Instant::now());
                }
            }
            Err(error) => {
                return state.note(format!("steps of jobs are no longer received: {error}"));
            }
        }
    }
}

/// Receives all queued messages and returns how many there were.
fn drain(
    state: &AgentState,
    users: &mut Quotas<u32>,
    socket: &Socket,
) -> Result<usize, fleet::ipc::socket::SocketError> {
    let mut count = 0;
    // The number is bounded, so that a sender that never pauses cannot keep the thread from ending.
    while count < QUEUE * 100 && take(state, users, socket.waiting()?) {
        count += 1;
    }
    Ok(count)
}

fn take(state: &AgentState, users: &mut Quotas<u32>, message: Option<Datagram>) -> bool {
    let Some(message) = message else { return false };
    let (now, peer) = (state.up(), message.peer);
    if !users.take(now, &peer.uid) {
        return true;
    }
    if let Ok(step) = StepMessage::parse(&message.bytes) {
        lock(&state.steps).receive(now, peer, &step);
    }
    true
}

/// Computes the next pause, during which the socket's queue should fill by about a third.
fn next(pause: Duration, count: usize) -> Duration {
    match count {
        _ if count > QUEUE / 2 => (pause / 2).max(PAUSES.0),
        _ if count < QUEUE / 4 => (pause * 2).min(PAUSES.1),
        _ => pause,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{PAUSES, next};

    #[test]
    fn pauses_follow_the_rate_of_messages() {
        // Each row has a rate in messages per second, and the longest and shortest pause in
        // milliseconds to which the rate may lead.
        for (rate, longest_ms, shortest_ms) in [(0, 50, 50), (20, 50, 50), (1000, 6, 2)] {
            let mut pause = PAUSES.0;
            for _ in 0..100 {
                let count = rate * usize::try_from(pause.as_micros()).unwrap() / 1_000_000;
                pause = next(pause, count);
            }
            let (longest, shortest) = (longest_ms, shortest_ms);
            assert!(pause <= Duration::from_millis(longest), "{rate}/s: {pause:?}");
            assert!(pause >= Duration::from_millis(shortest), "{rate}/s: {pause:?}");
        }
    }
}
