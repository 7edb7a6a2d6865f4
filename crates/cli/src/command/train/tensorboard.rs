//! Writes the metrics of a run to `RUN/events.out.tfevents.rowmill`, which TensorBoard reads.
//!
//! The file is a series of records. A record consists of a length, its checksum, a Protobuf message
//! and its checksum. The messages are encoded here because a number with a name and a step needs
//! only four fields, and existing crates would add a second Protobuf library.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use trace::file::create_anew;

/// The version of the messages, which the first record must contain.
const VERSION: &str = "brain.Event:2";

/// Writes the TensorBoard events of one run.
pub struct TensorBoardWriter {
    path: PathBuf,
    file: Option<File>,
}

impl TensorBoardWriter {
    /// Creates the writer for the run in `folder`. No file is opened yet.
    pub fn for_run(folder: &Path) -> Self {
        Self { path: folder.join("events.out.tfevents.rowmill"), file: None }
    }

    /// Rewrites the file from the metrics in `lines`, which were written before the run was
    /// resumed.
    pub fn begin(&mut self, lines: &str) -> io::Result<()> {
        let mut bytes = record(&encode_message(unix_seconds(), 0, &field_text(3, VERSION)));
        for line in lines.lines() {
            // Parsing never fails, because the caller keeps only lines that are valid JSON.
            let value = serde_json::from_str(line).unwrap_or_default();
            bytes.extend(encode_event(&value));
        }
        let mut file = create_anew(&self.path)?;
        file.write_all(&bytes)?;
        self.file = Some(file);
        Ok(())
    }

    /// Appends the numbers in one line of `metrics.jsonl`.
    pub fn write(&mut self, line: &Value) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&encode_event(line)))
    }
}

/// Encodes all numbers of a line as one event. A number in a nested object is named `outer/inner`.
fn encode_event(line: &Value) -> Vec<u8> {
    let Some(step) = line.get("step").and_then(Value::as_u64) else { return Vec::new() };
    let mut values = Vec::new();
    collect_numbers("", line, &mut values);
    let mut summary = Vec::new();
    for (name, number) in values {
        let mut value = field_text(1, &name);
        // The tag has field number 2 and wire type 5, a 32-bit float.
        value.push(2 << 3 | 5);
        value.extend((number as f32).to_le_bytes());
        summary.extend(field_bytes(1, &value));
    }
    if summary.is_empty() {
        return Vec::new();
    }
    record(&encode_message(unix_seconds(), step, &field_bytes(5, &summary)))
}

fn collect_numbers(outer: &str, value: &Value, values: &mut Vec<(String, f64)>) {
    let Some(object) = value.as_object() else { return };
    for (name, value) in object {
        let name = if outer.is_empty() { name.clone() } else { format!("{outer}/{name}") };
        match value.as_f64() {
            Some(number) if name != "step" => values.push((name, number)),
            _ => collect_numbers(&name, value, values),
        }
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Encodes the Protobuf message `Event`. Field 1 of the message is `wall_time` and field 2 is
/// `step`. `rest` contains the encoded other fields.
fn encode_message(seconds: f64, step: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1 << 3 | 1];
    bytes.extend(seconds.to_le_bytes());
    bytes.push(2 << 3);
    bytes.extend(varint(step));
    bytes.extend(rest);
    bytes
}

fn field_text(number: u8, text: &str) -> Vec<u8> {
    field_bytes(number, text.as_bytes())
}

fn field_bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    bytes.extend(varint(content.len() as u64));
    bytes.extend(content);
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(masked(crc32c(&length)).to_le_bytes());
    bytes.extend(message);
    bytes.extend(masked(crc32c(message)).to_le_bytes());
    bytes
}

/// Masks a checksum as the file format requires. The mask prevents that the checksum of data which
/// contains its own checksum is a constant.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes CRC-32C (Castagnoli) bit by bit, which is fast enough for lines of a few hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{crc32c, encode_event, masked, varint};

    #[test]
    fn checksums_equal_published_values() {
        // The first value is the published check value of CRC-32C, and the second one, for 32 zero
        // bytes, is from RFC 3720.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(0), 0xa282_ead8);
        assert_eq!(varint(300), [0xac, 2]);
    }

    #[test]
    fn a_line_becomes_one_record_with_all_its_numbers() {
        let line = json!({"step": 7, "loss": 0.5, "evaluation": {"auc": 0.75}, "name": "x"});
        let bytes = encode_event(&line);
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), length + 16);
        let message = &bytes[12..12 + length];
        assert_eq!(message[9..11], [2 << 3, 7]);
        let text = String::from_utf8_lossy(message);
        assert!(text.contains("loss") && text.contains("evaluation/auc"), "{text}");
        assert!(!text.contains("name") && !text.contains("step"), "{text}");
        assert!(message.windows(4).any(|window| window == 0.75f32.to_le_bytes()));
        assert!(encode_event(&json!({"loss": 1.0})).is_empty());
    }
}
