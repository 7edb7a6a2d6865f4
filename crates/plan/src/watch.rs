//! Reports how far a search is, and lets the caller end it. A search reports every few plans that
//! it prices, so that starts, repairs and local search all end soon.

use std::fmt;
use std::ops::ControlFlow;

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchProgress {
    /// Number of plans that were priced, those of the starting plans included.
    pub priced: u64,
    /// Number of plans after which the search is expected to end.
    pub expected: u64,
}

/// A function that is told how far a search is, and may end it.
pub type SearchObserver<'a> = &'a dyn Fn(SearchProgress) -> ControlFlow<()>;

/// The observer of a search, and whether it ended the search.
#[derive(Clone, Copy)]
pub struct SearchWatch<'a> {
    observe: SearchObserver<'a>,
    expected: u64,
    is_ended: bool,
}

impl<'a> SearchWatch<'a> {
    /// Creates a watch that reports to an observer.
    #[must_use]
    pub fn new(observe: SearchObserver<'a>) -> Self {
        Self { observe, expected: 0, is_ended: false }
    }

    /// Sets the number of plans after which the search is expected to end.
    pub fn expect(&mut self, plans: u64) {
        self.expected = plans;
    }

    /// Reports that so many plans were priced.
    pub fn report(&mut self, priced: u64) {
        if !self.is_ended {
            let progress = SearchProgress { priced, expected: self.expected.max(priced) };
            self.is_ended = (self.observe)(progress).is_break();
        }
    }

    /// Whether the observer ended the search.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }
}

impl Default for SearchWatch<'_> {
    fn default() -> Self {
        Self::new(&|_| ControlFlow::Continue(()))
    }
}

impl fmt::Debug for SearchWatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, is_ended, .. } = self;
        f.debug_struct("SearchWatch")
            .field("expected", expected)
            .field("is_ended", is_ended)
            .finish_non_exhaustive()
    }
}
