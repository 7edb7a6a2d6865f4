//! Numbers of any width, one after the other, the lowest bit first.

/// Packs numbers of any width into bytes, the lowest bit first.
#[derive(Clone, Debug, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    /// Bits of the last byte that are used; 0 where it is full.
    used: u32,
}

impl BitWriter {
    /// Appends the lowest `width` bits of a value.
    pub fn bits(&mut self, value: u32, width: u32) {
        for bit in 0..width {
            if self.used == 0 {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> bit & 1) as u8) << self.used;
            }
            self.used = (self.used + 1) % 8;
        }
    }

    /// Appends the 32 bits of a float.
    pub fn float(&mut self, value: f32) {
        self.bits(value.to_bits(), 32);
    }

    /// Returns the bytes, the last one padded with zero bits.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads back the numbers that a [`BitWriter`] packed.
#[derive(Clone, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    /// Starts at the first bit of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads the next number of `width` bits; `None` at the end.
    pub fn bits(&mut self, width: u32) -> Option<u32> {
        let mut value = 0;
        for bit in 0..width {
            let byte = self.bytes.get(self.at / 8)?;
            value |= u32::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(value)
    }

    /// Reads the next 32 bits as a float; `None` at the end.
    pub fn float(&mut self) -> Option<f32> {
        self.bits(32).map(f32::from_bits)
    }

    /// Checks that only the padding of the last byte is left to read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.at.div_ceil(8) == self.bytes.len()
    }
}
