//! Writes a safetensors file of f32, f16 and bf16 tensors from front to back, and reads it by
//! ranges.
//!
//! The official library needs all bytes of all tensors at once. Here the writer and the reader hold
//! no more than the caller's slice. The layout is the official one: a u64 length, a JSON header,
//! and the values. This file does not depend on tables, plans and manifests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use device::mapped::Mapping;
use schema::DataType;
use serde::Deserialize;
use serde_json::Value;
use trace::file::create_anew;
use xxhash_rust::xxh3::Xxh3Default;

use super::{Checksum, Pieces};
use crate::Error;

// Values are written to disk in the byte order of memory.
const _: () = assert!(cfg!(target_endian = "little"), "safetensors files are little-endian");

/// Maximum size of a header. The official library refuses longer headers.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes that are hashed and written, or read and hashed, at a time. The bytes stay in the cache
/// between both operations.
const PIECE: usize = 1 << 20;
/// Bytes of a tensor that share one checksum. Verifying one row of each of 26 tables then takes 6.5
/// MiB, which is less than a millisecond, and a table of 1 GiB has 4,096 checksums.
const CHECKED_BYTES: usize = 256 << 10;
const LENGTH_BYTES: u64 = 8;
/// The header key under which the format keeps free texts.
const NOTES: &str = "__metadata__";

/// Writes the tensors announced at [`TensorWriter::create`], in that order, in slices of any
/// length.
pub(crate) struct TensorWriter {
    path: PathBuf,
    file: File,
    /// Number of bytes of each tensor.
    lengths: Vec<u64>,
    tensor: usize,
    written: u64,
    hash: Xxh3Default,
    piece: Xxh3Default,
    pieces: Vec<Checksum>,
    bytes: u64,
    header_checksum: Checksum,
}

impl TensorWriter {
    /// Creates the file and writes its header. The header has notes by name, and the name, format
    /// and shape of every tensor.
    pub fn create<'a>(
        path: &Path,
        notes: &BTreeMap<String, String>,
        tensors: impl Iterator<Item = (&'a str, DataType, &'a [usize])>,
    ) -> Result<Self, Error> {
        let mut parts = Vec::new();
        if !notes.is_empty() {
            let notes = notes.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
            parts.push(format!("\"{NOTES}\":{}", Value::Object(notes.collect())));
        }
        let mut lengths = Vec::new();
        let mut end = 0;
        for (name, data_type, shape) in tensors {
            let start = end;
            end += (shape.iter().product::<usize>() * data_type.bytes()) as u64;
            lengths.push(end - start);
            let (name, dtype) = (Value::from(name), dtype(data_type));
            parts.push(format!(
                "{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
            ));
        }
        let mut header = format!("{{{}}}", parts.join(","));
        // Like the official library, pad the header to a multiple of 8 bytes, which aligns the
        // values.
        while header.len() % 8 != 0 {
            header.push(' ');
        }
        let mut head = (header.len() as u64).to_le_bytes().to_vec();
        head.extend_from_slice(header.as_bytes());
        if header.len() as u64 > MAX_HEADER_BYTES {
            let problem = header_too_long(header.len() as u64);
            return Err(Error::TensorFile { path: path.to_owned(), problem });
        }
        let mut file = create_anew(path).map_err(Error::io("create", path))?;
        file.write_all(&head).map_err(Error::io("write", path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            lengths,
            tensor: 0,
            written: 0,
            hash: Xxh3Default::new(),
            piece: Xxh3Default::new(),
            pieces: Vec::new(),
            bytes: head.len() as u64 + end,
            header_checksum: Checksum::compute(&head),
        })
    }

    /// Appends f32 values to the current tensor.
    pub fn write(&mut self, values: &[f32]) -> Result<(), Error> {
        self.write_bytes(bytemuck::cast_slice(values))
    }

    /// Appends values to the current tensor, in the byte order of memory.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert!(
            self.written + bytes.len() as u64 <= self.lengths[self.tensor],
            "more values than announced"
        );
        for piece in bytes.chunks(PIECE) {
            self.hash.update(piece);
            self.hash_pieces(piece);
            self.file.write_all(piece).map_err(Error::io("write", &self.path))?;
        }
        Ok(())
    }

    /// Updates the checksums of the pieces, whose ends do not coincide with the ends of the
    /// caller's slices.
    fn hash_pieces(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = CHECKED_BYTES - (self.written % CHECKED_BYTES as u64) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.update(now);
            self.written += now.len() as u64;
            if now.len() == room {
                self.end_piece();
            }
            bytes = later;
        }
    }

    fn end_piece(&mut self) {
        self.pieces.push(Checksum(self.piece.digest()));
        self.piece.reset();
    }

    /// Ends the current tensor. Returns its checksum and, if it has several pieces, the checksums
    /// of the pieces.
    pub fn end_tensor(&mut self) -> (Checksum, Option<Pieces>) {
        assert_eq!(self.written, self.lengths[self.tensor], "fewer values than announced");
        if !self.written.is_multiple_of(CHECKED_BYTES as u64) {
            self.end_piece();
        }
        let checksum = Checksum(self.hash.digest());
        let checksums = std::mem::take(&mut self.pieces);
        let pieces = Pieces { bytes: CHECKED_BYTES as u32, checksums };
        self.hash.reset();
        self.tensor += 1;
        self.written = 0;
        (checksum, Some(pieces).filter(|pieces| pieces.checksums.len() > 1))
    }

    /// Syncs the file to disk and returns its length and the checksum of its header.
    pub fn finish(self) -> Result<(u64, Checksum), Error> {
        assert_eq!(self.tensor, self.lengths.len(), "fewer tensors than announced");
        self.file.sync_all().map_err(Error::io("sync", &self.path))?;
        Ok((self.bytes, self.header_checksum))
    }
}

