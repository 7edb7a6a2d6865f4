//! Exchanges the rows of a window between ranks that share the reading of a dataset. Each rank
//! decodes a part of the row groups, and needs rows of all of them.
//!
//! A thread exchanges windows ahead of the batches in use. `gather::message` encodes the rows; how
//! messages reach the other ranks is left to the caller of the loader.

use crossbeam_channel::{Receiver, Sender};

use crate::error::Error;
use crate::load::decode_queue::DecodeQueue;
use crate::load::gather::DecodedRows;
use crate::load::gather::message::{self, MessageLayout};
use crate::load::shuffle::{GroupWindow, Position, RankShare, ShuffleOrder};

/// An error of an exchange, which the loader passes on.
pub type ExchangeError = Box<dyn std::error::Error + Send + Sync>;

/// Sends `parts[r]` to rank r and replaces it by the part that rank r sent to this rank. The own
/// part stays. All ranks call it for the same windows in the same order.
pub type ExchangeParts = Box<dyn FnMut(&mut [Vec<u8>]) -> Result<(), ExchangeError> + Send>;

/// The sharing of a dataset between ranks, each of which starts a loader with the same options. All
/// ranks must take the same number of batches.
pub struct RowSharing {
    pub rank: u32,
    pub ranks: u32,
    pub exchange: ExchangeParts,
    /// Ends the waiting of `exchange`. The loader calls it if it is dropped before
    /// [`crate::Loader::finish`], because then the other ranks may have failed.
    pub abandon: Box<dyn FnOnce() + Send>,
}

/// A window, the error that ends the exchange, or `None` after the last window.
pub(crate) type FilledMessage = Option<Result<FilledWindow, Error>>;

/// A window whose rows for this rank are in memory.
pub(crate) struct FilledWindow {
    pub window: GroupWindow,
    pub decoded: Vec<DecodedRows>,
    /// The rows of this rank in their shuffled order, as indices into `decoded` and rows in it.
    pub rows: Vec<(u32, u32)>,
}

/// The windows that this rank exchanges with the others.
pub(crate) struct RowExchanger {
    pub order: ShuffleOrder,
    pub start: Position,
    pub share: RankShare,
    pub queue: DecodeQueue,
    pub layout: MessageLayout,
    pub exchange: ExchangeParts,
    /// Receives a message for each batch that was taken from the loader.
    pub taken: Receiver<()>,
}

/// Rows of a window by the ranks that need them.
struct RowRoutes {
    /// Rows that this rank has decoded, by the rank that needs them.
    outgoing: Vec<Vec<(u32, u32)>>,
    /// The source of each row that this rank needs: a rank, and the index among the rows that it
    /// sends.
    incoming: Vec<(u32, u32)>,
}

impl RowExchanger {
    /// Exchanges all windows and sends them to `filled`, until an error occurs or the loader is
    /// dropped. A channel that closes without a last message means that this thread panicked.
    ///
    /// A window is exchanged once the batch with the first row of the window before it is the next
    /// one to be taken. All ranks take the same number of batches, so each exchange that one rank
    /// begins is carried out by all of them, whenever the loaders are dropped.
    pub(crate) fn run(mut self, filled: &Sender<FilledMessage>) {
        self.exchange_windows(filled);
        // The send fails if the loader was dropped.
        let _ = filled.send(None);
    }

    fn exchange_windows(&mut self, filled: &Sender<FilledMessage>) {
        let (mut taken, mut needed, mut own) = (0, 0, Vec::new());
        while let Some((window, groups)) = self.queue.next() {
            while taken < needed {
                if self.taken.recv().is_err() {
                    return;
                }
                taken += 1;
            }
            needed = self.order.first_batch_of(&window, &self.start);
            let routes = self.routes(&window);
            let decoded = self.queue.decoded(groups, own);
            // The window is exchanged even if the loader was dropped, because other ranks need it.
            let received = self.exchange(&routes, decoded.as_ref());
            match decoded.and_then(|decoded| Ok((decoded, received?))) {
                Ok((decoded, received)) => {
                    own = decoded;
                    let rows = routes.incoming;
                    let filled_window = FilledWindow { window, decoded: received, rows };
                    let _ = filled.send(Some(Ok(filled_window)));
                }
                Err(error) => {
                    let _ = filled.send(Some(Err(error)));
                    return;
                }
            }
            self.queue.prefetch();
        }
    }

    /// Determines which rank decodes each row of `window`, and which needs it.
    fn routes(&self, window: &GroupWindow) -> RowRoutes {
        let RankShare { rank: own, ranks } = self.share;
        let readers = window.readers(ranks);
        // Index of each piece among those of its reader.
        let mut counts = vec![0; ranks as usize];
        let places: Vec<u32> = readers.iter().map(|&reader| next(&mut counts, reader)).collect();
        let mut sent = vec![0; ranks as usize];
        let mut routes =
            RowRoutes { outgoing: vec![Vec::new(); ranks as usize], incoming: Vec::new() };
        let rows = self.order.rows_from(&self.start, window);
        let skipped = window.row_count() - rows.len() as u64;
        let (mut row, mut rows) = (window.first_row + skipped, &rows[..]);
        while !rows.is_empty() {
            let (batch, first) = (row / self.order.batch_size, row % self.order.batch_size);
            let samples = self.order.batch_samples(batch);
            // The rows of a last batch that is dropped are not exchanged.
            if samples == 0 {
                break;
            }
            let to = ((first + 1) * ranks - 1) / samples;
            let end = RankShare { rank: to, ranks }.part_of(samples).end;
            let (now, later) = rows.split_at(rows.len().min((end - first) as usize));
            for &(piece, row) in now {
                let reader = readers[piece as usize];
                if reader == own {
                    routes.outgoing[to as usize].push((places[piece as usize], row));
                }
                if to == own {
                    routes.incoming.push((reader as u32, next(&mut sent, reader)));
                }
            }
            row += now.len() as u64;
            rows = later;
        }
        routes
    }

    /// Sends each rank the rows that it needs among those that this rank has decoded. If decoding
    /// failed, sends the error instead. Returns the rows that the other ranks have sent.
    fn exchange(
        &mut self,
        routes: &RowRoutes,
        decoded: Result<&Vec<DecodedRows>, &Error>,
    ) -> Result<Vec<DecodedRows>, Error> {
        let part = |rows: &Vec<(u32, u32)>| match decoded {
            Ok(decoded) => self.layout.encode(decoded, rows),
            Err(error) => message::encode_failure(&error.to_string()),
        };
        let mut parts: Vec<Vec<u8>> = routes.outgoing.iter().map(part).collect();
        (self.exchange)(&mut parts).map_err(|source| Error::RowExchange { source })?;
        let received = (0..).zip(&parts).map(|(rank, part)| match self.layout.decode(part) {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(problem)) => Err(Error::PeerInput { rank, problem }),
            None => Err(Error::RowMessage { rank, bytes: part.len() }),
        });
        received.collect()
    }
}

/// Counts one more of `counts` and returns the number before.
fn next(counts: &mut [u32], rank: u64) -> u32 {
    let count = &mut counts[rank as usize];
    *count += 1;
    *count - 1
}
