//! Serializes models: a line with the version, a line of JSON, packed trees, and a checksum over
//! everything before it.

use schema::random::mix;
use serde::{Deserialize, Serialize};

use super::Error;
use super::baseline::Baseline;
use super::bins::Bins;
use super::bit_stream::{BitReader, BitWriter};
use super::correction::Correction;
use super::error_interval::ErrorInterval;
use super::feature::MOST;
use super::forest::Forest;
use super::measured::Timed;
use super::model::{DeviceModel, DeviceResidual, KernelModel, LaunchOverheads, Source, Unseen};
use super::work::Kind;

/// File format version that is written, and the only one that can be read.
pub const VERSION: u32 = 2;
/// The start of a file, before its version.
const NAME: &str = "rowmill kernel model ";
/// Bytes of the checksum.
const SUM: usize = 8;

/// The JSON header of a model file: everything but bins and trees.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    kind: String,
    sources: Vec<Source>,
    least: Vec<u64>,
    most: Vec<u64>,
    unseen: ErrorInterval,
    devices: Vec<DeviceHead>,
}

/// The JSON header of one device: everything but its trees.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceHead {
    device: String,
    rows: usize,
    floors_ns: LaunchOverheads,
    #[serde(default, skip_serializing_if = "Timed::is_call")]
    timed: Timed,
    line: Baseline,
    slack: f64,
    interval: ErrorInterval,
    /// Middle, shift and slope, where it has no trees of its own.
    adapted: Option<(f64, f64, f64)>,
}

impl KernelModel {
    /// Serializes the model: a JSON header, bit-packed trees and a checksum.
    ///
    /// # Errors
    /// [`Error::Model`] if a figure has no JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let device = |of: &DeviceModel| DeviceHead {
            device: of.device.clone(),
            rows: of.rows,
            floors_ns: of.floors.clone(),
            timed: of.timed,
            line: of.line,
            slack: of.slack,
            interval: of.interval.clone(),
            adapted: match of.learnt {
                DeviceResidual::Own(_) => None,
                DeviceResidual::Adapted(by) => Some((by.middle, by.shift, by.slope)),
            },
        };
        let head = Head {
            kind: self.kind.name().to_owned(),
            sources: self.sources.clone(),
            least: self.least.clone(),
            most: self.most.clone(),
            unseen: self.unseen.interval.clone(),
            devices: self.devices.iter().map(device).collect(),
        };
        let json = serde_json::to_string(&head)
            .map_err(|error| wrong("numbers that JSON can hold", &error))?;
        let mut bytes = format!("{NAME}{VERSION}\n{json}\n").into_bytes();
        let mut out = BitWriter::default();
        out.bits(self.bins.ends().len() as u32, 8);
        for ends in self.bins.ends() {
            out.bits(ends.len() as u32, 8);
            ends.iter().for_each(|end| out.float(*end));
        }
        self.pooled.write(&mut out);
        self.unseen.forest.write(&mut out);
        for device in &self.devices {
            if let DeviceResidual::Own(forest) = &device.learnt {
                forest.write(&mut out);
            }
        }
        bytes.extend(out.into_bytes());
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        Ok(bytes)
    }

    /// Parses the bytes that [`KernelModel::to_bytes`] writes.
    ///
    /// # Errors
    /// [`Error::Model`] for another version, damaged bytes, or bytes that are not a model.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (head, rest) = lines(bytes)?;
        let json = std::str::from_utf8(head).map_err(|error| wrong("JSON", &error))?;
        let head: Head =
            serde_json::from_str(json).map_err(|error| wrong("a model's first lines", &error))?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == head.kind);
        let kind = kind.ok_or_else(|| wrong("a known kind", &format!("{:?}", head.kind)))?;
        let mut input = BitReader::new(rest);
        let found = trees(&mut input, head, kind).filter(|_| input.is_at_end());
        found.ok_or_else(|| wrong("trees and their bins", &"other bytes"))
    }
}

/// Splits a file into its JSON line and the packed trees, after checking version and checksum.
fn lines(bytes: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let line_end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n');
    let name = bytes.strip_prefix(NAME.as_bytes());
    let name = name.ok_or_else(|| wrong("a kernel model of rowmill", &"another file"))?;
    let end = line_end(name).ok_or_else(|| wrong("a version", &"the end of the file"))?;
    let version = String::from_utf8_lossy(&name[..end]);
    if version != VERSION.to_string() {
        return Err(wrong(&format!("version {VERSION}"), &format!("version {version}")));
    }
    let (content, sum) = bytes.split_at(bytes.len().saturating_sub(SUM));
    if sum != checksum(content).to_le_bytes() {
        return Err(wrong("bytes with their checksum", &"damaged or cut bytes"));
    }
    let body = content.get(NAME.len() + end + 1..).unwrap_or_default();
    let end = line_end(body).ok_or_else(|| wrong("a line of JSON", &"none"))?;
    Ok((&body[..end], &body[end + 1..]))
}

fn trees(input: &mut BitReader<'_>, head: Head, kind: Kind) -> Option<KernelModel> {
    let count = input.bits(8)? as usize;
    let mut ends = Vec::new();
    for _ in 0..count {
        let ends_of = input.bits(8)?;
        let read: Vec<f32> = (0..ends_of).map(|_| input.float()).collect::<Option<_>>()?;
        ends.push(read);
    }
    let (pooled, unseen) = (Forest::read(input, count)?, Forest::read(input, count)?);
    let mut devices = Vec::new();
    for of in head.devices {
        let learnt = match of.adapted {
            None => DeviceResidual::Own(Forest::read(input, count)?),
            Some((middle, shift, slope)) => {
                DeviceResidual::Adapted(Correction { middle, shift, slope })
            }
        };
        let (floors, interval) = (of.floors_ns, of.interval);
        let is_line = of.line.is_valid();
        let is_valid = floors.is_valid() && is_line && interval.is_valid() && of.slack > 0.0;
        if !is_valid {
            return None;
        }
        let (device, rows, timed) = (of.device, of.rows, of.timed);
        let (line, slack) = (of.line, of.slack);
        devices.push(DeviceModel { device, rows, floors, timed, line, slack, learnt, interval });
    }
    let sizes = kind.sizes().len();
    let is_valid = count <= MOST
        && head.least.len() == sizes
        && head.most.len() == sizes
        && head.unseen.is_valid()
        && !devices.is_empty();
    let unseen = Unseen { forest: unseen, interval: head.unseen };
    let (sources, least, most) = (head.sources, head.least, head.most);
    let bins = Bins::from_ends(ends);
    is_valid.then_some(KernelModel { kind, sources, least, most, bins, pooled, unseen, devices })
}

fn wrong(expected: &str, got: &impl ToString) -> Error {
    Error::Model { expected: expected.to_owned(), got: got.to_string() }
}

/// Computes a checksum over eight bytes at a time; the last chunk is padded with zeros.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix(bytes.len() as u64), |sum, chunk| {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        mix(sum.rotate_left(23) ^ u64::from_le_bytes(eight))
    })
}
