//! Answers trace orders of the agent of this host, as PyTorch does: a thread polls the agent and
//! leaves its requests in the inbox of the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet::ipc::config::{RequestedTrace, Trigger};
use fleet::ipc::poller::Poller;
use train::run::{OrderedTrace, TraceExtent, TraceInbox};

use crate::capture_request::socket_place;

/// The variable with which PyTorch jobs also allow an agent to order traces.
const VARIABLE: &str = "KINETO_USE_DAEMON";
/// Time between two polls, as in PyTorch.
const POLL: Duration = Duration::from_secs(1);
/// Interval at which the thread checks whether the run has ended.
const TICK: Duration = Duration::from_millis(100);

/// The thread that polls for orders. It ends when this value is dropped.
pub struct OrderPoll {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OrderPoll {
    /// Starts to poll, if the environment allows it and the run does not use its recorder for a
    /// trace of its own. Without a thread or a socket, the run goes on and answers no orders.
    pub fn start(is_recording: bool) -> (TraceInbox, Option<Self>) {
        let is_allowed =
            std::env::var_os(VARIABLE).is_some_and(|value| value != "0" && !value.is_empty());
        let poller =
            (is_allowed && !is_recording).then(|| Poller::open(&socket_place(None)).ok()).flatten();
        let Some(mut poller) = poller else { return (TraceInbox::default(), None) };
        let (inbox, stop) = (TraceInbox::open(), Arc::new(AtomicBool::new(false)));
        let (own_inbox, own_stop) = (inbox.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("trace orders".to_owned()).spawn(move || {
            while !own_stop.load(Ordering::Relaxed) {
                if let Some(requested) = poller.poll(own_inbox.is_free()) {
                    let _ = own_inbox.put(to_order(requested));
                }
                let mut waited = Duration::ZERO;
                while waited < POLL && !own_stop.load(Ordering::Relaxed) {
                    std::thread::sleep(TICK);
                    waited += TICK;
                }
            }
        });
        match thread {
            Ok(thread) => (inbox, Some(Self { stop, thread: Some(thread) })),
            Err(_) => (TraceInbox::default(), None),
        }
    }
}

impl Drop for OrderPoll {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn to_order(requested: RequestedTrace) -> OrderedTrace {
    let extent = match requested.trigger {
        Trigger::Iterations { count, align } => {
            TraceExtent::Steps { count: u64::from(count), align: u64::from(align) }
        }
        Trigger::Duration { length, start_unix_ms, .. } => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let delay = Duration::from_millis(start_unix_ms).saturating_sub(now);
            TraceExtent::Time { delay, length }
        }
    };
    OrderedTrace { path: requested.path, id: requested.trace_id, extent }
}
