//! Packs the arguments of a launch into the bytes of the one struct that a kernel takes. Each
//! value is aligned to its own size, as in a struct of C and CUDA. This module does not depend on
//! the kernels.

use super::Buffer;

/// The bytes of a kernel's argument struct, which is built field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelArguments {
    bytes: Vec<u8>,
    alignment: usize,
}

impl KernelArguments {
    /// Creates an empty list of kernel arguments.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: Vec::new(), alignment: 1 }
    }

    /// Appends the address of a buffer as a `u64`.
    #[must_use]
    pub fn buffer(self, buffer: &Buffer) -> Self {
        self.u64(buffer.address())
    }

    /// Appends the address of a buffer as a `u64`, or 0 if there is none.
    #[must_use]
    pub fn optional(self, buffer: Option<&Buffer>) -> Self {
        self.u64(buffer.map_or(0, Buffer::address))
    }

    /// Appends a `u64` argument.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// Appends a count as a `u64`.
    #[must_use]
    pub fn count(self, value: usize) -> Self {
        self.u64(value as u64)
    }

    /// Appends a `u32` argument.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// Appends an `f32` argument.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// Appends an `f64` argument.
    #[must_use]
    pub fn f64(self, value: f64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    fn push(mut self, value: &[u8]) -> Self {
        self.alignment = self.alignment.max(value.len());
        let start = self.bytes.len().next_multiple_of(value.len());
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(value);
        self
    }

    /// Returns the bytes of the struct, padded to a multiple of its strictest alignment.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(self.alignment.max(1)), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::KernelArguments;

    #[test]
    fn fields_are_laid_out_as_c_lays_them_out() {
        let arguments = KernelArguments::new().u32(1).u64(2).f32(1.0);
        let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        expected.extend(1.0f32.to_ne_bytes());
        expected.extend([0; 4]);
        assert_eq!(arguments.bytes(), expected);
    }
}
