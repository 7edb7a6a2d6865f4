//! The scalars of a step in one block of device memory. The host writes the block before the step;
//! kernels read it and store the outcome in it.
//!
//! ```text
//! dense rule 48 | sparse rule 48 | normaliser f64 | …       written before a step
//! … loss f64 | first bad u64 | updated 3 × u64 | stop u32   reset before it, read after it
//! ```
//! `stop` is not reset before a step: once set, it stops all later steps.

use super::handles::grown;
use super::staging::Staging;
use crate::backend::{StepOutcome, StepScalars};
use crate::cuda::{
    Buffer, Driver, DriverError, EventPurpose, InFlight, KernelArguments, Pinned, Stream,
    StreamEvent,
};
use crate::error::Error;
use crate::ops::embedding_backward::Updated;
use crate::ops::embedding_forward::cuda::NO_BAD_ID;
use crate::optimizer::device_block;

const RULE: usize = device_block::BYTES;
const NORMALISER: usize = 2 * RULE;
const LOSS: usize = NORMALISER + 8;
const FIRST_BAD: usize = LOSS + 8;
const UPDATED: usize = FIRST_BAD + 8;
const STOP: usize = UPDATED + 24;
const BYTES: usize = STOP + 8;

/// The scalar block of one model, and its copies in transfer to the host.
#[derive(Debug, Default)]
pub struct Scalars {
    block: Option<ScalarBlock>,
}

/// The scalars on the device, and the host's copy of the inputs of the last step that began.
#[derive(Debug)]
pub(super) struct ScalarBlock {
    pub dense: Buffer,
    pub sparse: Buffer,
    pub normaliser: Buffer,
    pub loss: Buffer,
    pub first_bad: Buffer,
    pub updated: Buffer,
    pub stop: Buffer,
    written: Buffer,
    outcome: Buffer,
    pub step: Option<StepScalars>,
    /// Labels of a batch in device memory. The next field holds the losses of its samples.
    labels: Option<Buffer>,
    losses: Option<Buffer>,
    staging: Staging,
    label_staging: Staging,
    /// Pinned memory and events that no transfer uses at present.
    spare: Vec<(Pinned, StreamEvent)>,
}

/// The outcome of a step while it is transferred to the host.
#[derive(Debug)]
pub struct Ended(InFlight);

impl Scalars {
    /// Creates the scalars in `memory`, which the caller has zeroed.
    pub(super) fn new(driver: &Driver, memory: &Buffer) -> Result<Self, DriverError> {
        let outcome = memory.slice(LOSS..BYTES)?;
        let mut spare = Vec::new();
        for _ in 0..2 {
            spare.push((driver.pinned(outcome.bytes())?, driver.event(EventPurpose::Order)?));
        }
        let block = ScalarBlock {
            dense: memory.slice(0..RULE)?,
            sparse: memory.slice(RULE..NORMALISER)?,
            normaliser: memory.slice(NORMALISER..LOSS)?,
            loss: memory.slice(LOSS..FIRST_BAD)?,
            first_bad: memory.slice(FIRST_BAD..UPDATED)?,
            updated: memory.slice(UPDATED..STOP)?,
            stop: memory.slice(STOP..BYTES)?,
            written: memory.slice(0..STOP)?,
            outcome,
            step: None,
            labels: None,
            losses: None,
            staging: Staging::default(),
            label_staging: Staging::default(),
            spare,
        };
        Ok(Self { block: Some(block) })
    }

    /// Size of the scalar block in bytes.
    pub(super) const BYTES: usize = BYTES;

    pub(super) fn block(&self) -> &ScalarBlock {
        let Some(block) = &self.block else { unreachable!("operations never get an empty handle") };
        block
    }

    pub(super) fn block_mut(&mut self) -> &mut ScalarBlock {
        let Some(block) = &mut self.block else {
            unreachable!("operations never get an empty handle")
        };
        block
    }
}

impl ScalarBlock {
    /// Returns the scalars of the step that began last.
    pub fn step(&self) -> &StepScalars {
        let Some(step) = &self.step else {
            unreachable!("`begin` writes the scalars before any other operation of a step")
        };
        step
    }

    /// Uploads the scalars of a step to the device.
    pub fn begin(&mut self, stream: &Stream, step: &StepScalars) -> Result<(), DriverError> {
        self.step = Some(*step);
        let (mut pinned, done) = self.staging.take(stream.driver(), STOP)?;
        let numbers = KernelArguments::new()
            .f64(step.normaliser)
            .f64(0.0)
            .u64(NO_BAD_ID)
            .u64(0)
            .u64(0)
            .u64(0)
            .bytes();
        let rules = [step.dense, step.sparse].map(|rule| device_block::bytes(&rule, step.rounding));
        let mut rest = &mut pinned.bytes_mut()[..STOP];
        for bytes in rules.iter().chain([&numbers]) {
            let (to, behind) = rest.split_at_mut(bytes.len());
            to.copy_from_slice(bytes);
            rest = behind;
        }
        let flight = stream.upload_pinned(pinned, done, &[(0..STOP, &self.written)])?;
        self.staging.put(flight);
        Ok(())
    }

    /// Uploads the labels of a batch. Returns their buffer and a buffer for the losses of their
    /// samples.
    pub fn labels(
        &mut self,
        stream: &Stream,
        labels: &[f32],
    ) -> Result<(Buffer, Buffer), DriverError> {
        let bytes: &[u8] = bytemuck::cast_slice(labels);
        let on_device = grown(stream.driver(), &mut self.labels, bytes.len())?;
        let losses = grown(stream.driver(), &mut self.losses, labels.len() * size_of::<f64>())?;
        let (mut pinned, done) = self.label_staging.take(stream.driver(), bytes.len())?;
        pinned.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let part = (0..bytes.len(), &on_device);
        let flight = stream.upload_pinned(pinned, done, &[part])?;
        self.label_staging.put(flight);
        Ok((on_device, losses))
    }

    /// Starts the transfer of a step's results to the host.
    pub fn end(&mut self, stream: &Stream) -> Result<Ended, DriverError> {
        let (pinned, done) = match self.spare.pop() {
            Some(block) => block,
            None => (
                stream.driver().pinned(self.outcome.bytes())?,
                stream.driver().event(EventPurpose::Order)?,
            ),
        };
        Ok(Ended(stream.download_pinned(&self.outcome, pinned, done)?))
    }

    /// Waits for the results of a step and returns them.
    pub fn outcome(&mut self, Ended(flight): Ended) -> Result<StepOutcome, Error> {
        let (pinned, event) = flight.wait()?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&pinned.bytes()[at - LOSS..][..8]);
            u64::from_ne_bytes(bytes)
        };
        let first_bad = word(FIRST_BAD);
        let outcome = StepOutcome {
            loss: f64::from_bits(word(LOSS)),
            updated: Updated {
                unique_rows: word(UPDATED) as usize,
                unique_elements: word(UPDATED + 8) as usize,
                unique_bytes: word(UPDATED + 16) as usize,
            },
            bad_id: (first_bad != NO_BAD_ID).then_some(first_bad as usize),
        };
        self.spare.push((pinned, event));
        Ok(outcome)
    }
}
