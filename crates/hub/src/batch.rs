//! Decodes and checks a batch of an agent. Nothing of a refused batch is stored.
//!
//! The status decides what the agent does. After 422 it drops the entry for good, so 422 is for
//! entries that no version of the hub would accept. After other statuses it tries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleet::proto::{
    Body, Entry, EntryBatch, GpuInterval, GpuRun, HostEvent, HostInterval, RunReport, SIZE_MAX,
    StepInterval, VERSION, VERSION_MIN,
};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde::de::IgnoredAny;

use crate::tokens::TokenGrant;

/// Status of a damaged batch, which may arrive whole at the next attempt.
pub const DAMAGED: u16 = 400;
/// Status of a batch that the caller may not send, although its token is known.
pub const WRONG_CALLER: u16 = 403;
/// Status of a batch that is too large. Its entries may fit one by one.
pub const TOO_LARGE: u16 = 413;
/// Status of a batch that will never be accepted.
pub const REFUSED: u16 = 422;

/// Largest number of entries of a batch. Agents send at most 512.
const ENTRIES_MAX: usize = 4096;
/// Largest number of nested messages and texts of a batch. An empty nested message takes two bytes
/// in a batch but two hundred in memory.
const FIELDS_MAX: usize = 200_000;
/// Length of the name of a queue in bytes.
const QUEUE_BYTES: usize = 16;
/// Largest length of a text in bytes.
const TEXT_MAX: usize = 1024;
/// Largest length of the details of an event in bytes.
const DETAILS_MAX: usize = 16 << 10;
/// Largest length of the kind of an event in bytes.
const KIND_MAX: usize = 32;
/// Largest length of an interval in seconds. An interval lies within one hour.
const LENGTH_MAX_S: u32 = 3600;
/// The last second of the year 9999, after which a date has no four digits for the year.
const START_MAX_S: u64 = 253_402_300_799;
/// Number by which an observed duration may exceed its interval, because two clocks measure them.
const OBSERVED_FACTOR_MAX: f64 = 2.0;

/// A batch whose content was checked.
#[derive(Clone, Debug)]
pub struct CheckedBatch {
    pub entries: Vec<QueuedEntry>,
    pub host: Arc<str>,
    /// Time of the host's clock at which the batch was sent, in milliseconds since 1970.
    pub sent_unix_ms: Option<u64>,
    /// Number through which the agent will not send its entries again, once this batch is stored.
    pub through: u64,
}

/// An entry with the queue and the host that sent it.
#[derive(Clone, Debug)]
pub struct QueuedEntry {
    pub queue: Arc<[u8]>,
    pub host: Arc<str>,
    pub sequence: u64,
    pub body: Body,
}

/// The reason why a batch was not accepted, with an HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BatchRefusal {
    pub status: u16,
    pub reason: String,
}

impl BatchRefusal {
    /// Creates a refusal with a status and its reason.
    pub fn new(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }
}

/// Decodes a batch of rows that the caller with a token sent, and checks each of its entries.
///
/// # Errors
/// If the message is damaged, has another version, is too large, is not of the token's host, or has
/// an invalid entry.
pub fn decode(bytes: &[u8], grant: &TokenGrant) -> Result<CheckedBatch, BatchRefusal> {
    if bytes.len() > SIZE_MAX {
        let got = bytes.len();
        return Err(BatchRefusal::new(
            TOO_LARGE,
            format!("expected at most {SIZE_MAX} bytes, got {got}"),
        ));
    }
    // The parts are counted before the message is decoded, because decoding needs their memory.
    let mut left = FIELDS_MAX;
    count_fields(bytes, Nesting::Batch, &mut left)?;
    let damaged = |error| BatchRefusal::new(DAMAGED, format!("damaged protobuf message: {error}"));
    let batch = EntryBatch::decode(bytes).map_err(damaged)?;
    check_version(batch.version)?;
    if batch.entries.len() > ENTRIES_MAX {
        let got = batch.entries.len();
        let reason = format!("expected at most {ENTRIES_MAX} entries, got {got}");
        return Err(BatchRefusal::new(TOO_LARGE, reason));
    }
    if batch.queue.len() != QUEUE_BYTES {
        let got = batch.queue.len();
        return Err(refused(0, format!("expected a queue of {QUEUE_BYTES} bytes, got {got}")));
    }
    if batch.host.is_empty() || batch.host.len() > TEXT_MAX {
        let got = batch.host.len();
        return Err(refused(0, format!("expected a host of 1 to {TEXT_MAX} bytes, got {got}")));
    }
    check_sender(grant, &batch.host)?;
    let (queue, host): (Arc<[u8]>, Arc<str>) = (batch.queue.into(), batch.host.into());
    let mut through = batch.gone_through;
    let mut entries = Vec::with_capacity(batch.entries.len());
    for Entry { sequence, body } in batch.entries {
        if sequence == 0 || sequence == u64::MAX {
            return Err(refused(sequence, "expected a number from 1".to_owned()));
        }
        let Some(body) = body else {
            return Err(refused(sequence, "expected a row, got none".to_owned()));
        };
        check(&body).map_err(|reason| refused(sequence, reason))?;
        through = through.max(sequence);
        let (queue, host) = (Arc::clone(&queue), Arc::clone(&host));
        entries.push(QueuedEntry { queue, host, sequence, body });
    }
    Ok(CheckedBatch { entries, host, sent_unix_ms: batch.sent_unix_ms, through })
}

