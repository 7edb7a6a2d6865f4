//! Checks that ranks in separate processes have the same request and access the same run folder.
//!
//! The check runs before training starts.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use comm::Communicator;
use device::Backend;
use schema::{JobConfig, Rank};
use xxhash_rust::xxh3::xxh3_64;

use super::request::{RunRequest, Start};
use super::start;
use crate::Error;

/// Names of the compared parts of a request, in the order of [`hashes`].
const SUBJECTS: [&str; 5] =
    ["configuration", "sharding plan", "data", "checkpoint to start from", "device"];

/// Compares every rank's request with that of rank 0, and lets every rank read a file that rank 0
/// writes into the run folder. Every later message carries the hash of the request.
///
/// # Errors
/// [`Error::OtherRequest`], [`Error::NotShared`] or [`Error::Communication`].
pub fn agree<B: Backend>(comm: &mut Communicator, request: &RunRequest) -> Result<(), Error> {
    let own = hashes::<B>(request)?.map(u64::cast_signed);
    let all = comm.all_gather(&own)?;
    for (rank, hashes) in (0..).zip(&all) {
        let differs = |&i: &usize| hashes.get(i) != all[0].get(i);
        if let Some(subject) = (0..SUBJECTS.len()).find(differs) {
            return Err(Error::OtherRequest { rank, subject: SUBJECTS[subject] });
        }
    }
    comm.set_plan(xxh3_64(bytemuck::cast_slice(&own)));
    check_shared(comm, &request.run_folder)
}

fn hashes<B: Backend>(request: &RunRequest) -> Result<[u64; 5], Error> {
    let RunRequest { config, run_folder, .. } = request;
    // Paths of the data may differ between hosts, so its content is compared by fingerprint
    // instead.
    let mut data = config.data.clone();
    (data.train, data.evaluation) = (Vec::new(), Vec::new());
    let config = JobConfig { data, ..config.clone() };
    let config =
        config.to_toml().map_err(|source| Error::Config { path: run_folder.clone(), source })?;
    let text = |value: &dyn std::fmt::Debug| xxh3_64(format!("{value:?}").as_bytes());
    let seen = start::seen_data(request);
    let rows = request.evaluation.as_ref().map(|(_, rows)| rows);
    let data = (seen.training, seen.held_out, &request.train_rows, rows);
    // Compare only the folder's name, because hosts may mount the run folder under different paths.
    let checkpoint = match &request.start {
        Start::Fresh => None,
        Start::Checkpoint(folder) => folder.file_name(),
    };
    let shape = (request.bucket_bytes, request.schedule);
    let steps = request.trace.as_ref().map(|trace| &trace.steps);
    Ok([
        xxh3_64(config.as_bytes()),
        text(&(&request.plan, shape)),
        text(&data),
        text(&(checkpoint, request.rule_change, steps)),
        // The layout of gradients depends on the type of device, not on the GPU model.
        xxh3_64(std::any::type_name::<B>().as_bytes()),
    ])
}

/// Fails if some rank cannot read a file that rank 0 writes to `folder`. All ranks must call it.
///
/// # Errors
/// [`Error::NotShared`], [`Error::Io`] or [`Error::Communication`].
pub fn check_shared(comm: &mut Communicator, folder: &Path) -> Result<(), Error> {
    let mut secret = Vec::new();
    let mut written = Ok(());
    if comm.rank() == Rank(0) {
        // A random name cannot belong to an older file, so reading it proves access to the same
        // folder.
        let random = RandomState::new().hash_one(std::process::id());
        secret = random.to_le_bytes().to_vec();
        written = fs::write(probe_path(folder, &secret), &secret);
    }
    comm.broadcast(Rank(0), &mut secret)?;
    let path = probe_path(folder, &secret);
    let seen = fs::read(&path).is_ok_and(|read| read == secret);
    let reply = if seen { String::new() } else { host() };
    let replies = comm.all_gather(reply.as_bytes());
    if comm.rank() == Rank(0) {
        // All ranks have replied, so the file is no longer needed, whatever the outcome.
        let _ = fs::remove_file(&path);
    }
    written.map_err(Error::io("write", &path))?;
    match (0..).zip(replies?).find(|(_, host)| !host.is_empty()) {
        None => Ok(()),
        Some((rank, host)) => {
            let host = String::from_utf8_lossy(&host).into_owned();
            Err(Error::NotShared { path: folder.to_owned(), rank, host })
        }
    }
}

fn probe_path(folder: &Path, secret: &[u8]) -> std::path::PathBuf {
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("shared-{digits}.tmp"))
}

/// Returns the host name, or "unknown".
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}
