//! Assigns the ids that link rows to each other. The Kineto trace and the execution trace use the
//! same ids for an operation.
//!
//! Record functions are numbered from 1 in order of their start. Each step is a record function,
//! and the numbers of its operations follow the number of the step.

use crate::record::{Recorder, StepSpan};

/// Ids of a step or of an operation in the written files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationIdentity {
    /// Id of the record function, written as `External id` and `Record function id` in Kineto and
    /// as `rf_id` in the execution trace.
    pub record_function: u64,
    /// Id that links a runtime call to its kernel, or 0 if there is no kernel.
    pub correlation: u64,
    /// Sequence number of a collective on this rank, or 0 for other operations.
    pub collective: u64,
}

/// A step with its own id and the ids of its operations.
pub struct NumberedStep<'a> {
    pub step: &'a StepSpan,
    pub record_function: u64,
    pub operations: Vec<OperationIdentity>,
}

/// Assigns ids to all steps of a recording, in order.
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
