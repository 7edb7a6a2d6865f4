//! Reads files of `torch.save` (`.pt`, `.pth`, `.bin`).
//!
//! Such a file is a zip archive. The archive contains a pickle, which describes each tensor, and
//! the tensors' bytes, which are read in place. The pickle is never executed, see
//! [`super::pickle`]. This file does not depend on models.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::pickle::{Id, Pickle, PickleValue};
use crate::Error;
use crate::checkpoint::{TensorEntry, TensorReader};

/// The first bytes of an archive, and the first bytes of files that `torch.save` wrote before
/// version 1.6.
const ARCHIVE: &[u8] = b"PK\x03\x04";
const OLD: &[u8] = b"\x80\x02";
/// Maximum depth of nested dicts that are searched for tensors.
const DEPTH: usize = 4;
/// Maximum size of a pickle that is read. Usual pickles have about 100 bytes per tensor.
const PICKLE_BYTES: u64 = 256 << 20;
/// Keys under which programs usually save the weights, the most specific first.
const KEPT_AS: [&str; 4] = ["state_dict", "model_state_dict", "model", "module"];

/// Opens a state dict in a safetensors file or a file of `torch.save`.
///
/// # Errors
/// [`Error::TensorFile`] or [`Error::Pickled`] describes the defect of the file.
pub(super) fn open(path: &Path) -> Result<TensorReader, Error> {
    let mut start = Vec::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    let bytes = file.metadata().map_err(Error::io("open", path))?.len();
    (&file).take(4).read_to_end(&mut start).map_err(Error::io("read", path))?;
    // A safetensors file begins with the length of its header, whose first byte may have any value.
    // Compare at least three bytes, so that a length is not taken for another format.
    if start == ARCHIVE {
        let file = File::open(path).map_err(Error::io("open", path))?;
        return read_archive(path, file, bytes);
    }
    if start.starts_with(OLD) && start.get(2) == Some(&0x8a) {
        let problem = "expected a zip archive, got the format of PyTorch before version 1.6; save \
                       it again with torch.save"
            .to_owned();
        return Err(Error::Pickled { path: path.to_owned(), problem });
    }
    TensorReader::open(path)
}

/// Location of an archive's storages: first byte and length, by name.
type Storages = BTreeMap<String, (u64, u64)>;

fn read_archive(path: &Path, file: File, bytes: u64) -> Result<TensorReader, Error> {
    let fail = |problem: String| Error::Pickled { path: path.to_owned(), problem };
    let broken = |error: zip::result::ZipError| fail(format!("the archive: {error}"));
    let mut archive = ZipArchive::new(BufReader::new(&file)).map_err(broken)?;
    let mut text = Vec::new();
    let mut storages = Storages::new();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).map_err(broken)?;
        let name = member.name().map_err(broken)?.into_owned();
        // Members of the archive are in a folder with the name of the file.
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name).to_owned();
        let (place, length) = (member.data_start().unwrap_or_default(), member.size());
        // Tensors are read in place later, which is impossible if their bytes are compressed.
        if member.compression() != CompressionMethod::STORE || place + length > bytes {
            return Err(fail(format!("{name}: expected stored bytes, got compressed ones")));
        }
        let mut read = |out: &mut dyn io::Write, limit| {
            // The zip reader verifies the member's checksum when it reaches the member's end.
            let copied = io::copy(&mut (&mut member).take(limit), out);
            copied.map_err(|error| fail(format!("{name}: {error}")))
        };
        if name == "data.pkl" {
            read(&mut text, PICKLE_BYTES)?;
        } else if name == "byteorder" {
            let mut order = Vec::new();
            read(&mut order, 16)?;
            if order != b"little" {
                return Err(fail("expected little-endian tensors, got big-endian ones".to_owned()));
            }
        } else if let Some(key) = name.strip_prefix("data/") {
            // Read the tensor once, only to verify its checksum.
            read(&mut io::sink(), u64::MAX)?;
            storages.insert(key.to_owned(), (place, length));
        }
    }
    if text.is_empty() {
        return Err(fail("expected data.pkl in the archive, as torch.save writes it".to_owned()));
    }
    let pickle = Pickle::read(&text).map_err(fail)?;
    let entries = entries(&pickle, &storages).map_err(fail)?;
    // The archive borrows the file, so it must be dropped before the reader takes ownership of the
    // file.
    drop(archive);
    Ok(TensorReader::from_parts(path, file, entries))
}

/// Locates the tensors of a state dict, by name.
fn entries(pickle: &Pickle, storages: &Storages) -> Result<BTreeMap<String, TensorEntry>, String> {
    let mut entries = BTreeMap::new();
    for (name, tensor) in state_dict(pickle)? {
        let entry =
            entry(pickle, tensor, storages).map_err(|problem| format!("{name}: {problem}"))?;
        entries.insert(name.to_owned(), entry);
    }
    Ok(entries)
}

/// Finds the tensors of the state dict. The search has this order:
/// - the tensors under one of the usual keys
/// - the tensors of the whole pickle
/// - the tensors of the pickle's only entry that has tensors
///
/// Tensors next to a usual key, such as the state of a random generator, are not weights.
fn state_dict(pickle: &Pickle) -> Result<Vec<(&str, Id)>, String> {
    let Some(top) = pickle.dict(pickle.root) else {
        return Err("expected a dict of tensors, as model.state_dict() gives it".to_owned());
    };
    if let Some(tensors) = usual_tensors(pickle, pickle.root, DEPTH) {
        return Ok(tensors);
    }
    let named = top.iter().filter_map(|&(key, value)| Some((pickle.text(key)?, value)));
    let mut found: Vec<(&str, Vec<(&str, Id)>)> = named
        .filter_map(|(key, value)| Some((key, usual_tensors(pickle, value, DEPTH)?)))
        .collect();
    match found.len() {
        0 => Err("expected a dict of tensors, got one without tensors".to_owned()),
        1 => Ok(found.remove(0).1),
        _ => {
            let keys: Vec<&str> = found.iter().map(|(key, _)| *key).collect();
            Err(format!("expected one dict of tensors, got {}", keys.join(", ")))
        }
    }
}

