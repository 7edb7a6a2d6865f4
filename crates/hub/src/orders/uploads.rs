//! Receives the traces of orders in parts. An agent that lost an answer asks how many bytes the hub
//! has, and continues there. A trace appears under its name when all of it is on disk and its
//! checksum is right.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use fleet::proto::{TraceFileBytes, TracePart};
use xxhash_rust::xxh3::Xxh3;

use super::result::REPORT_FILE;
use super::{HubOrder, OrderBoard};
use crate::batch::{BatchRefusal, REFUSED};
use crate::error::Error;
use crate::log::say;
use crate::store::{sync_folder, walk_sizes};
use crate::tokens::hexadecimal;

/// Folder of the traces in the folder of their order.
pub const FILES: &str = "files";
/// Ending of the names of traces. Agents send compressed traces.
const ENDING: &str = ".json.gz";
/// Ending of a trace of which parts are missing.
const UNFINISHED: &str = ".part";
/// Largest length of the name of a trace in bytes.
const NAME_MAX: usize = 128;
/// Largest number of traces of one order. An agent traces at most 128 processes.
const FILES_MAX: usize = 4096;
/// Number of bytes of a trace that are read at a time.
const BLOCK: usize = 256 << 10;

impl OrderBoard {
    /// Stores a part of a trace. Returns the number of bytes that the hub has from the start of the
    /// file.
    ///
    /// # Errors
    /// If the hub did not order this trace from this agent, if the file is malformed or too large,
    /// or if its checksum is wrong. Nothing of this part is stored then.
    pub fn receive(&self, part: &TracePart) -> Result<u64, BatchRefusal> {
        let order = self.check_order(part)?;
        let Some(file) = &part.file else { return Err(refused("expected a file, got none")) };
        check_file(file, order.size_max)?;
        let length = part.bytes.len() as u64;
        if part.offset.checked_add(length).is_none_or(|end| end > file.bytes) {
            return Err(refused(format!("expected a part within the {} bytes", file.bytes)));
        }
        let _one = self.upload.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder.order_path(order.id).join(FILES);
        let path = folder.join(stored_name(&order, &part.host, &file.name));
        let stored = self.append(&path, file, part);
        match stored {
            Ok(received) => received,
            Err(error) => {
                say(&format!("error: a trace is not stored: {error}"));
                Err(BatchRefusal::new(503, "the trace cannot be stored now"))
            }
        }
    }

    /// Finds the order of a part, which its agent must have received.
    fn check_order(&self, part: &TracePart) -> Result<HubOrder, BatchRefusal> {
        let kept = self.lock();
        let order = kept.orders.values().find(|order| order.token == part.token);
        let queue = hexadecimal(&part.queue);
        let is_its = |order: &&HubOrder| {
            order
                .hosts
                .iter()
                .any(|one| one.host == part.host && one.queue.as_ref() == Some(&queue))
        };
        let Some(order) = order.filter(is_its) else {
            return Err(refused("expected the name of an order that this agent received"));
        };
        if kept.analyses.contains_key(&order.id) {
            return Err(refused("expected a trace before the traces of its order are analyzed"));
        }
        Ok(order.clone())
    }