/// Checks the version of a message.
///
/// # Errors
/// If this hub does not know the version. A newer hub may know it, so the status is one after which
/// agents keep their entries.
pub fn check_version(version: u32) -> Result<(), BatchRefusal> {
    if (VERSION_MIN..=VERSION).contains(&version) {
        return Ok(());
    }
    let reason = format!("expected version {VERSION_MIN} to {VERSION}, got {version}");
    Err(BatchRefusal::new(DAMAGED, reason))
}

/// Checks that a token may send messages of a host.
///
/// # Errors
/// If the token is of another host. The status is one after which agents keep their entries.
pub fn check_sender(grant: &TokenGrant, host: &str) -> Result<(), BatchRefusal> {
    grant.check_host(host).map_err(|reason| BatchRefusal::new(WRONG_CALLER, reason))
}

fn refused(sequence: u64, reason: String) -> BatchRefusal {
    BatchRefusal::new(REFUSED, format!("entry {sequence}: {reason}"))
}

fn check(body: &Body) -> Result<(), String> {
    match body {
        Body::Gpu(row) => check_gpu(row),
        Body::Host(row) => check_host(row),
        Body::Order(_) => Ok(()),
        Body::Run(row) => check_run_report(row),
        Body::Steps(row) => check_steps(row),
        Body::Event(row) => check_event(row),
    }
}

fn check_gpu(row: &GpuInterval) -> Result<(), String> {
    check_interval(row.start_unix_s, row.length_s, row.observed_s)?;
    check_texts([row.uuid.as_str(), &row.model].into_iter())?;
    check_runs(row.runs.iter())?;
    check_texts(row.errors.keys().map(String::as_str))?;
    check_sums(row.sums.iter().chain(&row.throttle_s))
}

fn check_host(row: &HostInterval) -> Result<(), String> {
    check_interval(row.start_unix_s, row.length_s, row.observed_s)?;
    check_texts(row.bytes.keys().map(String::as_str))?;
    check_sums(row.cpu_s.iter().chain(&row.pressure_s).chain(&row.group_cpu_s))
}

fn check_run_report(row: &RunReport) -> Result<(), String> {
    let Some(run) = row.run.as_ref().filter(|run| !run.job.is_empty()) else {
        return Err("expected a run with a job, got none".to_owned());
    };
    for time_s in [row.seen_unix_s, row.started_unix_s, row.ended_unix_s.unwrap_or(0)] {
        check_time(time_s)?;
    }
    check_runs([run].into_iter())?;
    let texts = [&row.alias, &row.workflow, &row.state].into_iter().chain(&row.gpus);
    check_texts(texts.map(String::as_str))
}

fn check_steps(row: &StepInterval) -> Result<(), String> {
    check_interval(row.start_unix_s, row.length_s, 0.0)?;
    check_runs(row.run.iter())?;
    check_texts([&row.workflow, &row.phase].into_iter().map(String::as_str))?;
    if row.timed_steps > row.steps {
        let (timed, steps) = (row.timed_steps, row.steps);
        return Err(format!("expected at most {steps} steps with a known time, got {timed}"));
    }
    let times = [
        ("timed_s", Some(row.timed_s)),
        ("step_p50_s", row.step_p50_s),
        ("step_p95_s", row.step_p95_s),
        ("step_max_s", row.step_max_s),
        ("exposed_s", row.exposed_s),
    ];
    for (name, value) in times {
        check_sum(name, value.unwrap_or(0.0))?;
    }
    check_sums(row.phase_s.iter())
}