/// Finds the tensors under one of the usual keys of `dict`, or else the tensors of `dict` itself.
fn usual_tensors(pickle: &Pickle, dict: Id, depth: usize) -> Option<Vec<(&str, Id)>> {
    let entries = pickle.dict(dict)?;
    let entry = |name: &&str| {
        let is_it = |&&(key, _): &&(Id, Id)| pickle.text(key) == Some(*name);
        entries.iter().find(is_it).map(|&(_, value)| value)
    };
    let named = KEPT_AS.iter().filter_map(entry);
    let within = |value| usual_tensors(pickle, value, depth - 1);
    // The depth is limited, because a dict in a damaged pickle may contain itself.
    let of_named = if depth == 0 { None } else { named.into_iter().find_map(within) };
    of_named.or_else(|| Some(tensors_of(pickle, dict)).filter(|tensors| !tensors.is_empty()))
}

fn tensors_of(pickle: &Pickle, dict: Id) -> Vec<(&str, Id)> {
    let entries = pickle.dict(dict).unwrap_or_default().iter();
    let tensor = |&(key, value): &(Id, Id)| Some((pickle.text(key)?, tensor_of(pickle, value)?));
    entries.filter_map(tensor).collect()
}

/// Returns the arguments of the call that rebuilds a tensor. For a parameter these are the
/// arguments of its tensor's call.
fn tensor_of(pickle: &Pickle, value: Id) -> Option<Id> {
    let PickleValue::Call { name, arguments } = pickle.get(value) else { return None };
    match name.as_str() {
        "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => Some(*arguments),
        "torch._utils._rebuild_parameter" => {
            let data = *pickle.sequence(*arguments)?.first()?;
            match pickle.get(data) {
                PickleValue::Call { name, arguments } if name.contains("_rebuild_tensor") => {
                    Some(*arguments)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Locates a tensor from the call's arguments `(storage, offset, size, stride, …)`.
fn entry(pickle: &Pickle, arguments: Id, storages: &Storages) -> Result<TensorEntry, String> {
    let unlike = || "expected a tensor as torch.save writes it".to_owned();
    let arguments = pickle.sequence(arguments).unwrap_or_default();
    let [storage, offset, size, stride, ..] = arguments else { return Err(unlike()) };
    let PickleValue::Reference(reference) = pickle.get(*storage) else { return Err(unlike()) };
    // A reference to a storage is the tuple ("storage", class, key, device, number of values).
    let [_, class, key, _, _] = pickle.sequence(*reference).unwrap_or_default() else {
        return Err(unlike());
    };
    let (PickleValue::Name(class), Some(key)) = (pickle.get(*class), pickle.text(*key)) else {
        return Err(unlike());
    };
    let (dtype, width) = format_of(class).ok_or_else(|| format!("a tensor of class {class}"))?;
    let shape = extents(pickle, *size).ok_or_else(unlike)?;
    let strides = extents(pickle, *stride).ok_or_else(unlike)?;
    let values = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    let mut expected = 1usize;
    // The stride of a dimension with extent 1 is never used, so it may have any value.
    for (&extent, &stride) in shape.iter().zip(&strides).rev() {
        if extent > 1 && stride != expected {
            return Err(format!(
                "expected a contiguous tensor, got strides {strides:?} of shape {shape:?}; save it \
                 with .contiguous()"
            ));
        }
        expected = expected.saturating_mul(extent);
    }
    let (start, length) = *storages.get(key).ok_or_else(|| format!("no such storage: {key:?}"))?;
    let first = pickle.int(*offset).and_then(|offset| u64::try_from(offset).ok());
    let first = first.and_then(|first| first.checked_mul(width)).ok_or_else(unlike)?;
    let bytes = values.and_then(|values| (values as u64).checked_mul(width)).ok_or_else(unlike)?;
    if first.checked_add(bytes).is_none_or(|end| end > length) {
        return Err(format!("expected {bytes} bytes at byte {first} of a storage of {length}"));
    }
    Ok(TensorEntry::new(dtype, shape, start + first))
}

fn extents(pickle: &Pickle, id: Id) -> Option<Vec<usize>> {
    // `torch.Size` is pickled as a call with a tuple as its argument.
    let id = match pickle.get(id) {
        PickleValue::Call { arguments, .. } => *pickle.sequence(*arguments)?.first()?,
        _ => id,
    };
    let extent = |&member: &Id| usize::try_from(pickle.int(member)?).ok();
    pickle.sequence(id)?.iter().map(extent).collect()
}

/// Returns the safetensors name of a storage class, and its bytes per value.
fn format_of(class: &str) -> Option<(&'static str, u64)> {
    Some(match class {
        "torch.FloatStorage" => ("F32", 4),
        "torch.DoubleStorage" => ("F64", 8),
        "torch.HalfStorage" => ("F16", 2),
        "torch.BFloat16Storage" => ("BF16", 2),
        "torch.LongStorage" => ("I64", 8),
        "torch.IntStorage" => ("I32", 4),
        "torch.ShortStorage" => ("I16", 2),
        "torch.CharStorage" => ("I8", 1),
        "torch.ByteStorage" => ("U8", 1),
        "torch.BoolStorage" => ("BOOL", 1),
        _ => return None,
    })
}
