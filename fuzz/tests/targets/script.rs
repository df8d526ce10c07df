//! A fuzz input that is read from its start. Missing bytes are zero.

use bolero::{ValueGenerator, produce};

/// Inputs of up to `length` bytes.
pub(crate) fn bytes_to(length: usize) -> impl ValueGenerator<Output = Vec<u8>> {
    produce::<Vec<u8>>().with().len(0..=length)
}

/// The remaining bytes.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether all bytes were read.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `length` bytes, or as many as there are.
    pub(crate) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        front
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Reads a big-endian number.
    pub(crate) fn number(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Changes up to three of `bytes`.
    pub(crate) fn mutate(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let (at, change) = (usize::from(self.number()), self.byte());
            if let Some(byte) = at.checked_rem(bytes.len()).and_then(|at| bytes.get_mut(at)) {
                *byte ^= change;
            }
        }
    }
}