/// The format, shape and position of a tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct TensorEntry {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Position of the tensor's first byte in the file.
    offset: u64,
}

impl TensorEntry {
    /// Creates an entry for a tensor whose values begin at byte `offset` of a file.
    pub fn new(dtype: &str, shape: Vec<usize>, offset: u64) -> Self {
        Self { dtype: dtype.to_owned(), shape, offset }
    }
}

/// An open safetensors file. The reader reads by position, so threads may share it.
#[derive(Debug)]
pub(crate) struct TensorReader {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, TensorEntry>,
    notes: BTreeMap<String, String>,
    header_checksum: Checksum,
}

/// The header's entry of one tensor, as defined by the safetensors format.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl TensorReader {
    /// Opens the file and checks that its header describes all of its bytes.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let bytes = file.metadata().map_err(Error::io("open", path))?.len();
        let fail = |problem| Error::TensorFile { path: path.to_owned(), problem };
        let mut length = [0; LENGTH_BYTES as usize];
        if bytes < LENGTH_BYTES {
            return Err(fail(format!("expected a header, got {bytes} bytes")));
        }
        file.read_exact_at(&mut length, 0).map_err(Error::io("read", path))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(fail(header_too_long(header_bytes)));
        }
        let start = LENGTH_BYTES + header_bytes;
        if start > bytes {
            return Err(fail(format!(
                "expected a header of {header_bytes} bytes, got a file of {bytes}"
            )));
        }
        let mut head = vec![0; start as usize];
        // Read the length again together with the header, because the checksum covers both.
        file.read_exact_at(&mut head, 0).map_err(Error::io("read", path))?;
        let text = &head[LENGTH_BYTES as usize..];
        let (notes, entries) = parse(text, start, bytes).map_err(fail)?;
        let header_checksum = Checksum::compute(&head);
        Ok(Self { path: path.to_owned(), file, entries, notes, header_checksum })
    }

    /// Wraps a file of another format whose tensors are at known positions, which must lie within
    /// the file.
    pub fn from_parts(path: &Path, file: File, entries: BTreeMap<String, TensorEntry>) -> Self {
        let (notes, header_checksum) = (BTreeMap::new(), Checksum(0));
        Self { path: path.to_owned(), file, entries, notes, header_checksum }
    }

    /// Removes `prefix` from the names of all tensors that begin with it.
    pub fn without_prefix(mut self, prefix: &str) -> Self {
        let short = |(name, entry): (String, TensorEntry)| {
            (name.strip_prefix(prefix).map(str::to_owned).unwrap_or(name), entry)
        };
        self.entries = self.entries.into_iter().map(short).collect();
        self
    }

    /// Returns the path under which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a text from the file's metadata by name, if the metadata has it.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.notes.get(name).map(String::as_str)
    }

    /// Returns the checksum of the length and the header, or 0 for files of another format.
    pub fn header_checksum(&self) -> Checksum {
        self.header_checksum
    }

    /// Returns the data type, shape and position of a tensor, or `None` if the file lacks it.
    pub fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// Returns a tensor like [`TensorReader::entry`], but a missing tensor is an error.
    pub fn expect_entry(&self, name: &str) -> Result<&TensorEntry, Error> {
        let problem = || format!("{name}: no such tensor");
        let missing = || Error::TensorFile { path: self.path.clone(), problem: problem() };
        self.entry(name).ok_or_else(missing)
    }

    /// Returns all tensors with their names, in the order of the names.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Reads values of an `F32` tensor, starting at its value `first`.
    pub fn read(&self, entry: &TensorEntry, first: u64, out: &mut [f32]) -> Result<(), Error> {
        self.read_bytes(entry, first * 4, bytemuck::cast_slice_mut(out))
    }

    /// Reads bytes of a tensor, starting at its byte `first`.
    pub fn read_bytes(&self, entry: &TensorEntry, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = self.file.read_exact_at(out, entry.offset + first);
        read.map_err(Error::io("read", &self.path))
    }

    /// Returns the position of a tensor's first byte within the file.
    pub fn offset(&self, entry: &TensorEntry) -> u64 {
        entry.offset
    }

    /// Maps the whole file into memory.
    pub fn map(&self) -> Result<Mapping, Error> {
        let file = self.file.try_clone().map_err(Error::io("open", &self.path))?;
        Mapping::map(file).map_err(Error::io("map", &self.path))
    }

    /// Reads a whole tensor and computes its checksum in the same pass.
    pub fn read_hashed(&self, entry: &TensorEntry, out: &mut [u8]) -> Result<Checksum, Error> {
        let mut hash = Xxh3Default::new();
        for (i, piece) in out.chunks_mut(PIECE).enumerate() {
            self.read_bytes(entry, (i * PIECE) as u64, piece)?;
            hash.update(piece);
        }
        Ok(Checksum(hash.digest()))
    }
}

