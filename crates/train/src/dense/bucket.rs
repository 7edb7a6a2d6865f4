//! Sums dense gradients over ranks in buckets of several parameters.
//!
//! A bucket is sent as soon as its last gradient is complete, and sums are awaited once all buckets
//! are sent. The content of a bucket depends only on the model and the bucket size. Values are
//! summed one by one in rank order, so the bucket size does not change any bit.

use std::collections::VecDeque;
use std::ops::Range;

use comm::{Communicator, StartedCollective, VectorParts};
use device::Backend;
use schema::Op;

use crate::Error;
use crate::context::RankContext;

/// Default size of a bucket in bytes, the same as in PyTorch's `DistributedDataParallel`.
pub const BUCKET_BYTES: usize = 25 << 20;

/// The sums of a bucket, and the position at which the sums of one parameter begin.
pub type BucketSums<'a> = (&'a VectorParts<f32>, usize);

/// A callback that updates one parameter, given its number and its summed gradient. The callback
/// returns the number of elements of that gradient.
pub type Update<'a, B> = &'a mut dyn FnMut(
    &mut RankContext<B>,
    &<B as Backend>::Scalars,
    (usize, BucketSums<'_>),
) -> Result<usize, Error>;

/// The buckets of a model, filled from its last parameter to its first.
pub struct Buckets {
    /// Number of elements from which on a bucket is closed.
    limit: usize,
    /// Range of parameter numbers of each bucket, and its number of elements. The first bucket has
    /// an extra element, whose sum is above 0 if any rank's updates are stopped.
    layout: Vec<(Range<usize>, usize)>,
    /// The bucket that is being filled. The first `filled` elements of the bucket are written.
    open: VectorParts<f32>,
    filled: usize,
    /// Number of buckets that have been sent.
    started: usize,
    under_way: VecDeque<StartedCollective<VectorParts<f32>>>,
    spare: Vec<VectorParts<f32>>,
}

impl Buckets {
    /// Creates empty buckets of about `bytes` bytes each.
    pub fn with_bucket_bytes(bytes: usize) -> Self {
        Self {
            limit: (bytes / size_of::<f32>()).max(1),
            layout: Vec::new(),
            open: VectorParts::default(),
            filled: 0,
            started: 0,
            under_way: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Returns whether parameters have been assigned to buckets.
    pub fn is_laid_out(&self) -> bool {
        !self.layout.is_empty()
    }

    /// Assigns parameters to buckets, given their number of elements in the model's order.
    pub fn lay_out(&mut self, lengths: &[usize]) {
        let mut end = lengths.len();
        let (mut first, mut elements) = (end, 0);
        // Gradients are complete from the last parameter to the first, so buckets are filled in
        // this order.
        for length in lengths.iter().rev() {
            first -= 1;
            elements += length;
            if elements >= self.limit || first == 0 {
                self.layout.push((first..end, elements));
                (end, elements) = (first, 0);
            }
        }
        if let Some((_, elements)) = self.layout.first_mut() {
            *elements += 1;
        }
    }

    /// Returns whether parameter `number` completes the first bucket, which also carries the flag
    /// that a rank's updates are stopped.
    pub fn completes_first(&self, number: usize) -> bool {
        self.started == 0 && self.layout[0].0.start == number
    }

    /// Opens a bucket for the next parameter's gradient, unless one is open.
    pub fn open(&mut self, comm: &Communicator) {
        if self.filled == 0 {
            self.open = self.spare.pop().unwrap_or_default();
            self.open.reset(comm, self.layout[self.started].1);
        }
    }

    /// Appends the gradient of the next parameter to the open bucket.
    pub fn write(&mut self, gradient: &[f32]) {
        self.open.write(self.filled, gradient);
        self.filled += gradient.len();
    }

    /// Sends the open bucket if parameter `number` completes it.
    pub fn close(&mut self, comm: &mut Communicator, number: usize) -> Result<(), Error> {
        if number == self.layout[self.started].0.start {
            let sent = comm.start_sum(std::mem::take(&mut self.open))?;
            self.under_way.push_back(sent);
            (self.started, self.filled) = (self.started + 1, 0);
        }
        Ok(())
    }

    /// Waits for the sums of all buckets in the order in which they were sent, and calls `update`
    /// for each parameter. If the updates of any rank are stopped, stops this rank's updates before
    /// the first call.
    pub fn finish<B: Backend>(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &mut B::Scalars,
        update: Update<'_, B>,
    ) -> Result<(), Error> {
        self.started = 0;
        for bucket in 0..self.layout.len() {
            let (parameters, elements) = self.layout[bucket].clone();
            let Some(pending) = self.under_way.pop_front() else { return Ok(()) };
            let RankContext { device, queue, comm, profiler } = &mut *context;
            // The stop flag in the first bucket is not a gradient, so the trace does not count it.
            let op = Op::AllReduce { elements: elements - usize::from(bucket == 0) };
            let mut sums = profiler.op(op, || pending.wait(&mut comm.dense))?;
            if bucket == 0 {
                let mut stopped = [0.0];
                sums.read(elements - 1, &mut stopped);
                if stopped[0] > 0.0 {
                    device.stop(queue, scalars)?;
                }
            }
            let mut at = 0;
            for number in parameters.rev() {
                at += update(context, scalars, (number, (&sums, at)))?;
            }
            sums.clear(&context.comm.dense);
            self.spare.push(sums);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Buckets;

    #[test]
    fn a_bucket_ends_with_the_parameter_that_fills_it() {
        let check = |bytes: usize, expected: &[usize]| {
            let mut buckets = Buckets::with_bucket_bytes(bytes);
            buckets.lay_out(&[10, 2, 30, 4, 5]);
            let sizes = buckets.layout.iter().map(|(_, elements)| *elements);
            assert!(sizes.eq(expected.iter().copied()), "{bytes}");
        };
        check(1, &[6, 4, 30, 2, 10]);
        check(4 * 9, &[10, 30, 12]);
        check(4 * 10, &[40, 12]);
        check(4 * 1000, &[52]);
    }
}
