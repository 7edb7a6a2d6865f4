//! Encodes protobuf messages (varints, fixed64 and nested messages) without knowledge of the
//! schema.

/// Appends a number in groups of seven bits.
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field of type `uint64`, `uint32`, `bool` or an enum.
pub fn unsigned(out: &mut Vec<u8>, field: u32, value: u64) {
    push_varint(out, u64::from(field) << 3);
    push_varint(out, value);
}

/// Appends a field of type `int64` or `int32`.
pub fn signed(out: &mut Vec<u8>, field: u32, value: i64) {
    // Protobuf encodes negative numbers as their two's complement in 64 bits.
    unsigned(out, field, value as u64);
}

/// Appends a field of type `fixed64`.
pub fn fixed(out: &mut Vec<u8>, field: u32, value: u64) {
    push_varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a field of type `double`.
pub fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed(out, field, value.to_bits());
}

/// Appends a field of type `sint64`, in which small numbers of either sign are short.
pub fn sint64(out: &mut Vec<u8>, field: u32, value: i64) {
    unsigned(out, field, zigzag(value));
}

/// Applies the `sint64` encoding: the values 0, −1, 1, −2 become 0, 1, 2, 3.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Inverts [`zigzag`], to decode a `sint64` field.
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a field of type `string`.
pub fn text(out: &mut Vec<u8>, field: u32, text: &str) {
    bytes(out, field, text.as_bytes());
}

/// Appends a field of type `bytes`.
pub fn bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    push_varint(out, u64::from(field) << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a field that is a nested message.
pub fn message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    push_varint(out, u64::from(field) << 3 | 2);
    let length_at = out.len();
    // Most messages are short, so one byte is reserved for the length. A longer message is moved
    // back to make room for its length.
    out.push(0);
    fill(out);
    let length = (out.len() - length_at - 1) as u64;
    if length < 0x80 {
        out[length_at] = length as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(10);
    push_varint(&mut prefix, length);
    out.splice(length_at..=length_at, prefix);
}

#[cfg(test)]
mod tests {
    use super::{message, push_varint, signed, text, unsigned, unzigzag, zigzag};

    #[test]
    fn zigzag_round_trips() {
        let values = [0, -1, 1, -2, i64::MAX, i64::MIN];
        assert_eq!(values.map(zigzag), [0, 1, 2, 3, u64::MAX - 1, u64::MAX]);
        assert_eq!(values.map(|value| unzigzag(zigzag(value))), values);
    }

    #[test]
    fn examples_of_the_encoding_guide() {
        let mut out = Vec::new();
        unsigned(&mut out, 1, 150);
        text(&mut out, 2, "testing");
        message(&mut out, 3, |out| unsigned(out, 1, 150));
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01";
        assert_eq!(out, expected);
    }

    #[test]
    fn long_messages_have_long_lengths() {
        let mut out = Vec::new();
        message(&mut out, 1, |out| message(out, 1, |out| text(out, 1, &"x".repeat(200))));
        assert_eq!(out[..9], [0x0a, 0xce, 0x01, 0x0a, 0xcb, 0x01, 0x0a, 0xc8, 0x01]);
        assert_eq!(out.len(), 9 + 200);
    }

    #[test]
    fn negative_numbers_take_ten_bytes() {
        let mut out = Vec::new();
        signed(&mut out, 1, -1);
        assert_eq!(out.len(), 11);
        let mut largest = Vec::new();
        push_varint(&mut largest, u64::MAX);
        assert_eq!(out[1..], largest);
    }
}
