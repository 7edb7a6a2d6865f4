//! Traces that are ordered while a run trains. The program leaves an order in a [`TraceInbox`], and
//! rank 0 takes it at the next step, records the steps and writes the trace.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An order to record some of the next steps of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedTrace {
    /// The file that is written.
    pub path: PathBuf,
    /// Id that the file states as `trace_id`.
    pub id: String,
    pub extent: TraceExtent,
}

/// The steps that an ordered trace records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceExtent {
    Steps {
        count: u64,
        /// The first recorded step is a multiple of this number.
        align: u64,
    },
    /// As many steps as take this time, after a delay. Both are converted by the mean step time.
    Time { delay: Duration, length: Duration },
}

/// The place for one order at a time. A closed inbox, which is the default, takes none.
#[derive(Clone, Debug, Default)]
pub struct TraceInbox(Option<Arc<Mutex<InboxState>>>);

/// What an open inbox holds.
#[derive(Debug, Default)]
enum InboxState {
    #[default]
    Free,
    Waiting(OrderedTrace),
    Recording,
}

impl TraceInbox {
    /// Creates an inbox that takes orders.
    #[must_use]
    pub fn open() -> Self {
        Self(Some(Arc::default()))
    }

    /// Returns whether the inbox takes orders at all.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether no order is waiting or being recorded.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.lock().is_some_and(|state| matches!(*state, InboxState::Free))
    }

    /// Leaves an order. Returns false if an earlier one is not done.
    #[must_use]
    pub fn put(&self, order: OrderedTrace) -> bool {
        let Some(mut state) = self.lock() else { return false };
        let is_free = matches!(*state, InboxState::Free);
        if is_free {
            *state = InboxState::Waiting(order);
        }
        is_free
    }

    /// Takes the waiting order, whose recording begins.
    pub(super) fn take(&self) -> Option<OrderedTrace> {
        let mut state = self.lock()?;
        match std::mem::replace(&mut *state, InboxState::Recording) {
            InboxState::Waiting(order) => Some(order),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Makes room for the next order.
    pub(super) fn clear(&self) {
        if let Some(mut state) = self.lock() {
            *state = InboxState::Free;
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, InboxState>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TraceExtent {
    /// Returns the steps to record, of which none is before `next`. `step_s` is the mean step time.
    pub(super) fn steps(self, next: u64, step_s: f64) -> Range<u64> {
        let in_steps = |time: Duration| (time.as_secs_f64() / step_s.max(1e-9)).ceil() as u64;
        let (first, count) = match self {
            Self::Steps { count, align } => (next.next_multiple_of(align.max(1)), count),
            Self::Time { delay, length } => {
                (next.saturating_add(in_steps(delay)), in_steps(length))
            }
        };
        first..first.saturating_add(count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{OrderedTrace, TraceExtent, TraceInbox};

    #[test]
    fn one_order_at_a_time_is_taken_once() {
        let extent = TraceExtent::Steps { count: 2, align: 4 };
        let order = OrderedTrace { path: "/tmp/a.json".into(), id: "a".to_owned(), extent };
        assert!(!TraceInbox::default().put(order.clone()));
        let inbox = TraceInbox::open();
        assert!(inbox.is_free() && inbox.put(order.clone()) && !inbox.put(order.clone()));
        assert_eq!((inbox.take(), inbox.take()), (Some(order), None));
        assert!(!inbox.is_free());
        inbox.clear();
        assert!(inbox.is_free());
    }

    #[test]
    fn aligned_steps_and_times_become_steps() {
        let steps = |extent: TraceExtent| extent.steps(9, 0.5);
        assert_eq!(steps(TraceExtent::Steps { count: 5, align: 1 }), 9..14);
        assert_eq!(steps(TraceExtent::Steps { count: 0, align: 100 }), 100..101);
        let (delay, length) = (Duration::from_secs(2), Duration::from_millis(1200));
        assert_eq!(steps(TraceExtent::Time { delay, length }), 13..16);
    }
}
