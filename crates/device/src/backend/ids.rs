//! The ids of a batch on a device, and their exchange between ranks. [`crate::ops::jagged`] defines
//! what is exchanged.

use schema::JaggedTensor;

use super::Backend;
use crate::error::Error;
use crate::ops::jagged::{IdCounts, IdMessages, LocalIds};

/// The ids of a batch that are looked up, with the buffers of their exchange between ranks.
///
/// The functions of this trait use a queue that belongs to the ids. A communication thread can
/// therefore call them while the compute thread queues operations. [`Backend::acquire_ids`] and
/// [`Backend::release_ids`] order both queues. [`Backend::ids`] creates the buffers; the default
/// value only holds ids that [`Backend::send_ids`] sent.
pub trait DistributedIds: Default + Send {
    /// Splits the ids of a batch by the ranks that own their rows:
    /// [`crate::ops::jagged::split`]. The ids must be rows of their tables. Waits for the queue of
    /// the ids, because messages are sent from host memory.
    ///
    /// # Errors
    /// Fails with [`Error::Jagged`] if the layout of the ids is invalid.
    fn split(&mut self, sparse: &JaggedTensor, messages: &mut IdMessages) -> Result<(), Error>;
    /// Joins the ids that all ranks sent for the batch of the last split:
    /// [`crate::ops::jagged::join`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if a message has the wrong size.
    fn join(&mut self, messages: &mut IdMessages) -> Result<(), Error>;
    /// Splits the ids of a batch for the slots of this rank, which looks them up itself.
    ///
    /// # Errors
    /// Fails with [`Error::Jagged`] if the layout of the ids is invalid.
    fn select(&mut self, sparse: &JaggedTensor) -> Result<(), Error>;
    /// Returns the counts of the ids that were joined or selected last.
    fn counts(&self) -> &IdCounts;
    /// Returns the ids that were joined or selected last. They are borrowed in place if the host
    /// can read them, and copied to `room` otherwise. Waits for the queue of the ids.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn read<'a>(&'a self, room: &'a mut LocalIds) -> Result<&'a LocalIds, Error>;
    /// Returns the ids that were joined or selected last, for replacing their values, or `None` if
    /// they are not in host memory.
    fn host_ids(&mut self) -> Option<&mut LocalIds> {
        None
    }
}

/// The ids to look up: those of this rank's batch, or those that all ranks sent to this one.
pub struct BatchIds<'a, B: Backend> {
    /// The ids of the batch, if they are looked up unchanged. A CPU reads them in place, and other
    /// devices read the copy that [`Backend::send_ids`] made in `ids`.
    pub unchanged: Option<&'a JaggedTensor>,
    pub ids: &'a B::Ids,
}
