//! The thread that makes every MPI call. The thread sends queued messages, receives messages into
//! the mailbox, and backs off while idle.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::ffi::{Initialized, MpiFunctions, Transfer};
use crate::element::{Load, Payload, Pool};
use crate::mailbox::Mailbox;
use crate::message::{HEADER_BYTES, MessageHeader, RankMessage};

/// Largest payload in bytes that is sent in one message with its header.
const INLINE_BYTES: usize = 16 << 10;
/// Number of idle rounds before the thread sleeps. In each idle round the thread yields its core.
const ROUNDS: u32 = 200;
/// Longest sleep of the thread, and thus the longest delay of a message that arrives meanwhile.
const SLEEP: Duration = Duration::from_micros(100);

/// A request to the MPI thread.
pub enum ProgressTask {
    /// Sends a message to a rank.
    Send(usize, RankMessage),
    /// Sums these values over all ranks and returns the result on the channel.
    Sum(Vec<f32>, Sender<Vec<f32>>),
    /// Ends all ranks with this exit code.
    Abort(i32),
    /// Sends all queued messages, then shuts MPI down and reports the result.
    Finalize(Sender<Result<(), String>>),
}

/// The state shared by the MPI thread and its callers.
pub struct ProgressShared {
    pub mailbox: Mailbox,
    pub pool: Pool,
    /// Largest size in bytes of one MPI message.
    piece: usize,
    tasks: Mutex<VecDeque<ProgressTask>>,
    asked: Condvar,
}

impl ProgressShared {
    /// Creates the state for `size` ranks, with messages of at most `piece` bytes.
    pub fn new(size: usize, piece: usize) -> Self {
        let (mailbox, pool) = (Mailbox::new(size), Pool::default());
        Self { mailbox, pool, piece, tasks: Mutex::default(), asked: Condvar::new() }
    }

    /// Sends a request to the MPI thread.
    pub fn ask(&self, task: ProgressTask) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push_back(task);
        self.asked.notify_one();
    }

    fn next(&self) -> Option<ProgressTask> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn sleep(&self, at_most: Duration) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() {
            drop(self.asked.wait_timeout(tasks, at_most));
        }
    }
}

/// Serves the requests in `shared` until it is asked to finalize, or until MPI fails.
pub fn serve<H: Copy>(table: &MpiFunctions<H>, shared: &ProgressShared, world: Initialized) {
    let incoming = (0..world.size).map(|_| Incoming::Idle).collect();
    let (rank, sending, summing) = (world.rank, Vec::new(), VecDeque::new());
    let mut progress =
        MessageProgress { table, shared, rank, incoming, sending, summing, ending: None };
    let mut idle = 0;
    loop {
        match progress.round() {
            Ok(RoundResult::Work) => idle = 0,
            Ok(RoundResult::Nothing) => idle += 1,
            Ok(RoundResult::All) => return,
            Err(problem) => {
                shared.mailbox.fail(problem);
                return progress.wait_for_the_end();
            }
        }
        match idle {
            0 => {}
            1..ROUNDS => std::thread::yield_now(),
            _ => shared.sleep(SLEEP),
        }
    }
}

/// The outcome of one round of the MPI thread.
enum RoundResult {
    Work,
    Nothing,
    All,
}

/// The state of the message that is being received from one rank.
enum Incoming<H> {
    Idle,
    /// A header, together with its payload if that is small.
    Header(Transfer<H>),
    Payload(MessageHeader, Transfer<H>),
}

/// A sum in progress: the values, the result, and the channel of the waiting caller.
type Summing<H> = (Transfer<H>, Transfer<H>, Sender<Vec<f32>>);

/// The state of the thread that makes all calls to MPI: requests in progress in both directions,
/// and sums.
struct MessageProgress<'a, H> {
    table: &'a MpiFunctions<H>,
    shared: &'a ProgressShared,
    rank: usize,
    incoming: Vec<Incoming<H>>,
    sending: Vec<Transfer<H>>,
    /// Sums in progress, in the order of the requests.
    summing: VecDeque<Summing<H>>,
    ending: Option<Sender<Result<(), String>>>,
}

