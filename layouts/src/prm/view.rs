//! Reading and writing the fields of a structure in place.

use core::fmt;
use core::marker::PhantomData;

use super::{ByteField, Field, Layout, Nested, Value};

/// Big-endian number of at most eight bytes.
#[inline]
fn load(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Bytes read as structure `L`.
pub struct View<'a, L> {
    bytes: &'a [u8],
    of: PhantomData<fn() -> L>,
}

impl<'a, L: Layout> View<'a, L> {
    /// Reads the first `L::BYTES` bytes; `None` if there are fewer.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        Some(Self { bytes: bytes.get(..L::BYTES)?, of: PhantomData })
    }

    /// The field's value.
    #[inline]
    pub fn get<T: Value>(&self, field: Field<L, T>) -> T::Read {
        T::from_bits(self.bits(field))
    }

    /// The field's bits as a number, whether or not its type knows that value.
    #[inline]
    pub fn bits<T>(&self, field: Field<L, T>) -> u64 {
        let (start, end) = field.span();
        load(&self.bytes[start..end]) >> field.shift() & field.max()
    }

    /// A copy of plain bytes.
    #[inline]
    pub fn array<const N: usize>(&self, field: ByteField<L, N>) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[field.byte..field.byte + N]);
        array
    }

    /// A structure inside this one.
    #[inline]
    pub fn nested<M: Layout>(&self, nested: Nested<L, M>) -> View<'a, M> {
        View { bytes: &self.bytes[nested.byte..nested.byte + M::BYTES], of: PhantomData }
    }

    /// All bytes of the structure.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<L> Clone for View<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for View<'_, L> {}

impl<L: Layout> fmt::Debug for View<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_bytes(L::NAME, self.bytes, f)
    }
}

/// Bytes written as structure `L`.
pub struct ViewMut<'a, L> {
    bytes: &'a mut [u8],
    of: PhantomData<fn() -> L>,
}

impl<'a, L: Layout> ViewMut<'a, L> {
    /// Writes into the first `L::BYTES` bytes; `None` if there are fewer. Clears nothing.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        Some(Self { bytes: bytes.get_mut(..L::BYTES)?, of: PhantomData })
    }

    /// Stores a field and leaves all other bits unchanged.
    ///
    /// # Panics
    /// In debug builds if the value does not fit; a release build keeps the bits that do.
    #[inline]
    pub fn set<T: Value>(&mut self, field: Field<L, T>, value: T) -> &mut Self {
        let value = value.to_bits();
        debug_assert!(value <= field.max(), "{value:#x} does not fit {field:?}");
        let (start, end) = field.span();
        let bytes = &mut self.bytes[start..end];
        let mask = field.max() << field.shift();
        let word = load(bytes) & !mask | value << field.shift() & mask;
        bytes.copy_from_slice(&word.to_be_bytes()[8 - (end - start)..]);
        self
    }

    /// Stores plain bytes.
    #[inline]
    pub fn set_array<const N: usize>(
        &mut self,
        field: ByteField<L, N>,
        array: [u8; N],
    ) -> &mut Self {
        self.bytes[field.byte..field.byte + N].copy_from_slice(&array);
        self
    }

    /// A structure inside this one.
    #[inline]
    pub fn nested<M: Layout>(&mut self, nested: Nested<L, M>) -> ViewMut<'_, M> {
        ViewMut { bytes: &mut self.bytes[nested.byte..nested.byte + M::BYTES], of: PhantomData }
    }

    /// The same bytes, to read.
    #[inline]
    pub fn view(&self) -> View<'_, L> {
        View { bytes: self.bytes, of: PhantomData }
    }

    /// The field's value.
    #[inline]
    pub fn get<T: Value>(&self, field: Field<L, T>) -> T::Read {
        self.view().get(field)
    }

    /// All bytes of the structure.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl<L: Layout> fmt::Debug for ViewMut<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_bytes(L::NAME, self.bytes, f)
    }
}

/// A structure's name and those of its dwords that are not zero.
fn debug_bytes(name: &str, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name} {{")?;
    for (index, dword) in bytes.chunks(4).enumerate().filter(|(_, dword)| load(dword) != 0) {
        write!(f, " {:#x}: {:08x}", index * 32, load(dword))?;
    }
    f.write_str(" }")
}
