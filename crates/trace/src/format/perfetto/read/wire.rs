//! Decodes protobuf messages into fields, with bounds checks and without knowledge of the schema.

use std::fmt;

use crate::format::perfetto::field::trace;

/// The value of a field, by its protobuf wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    Number(u64),
    /// The bytes of a text or of a nested message.
    Bytes(&'a [u8]),
}

/// An invalid message, described by the unexpected value in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Broken {
    /// Creates the error from a description of the unexpected value.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// Decodes the varint at `at`. Returns its value and the position after it.
pub fn varint(bytes: &[u8], mut at: usize) -> Result<(u64, usize), Broken> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(at).ok_or_else(|| Broken::new("the end of the data"))?;
        at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((value, at));
        }
    }
    Err(Broken::new("a number of more than ten bytes"))
}

/// Returns the content of the packet at `at`, and the position after it.
pub fn packet(bytes: &[u8], at: usize) -> Result<(&[u8], usize), Broken> {
    match field(bytes, at)? {
        (trace::PACKET, Field::Bytes(content), end) => Ok((content, end)),
        (number, ..) => Err(Broken::new(format!("field {number}"))),
    }
}

/// Calls `seen` with each field of a message in order.
pub fn each<'a>(
    bytes: &'a [u8],
    mut seen: impl FnMut(u32, Field<'a>) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let mut at = 0;
    while at < bytes.len() {
        let (number, value, end) = field(bytes, at)?;
        seen(number, value)?;
        at = end;
    }
    Ok(())
}

fn field(bytes: &[u8], at: usize) -> Result<(u32, Field<'_>, usize), Broken> {
    let (key, at) = varint(bytes, at)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| Broken::new("a field without a number"))?;
    let short = || Broken::new("the end of the data");
    let (value, end) = match key & 7 {
        0 => {
            let (value, end) = varint(bytes, at)?;
            (Field::Number(value), end)
        }
        1 => {
            let value = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(short)?;
            (Field::Number(u64::from_le_bytes(*value)), at + 8)
        }
        2 => {
            let (length, at) = varint(bytes, at)?;
            let length = usize::try_from(length).map_err(|_| short())?;
            let end = at.checked_add(length).ok_or_else(short)?;
            (Field::Bytes(bytes.get(at..end).ok_or_else(short)?), end)
        }
        5 => {
            let value = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(short)?;
            (Field::Number(u64::from(u32::from_le_bytes(*value))), at + 4)
        }
        other => return Err(Broken::new(format!("a field of wire type {other}"))),
    };
    Ok((number, value, end))
}