/// Returns the bytes per value of a floating-point format, given its name in a header.
pub(crate) fn float_bytes(dtype: &str) -> Option<usize> {
    match dtype {
        "F64" => Some(8),
        "F32" => Some(4),
        "F16" | "BF16" => Some(2),
        _ => None,
    }
}

/// Returns the name of a data type in a safetensors header.
pub(crate) fn dtype(data_type: DataType) -> &'static str {
    match data_type {
        DataType::F32 => "F32",
        DataType::F16 => "F16",
        DataType::Bf16 => "BF16",
    }
}

fn header_too_long(got: u64) -> String {
    format!("expected a header of at most {MAX_HEADER_BYTES} bytes, got {got}")
}

/// The metadata texts of a file and its tensors, both by name.
type TensorFileHeader = (BTreeMap<String, String>, BTreeMap<String, TensorEntry>);

/// Parses the header of a safetensors file. Tensors must follow each other without gaps from
/// `start` to the end of the file.
fn parse(text: &[u8], start: u64, bytes: u64) -> Result<TensorFileHeader, String> {
    let mut header: BTreeMap<String, Value> =
        serde_json::from_slice(text).map_err(|error| format!("header: {error}"))?;
    let notes = header.remove(NOTES).unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let notes: BTreeMap<String, String> =
        serde_json::from_value(notes).map_err(|error| format!("{NOTES}: {error}"))?;
    let mut places = Vec::with_capacity(header.len());
    let mut entries = BTreeMap::new();
    for (name, value) in header {
        let info: Info =
            serde_json::from_value(value).map_err(|error| format!("{name}: {error}"))?;
        let [first, last] = info.data_offsets;
        let values =
            info.shape.iter().try_fold(1, |product: u64, &n| product.checked_mul(n as u64));
        let size = float_bytes(&info.dtype).map(|size| size as u64);
        let length = values.zip(size).and_then(|(values, size)| values.checked_mul(size));
        if first > last || (size.is_some() && length != Some(last - first)) {
            let shape = &info.shape;
            return Err(format!("{name}: expected bytes for shape {shape:?}, got {first}..{last}"));
        }
        places.push((first, last));
        let offset = start.saturating_add(first);
        entries.insert(name, TensorEntry { dtype: info.dtype, shape: info.shape, offset });
    }
    // The map lists tensors by name, so sort them by position before looking for gaps.
    places.sort_unstable();
    let mut end = 0;
    for (first, last) in places {
        if first != end {
            return Err(format!(
                "expected a tensor at byte {end} of the values, got one at {first}"
            ));
        }
        end = last;
    }
    if end != bytes - start {
        return Err(format!("expected {end} bytes of values, got {}", bytes - start));
    }
    Ok((notes, entries))
}
