//! The numbers that join rows: one place, so that both formats give an operation the same ones.
//!
//! Record functions (a step, then its operations) are numbered from 1 in the order in which they
//! start.

use crate::record::{Recorder, StepSpan};

/// The identity of a step or of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationIdentity {
    /// `External id` and `Record function id` in Kineto, `rf_id` in the execution trace.
    pub record_function: u64,
    /// Joins a runtime row to its kernel; 0 where there is no kernel.
    pub correlation: u64,
    /// Ordinal of a collective on this rank; 0 for any other operation.
    pub collective: u64,
}

/// A step with its identity and those of its operations.
pub struct NumberedStep<'a> {
    pub step: &'a StepSpan,
    pub record_function: u64,
    pub operations: Vec<OperationIdentity>,
}

/// Numbers all steps of a recording.
pub fn number(recorder: &Recorder) -> impl Iterator<Item = NumberedStep<'_>> {
    let (mut record_function, mut correlation, mut collective) = (0, 0, 0);
    recorder.recorded().map(move |step| {
        record_function += 1;
        let of_step = record_function;
        let operations = recorder.spans_of(step).iter().map(|span| {
            record_function += 1;
            let (mut own_correlation, mut own_collective) = (0, 0);
            if span.has_kernel() {
                correlation += 1;
                own_correlation = correlation;
            }
            if super::collective::describe(&span.op).is_some() {
                collective += 1;
                own_collective = collective;
            }
            let (correlation, collective) = (own_correlation, own_collective);
            OperationIdentity { record_function, correlation, collective }
        });
        let operations = operations.collect();
        NumberedStep { step, record_function: of_step, operations }
    })
}