    /// Appends a part to its file. Returns the number of bytes that the hub has, or the reason of a
    /// refusal.
    fn append(
        &self,
        path: &Path,
        file: &TraceFileBytes,
        part: &TracePart,
    ) -> Result<Result<u64, BatchRefusal>, Error> {
        if let Ok(metadata) = fs::metadata(path) {
            let is_same = metadata.len() == file.bytes && checksum(path)? == file.checksum;
            let other = || refused("expected a new name, got that of another trace");
            return Ok(is_same.then_some(file.bytes).ok_or_else(other));
        }
        let folder = path.parent().unwrap_or(path);
        self.folder.create_folder(folder)?;
        let unfinished = PathBuf::from(format!("{}{UNFINISHED}", path.display()));
        let received = fs::metadata(&unfinished).map_or(0, |metadata| metadata.len());
        // A probe without bytes comes first, so the limits are checked once for each file.
        if received == 0 {
            let (total, count) = (walk_sizes(&self.folder.orders_path())?, fs::read_dir(folder));
            let most = self.limits.total_mib << 20;
            if total.saturating_add(file.bytes) > most {
                let got = total.saturating_add(file.bytes);
                let reason = format!("expected at most {most} bytes of traces at the hub");
                return Ok(Err(refused(format!("{reason}, got {got}"))));
            }
            if count.map_or(0, Iterator::count) >= FILES_MAX {
                return Ok(Err(refused(format!(
                    "expected at most {FILES_MAX} traces of an order"
                ))));
            }
        }
        if part.bytes.is_empty() || part.offset != received {
            return Ok(Ok(received));
        }
        let mut out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&unfinished)
            .map_err(Error::io(&unfinished, "open"))?;
        if let Err(error) = out.write_all(&part.bytes) {
            // A part that was written in part is written again as a whole.
            let _ = out.set_len(received);
            return Err(Error::io(&unfinished, "write")(error));
        }
        let received = received + part.bytes.len() as u64;
        if received < file.bytes {
            return Ok(Ok(received));
        }
        out.sync_all().map_err(Error::io(&unfinished, "sync"))?;
        if checksum(&unfinished)? != file.checksum {
            fs::remove_file(&unfinished).map_err(Error::io(&unfinished, "remove"))?;
            return Ok(Err(refused("expected bytes with the checksum of the trace, got others")));
        }
        fs::rename(&unfinished, path).map_err(Error::io(path, "create"))?;
        sync_folder(folder)?;
        Ok(Ok(received))
    }

    /// Lists the traces of an order that are whole, with their sizes in bytes.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn files(&self, id: u64) -> Result<Vec<(String, u64)>, Error> {
        let folder = self.folder.order_path(id).join(FILES);
        let mut files = Vec::new();
        for name in crate::store::names(&folder)? {
            if name.ends_with(ENDING) {
                let path = folder.join(&name);
                let metadata = fs::metadata(&path).map_err(Error::io(&path, "read"))?;
                files.push((name, metadata.len()));
            }
        }
        files.sort();
        Ok(files)
    }

    /// Opens the report of an order, with its size in bytes. Returns `None` if it does not exist.
    pub fn open_report(&self, id: u64) -> Option<(File, u64)> {
        open_file(&self.folder.order_path(id).join(REPORT_FILE))
    }

    /// Opens a trace of an order, with its size in bytes. Returns `None` if it does not exist.
    pub fn open_trace(&self, id: u64, name: &str) -> Option<(File, u64)> {
        is_file_name(name).then_some(())?;
        open_file(&self.folder.order_path(id).join(FILES).join(name))
    }
}

fn open_file(path: &Path) -> Option<(File, u64)> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    Some((file, length))
}

fn refused(reason: impl Into<String>) -> BatchRefusal {
    BatchRefusal::new(REFUSED, reason)
}

fn check_file(file: &TraceFileBytes, size_max: u64) -> Result<(), BatchRefusal> {
    if !is_file_name(&file.name) {
        return Err(refused(format!("expected a plain file name that ends with {ENDING}")));
    }
    if !(1..=size_max).contains(&file.bytes) {
        let got = file.bytes;
        return Err(refused(format!("expected a trace of 1 to {size_max} bytes, got {got}")));
    }
    let is_sum = file.checksum.len() == 16
        && file.checksum.bytes().all(|one| matches!(one, b'0'..=b'9' | b'a'..=b'f'));
    if !is_sum {
        return Err(refused("expected a checksum of 16 hexadecimal digits"));
    }
    Ok(())
}

/// Whether a text is a file name that leads nowhere else.
fn is_file_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= NAME_MAX
        && name.ends_with(ENDING)
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

/// Returns the name under which a trace is stored. Ranks are unique in an order, but ids of
/// processes only on their host.
fn stored_name(order: &HubOrder, host: &str, name: &str) -> String {
    let at = order.hosts.iter().position(|one| one.host == host).unwrap_or(0);
    let is_unique = order.hosts.len() == 1 || name.starts_with("rank-");
    if is_unique { name.to_owned() } else { format!("host-{at}-{name}") }
}

/// Computes the checksum of a file, which is its XXH3 hash as 16 hexadecimal digits.
fn checksum(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    let (mut hash, mut block) = (Xxh3::new(), vec![0; BLOCK]);
    loop {
        let count = file.read(&mut block).map_err(Error::io(path, "read"))?;
        if count == 0 {
            return Ok(format!("{:016x}", hash.digest()));
        }
        hash.update(&block[..count]);
    }
}