fn check_event(row: &HostEvent) -> Result<(), String> {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter == b'_';
    let length = row.kind.len();
    if length == 0 || length > KIND_MAX || !row.kind.bytes().all(is_letter) {
        let expected = format!("a kind of 1 to {KIND_MAX} lowercase letters");
        return Err(format!("expected {expected}, got {length} bytes"));
    }
    check_time(row.start_unix_ms / 1000)?;
    check_runs(row.run.iter())?;
    if row.details.len() > DETAILS_MAX {
        let got = row.details.len();
        return Err(format!("expected details of at most {DETAILS_MAX} bytes, got {got}"));
    }
    let details: Result<BTreeMap<String, IgnoredAny>, _> = serde_json::from_str(&row.details);
    details.map(drop).map_err(|error| format!("expected details as a JSON object: {error}"))
}

fn check_runs<'a>(runs: impl Iterator<Item = &'a GpuRun>) -> Result<(), String> {
    check_texts(runs.flat_map(|run| {
        [&run.scheduler, &run.job, &run.name, &run.user, &run.account, &run.partition]
            .map(String::as_str)
    }))
}

fn check_time(time_s: u64) -> Result<(), String> {
    if time_s > START_MAX_S {
        return Err(format!("expected a time before the year 10000, got {time_s}"));
    }
    Ok(())
}

fn check_interval(start_s: u64, length_s: u32, observed_s: f64) -> Result<(), String> {
    check_time(start_s)?;
    if length_s == 0 || length_s > LENGTH_MAX_S {
        return Err(format!("expected an interval of 1 to {LENGTH_MAX_S} s, got {length_s}"));
    }
    // The comparison is false for NaN.
    if !(0.0..=OBSERVED_FACTOR_MAX * f64::from(length_s)).contains(&observed_s) {
        return Err(format!("expected at most {length_s} s observed, got {observed_s}"));
    }
    Ok(())
}

fn check_texts<'a>(mut texts: impl Iterator<Item = &'a str>) -> Result<(), String> {
    match texts.find(|text| text.len() > TEXT_MAX) {
        Some(text) => {
            Err(format!("expected texts of at most {TEXT_MAX} bytes, got {}", text.len()))
        }
        None => Ok(()),
    }
}

fn check_sums<'a>(mut sums: impl Iterator<Item = (&'a String, &'a f64)>) -> Result<(), String> {
    sums.try_for_each(|(name, sum)| check_sum(name, *sum))
}

fn check_sum(name: &str, sum: f64) -> Result<(), String> {
    if name.len() <= TEXT_MAX && sum.is_finite() && sum >= 0.0 {
        return Ok(());
    }
    let name: String = name.chars().take(40).collect();
    Err(format!("{name:?}: expected a finite number from 0, got {sum}"))
}

/// The kind of message whose fields are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Batch,
    Entry,
    Row,
}

/// Subtracts the number of texts and nested messages of an encoded message from `left`.
fn count_fields(mut bytes: &[u8], nesting: Nesting, left: &mut usize) -> Result<(), BatchRefusal> {
    let damaged = |_| BatchRefusal::new(DAMAGED, "damaged protobuf message");
    let cut = || BatchRefusal::new(DAMAGED, "cut protobuf message");
    while !bytes.is_empty() {
        let (tag, wire) = decode_key(&mut bytes).map_err(damaged)?;
        let length = match wire {
            WireType::Varint => {
                decode_varint(&mut bytes).map_err(damaged)?;
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => decode_varint(&mut bytes).map_err(damaged)?,
            WireType::StartGroup | WireType::EndGroup => {
                return Err(BatchRefusal::new(DAMAGED, "expected a message without groups"));
            }
        };
        let length = usize::try_from(length).map_err(|_| cut())?;
        let (field, rest) = bytes.split_at_checked(length).ok_or_else(cut)?;
        bytes = rest;
        if wire != WireType::LengthDelimited {
            continue;
        }
        *left = left.checked_sub(1).ok_or_else(|| {
            BatchRefusal::new(TOO_LARGE, format!("expected at most {FIELDS_MAX} parts of a batch"))
        })?;
        match (nesting, tag) {
            (Nesting::Batch, 5) => count_fields(field, Nesting::Entry, left)?,
            (Nesting::Entry, 3..=8) => count_fields(field, Nesting::Row, left)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