impl<H: Copy> MessageProgress<'_, H> {
    fn round(&mut self) -> Result<RoundResult, String> {
        let mut worked = false;
        while let Some(task) = self.shared.next() {
            worked = true;
            match task {
                ProgressTask::Send(to, message) => self.send(to, message)?,
                ProgressTask::Sum(values, reply) => {
                    let room = self.shared.pool.take(values.len());
                    let (from, to) = self.table.sum(values, room)?;
                    self.summing.push_back((from, to, reply));
                }
                ProgressTask::Abort(code) => self.table.abort(code),
                ProgressTask::Finalize(reply) => self.ending = Some(reply),
            }
        }
        worked |= self.sent()? | self.summed()?;
        if self.sending.is_empty()
            && let Some(reply) = self.ending.take()
        {
            // Sending fails only if the caller has stopped waiting, and then the result is not
            // needed.
            let _ = reply.send(self.table.finalize());
            return Ok(RoundResult::All);
        }
        let own = self.rank;
        for from in (0..self.incoming.len()).filter(|&from| from != own) {
            worked |= self.receive(from)?;
        }
        Ok(if worked { RoundResult::Work } else { RoundResult::Nothing })
    }

    fn send(
        &mut self,
        to: usize,
        RankMessage { header, payload, .. }: RankMessage,
    ) -> Result<(), String> {
        let ProgressShared { pool, piece, .. } = self.shared;
        let bytes = payload.payload().bytes();
        let is_inline = bytes.len() <= INLINE_BYTES;
        let inline = if is_inline { bytes.len() } else { 0 };
        let mut first = pool.take::<u8>(HEADER_BYTES + inline);
        first[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        first[HEADER_BYTES..].copy_from_slice(&bytes[..inline]);
        let len = first.len();
        self.sending.push(self.table.send(to, Load::Owned(Payload::U8(first)), len)?);
        if is_inline {
            pool.give_load(payload);
        } else {
            self.sending.push(self.table.send(to, payload, *piece)?);
        }
        Ok(())
    }

    /// Returns complete sums to their callers. Returns whether a sum was complete.
    fn summed(&mut self) -> Result<bool, String> {
        let Some((_, to, _)) = self.summing.front_mut() else { return Ok(false) };
        if !self.table.is_done(to)? {
            return Ok(false);
        }
        let Some((from, to, reply)) = self.summing.pop_front() else { return Ok(false) };
        self.shared.pool.give_load(from.finish());
        let sum = to.finish().into_payload(&self.shared.pool).into_values();
        // Sending fails only if the caller has stopped waiting, and then the sum is not needed.
        drop(sum.map(|sum| reply.send(sum)));
        Ok(true)
    }

    /// Recycles the buffers of completed sends. Returns whether a send was complete.
    fn sent(&mut self) -> Result<bool, String> {
        let under_way = self.sending.len();
        let mut i = 0;
        while i < self.sending.len() {
            if self.table.is_done(&mut self.sending[i])? {
                self.shared.pool.give_load(self.sending.swap_remove(i).finish());
            } else {
                i += 1;
            }
        }
        Ok(self.sending.len() < under_way)
    }

    /// Continues the receive from rank `from`. Returns whether the receive made progress.
    fn receive(&mut self, from: usize) -> Result<bool, String> {
        let (table, shared) = (self.table, self.shared);
        match std::mem::replace(&mut self.incoming[from], Incoming::Idle) {
            Incoming::Idle => {
                let Some(bytes) = table.probe(from)? else { return Ok(false) };
                let room = Payload::U8(shared.pool.take(bytes));
                self.incoming[from] = Incoming::Header(table.receive(from, room, bytes.max(1))?);
            }
            Incoming::Header(mut transfer) => {
                if !table.is_done(&mut transfer)? {
                    self.incoming[from] = Incoming::Header(transfer);
                    return Ok(false);
                }
                self.headed(from, transfer.finish())?;
            }
            Incoming::Payload(header, mut transfer) => {
                if !table.is_done(&mut transfer)? {
                    self.incoming[from] = Incoming::Payload(header, transfer);
                    return Ok(false);
                }
                shared.mailbox.put(from, RankMessage::new(header, transfer.finish()));
            }
        }
        Ok(true)
    }

    /// Parses the header of a message. A small payload is part of the same message, and a larger
    /// one is received next.
    fn headed(&mut self, from: usize, first: Load) -> Result<(), String> {
        let bytes = first.payload().bytes();
        let unknown = || format!("rank {from} sent a malformed message of {} bytes", bytes.len());
        let (head, inline) = bytes.split_first_chunk().ok_or_else(unknown)?;
        let header = MessageHeader::from_bytes(head).ok_or_else(unknown)?;
        let element = header.operation.element;
        let len = usize::try_from(header.len).map_err(|_| unknown())?;
        let total = len.checked_mul(element.bytes()).ok_or_else(unknown)?;
        let mut payload = self.shared.pool.take_payload(element, len);
        if total > INLINE_BYTES {
            let transfer = self.table.receive(from, payload, self.shared.piece)?;
            self.incoming[from] = Incoming::Payload(header, transfer);
        } else if inline.len() == total {
            payload.bytes_mut().copy_from_slice(inline);
            self.shared.mailbox.put(from, RankMessage::new(header, Load::Owned(payload)));
        } else {
            return Err(unknown());
        }
        self.shared.pool.give_load(first);
        Ok(())
    }

    /// Serves requests after a failure of MPI. Of all MPI functions, only `MPI_Abort` is still
    /// called.
    fn wait_for_the_end(&self) {
        loop {
            match self.shared.next() {
                Some(ProgressTask::Abort(code)) => self.table.abort(code),
                Some(ProgressTask::Finalize(reply)) => {
                    let _ = reply.send(Err("MPI has already failed".to_owned()));
                }
                Some(ProgressTask::Send(..) | ProgressTask::Sum(..)) => {}
                None => self.shared.sleep(Duration::from_millis(100)),
            }
        }
    }
}
