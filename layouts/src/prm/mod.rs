//! Bit fields of PRM structures: commands, contexts, capabilities.
//!
//! The PRM and the kernel's `mlx5_ifc.h` describe a structure as a string of bits, most significant
//! bit of byte 0 first, kept in big-endian dwords. A [`Field`] names one run of those bits by the
//! offset in the header, and its type gives their meaning; a [`View`] reads fields from bytes and a
//! [`ViewMut`] writes them. Only this file shifts and masks.
//!
//! ```
//! use barewire_layouts::command::qp::{QpState, Qpc};
//! use barewire_layouts::prm::{Layout, View, ViewMut};
//!
//! let mut bytes = [0; Qpc::BYTES];
//! let mut qpc = ViewMut::<Qpc>::new(&mut bytes).expect("sized by the layout");
//! qpc.set(Qpc::STATE, QpState::Rts).set(Qpc::LOG_SQ_SIZE, 6);
//! assert_eq!(bytes[0], 0x30);
//! assert_eq!(View::<Qpc>::new(&bytes).map(|qpc| qpc.get(Qpc::STATE)), Some(Ok(QpState::Rts)));
//! ```

use core::fmt;
use core::marker::PhantomData;

mod view;

pub use view::{View, ViewMut};

/// A structure of a fixed number of bytes. The implementing type is only a name and has no values.
pub trait Layout {
    /// Length of the fixed part in bytes, without a list that may follow (page addresses,
    /// translations).
    const BYTES: usize;
    /// The structure's name in `mlx5_ifc.h`, for messages.
    const NAME: &'static str;
}

/// What the bits of a [`Field`] mean to the host.
pub trait Value: Copy {
    /// The result of a read: the value itself if every bit pattern has a meaning, else a `Result`.
    type Read;

    /// The bits, right-aligned.
    fn to_bits(self) -> u64;

    /// Reads right-aligned bits.
    fn from_bits(bits: u64) -> Self::Read;
}

macro_rules! integer_value {
    ($($integer:ty),*) => {$(
        impl Value for $integer {
            type Read = Self;

            #[inline]
            fn to_bits(self) -> u64 {
                u64::from(self)
            }

            #[inline]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

integer_value!(u8, u16, u32, u64);

impl Value for bool {
    type Read = Self;

    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
}

/// A field holds a number that its enumeration does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownValue {
    /// The name of the enumeration in error messages.
    pub what: &'static str,
    /// The number found.
    pub bits: u64,
}

impl fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} is no known {}", self.bits, self.what)
    }
}

impl core::error::Error for UnknownValue {}

/// Declares an enumeration of a field's values, with `TryFrom` of its integer, [`Value`] and
/// `Display`.
macro_rules! field_enum {
    ($(#[$doc:meta])* $name:ident: $integer:ty, $what:literal {
        $($(#[$item_doc:meta])* $item:ident = $bits:literal, $text:literal;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($integer)]
        pub enum $name {
            $($(#[$item_doc])* $item = $bits,)+
        }

        impl $name {
            /// Every value, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$item),+];
        }

        impl TryFrom<$integer> for $name {
            type Error = $crate::prm::UnknownValue;

            #[inline]
            fn try_from(bits: $integer) -> Result<Self, Self::Error> {
                match bits {
                    $($bits => Ok(Self::$item),)+
                    _ => Err($crate::prm::UnknownValue { what: $what, bits: u64::from(bits) }),
                }
            }
        }

        impl $crate::prm::Value for $name {
            type Read = Result<Self, $crate::prm::UnknownValue>;

            #[inline]
            fn to_bits(self) -> u64 {
                self as u64
            }

            #[inline]
            fn from_bits(bits: u64) -> Self::Read {
                match <$integer>::try_from(bits) {
                    Ok(bits) => Self::try_from(bits),
                    Err(_) => Err($crate::prm::UnknownValue { what: $what, bits }),
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(match self {
                    $(Self::$item => $text,)+
                })
            }
        }
    };
}
pub(crate) use field_enum;

/// Declares structures by name and length: `Cqc: 64, "cqc";`.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident: $bytes:expr, $text:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {}

        impl $crate::prm::Layout for $name {
            const BYTES: usize = $bytes;
            const NAME: &'static str = $text;
        }
    )+};
}
pub(crate) use layouts;

/// A run of bits of structure `L` that holds a `T`.
pub struct Field<L, T = u32> {
    bit: usize,
    width: usize,
    of: PhantomData<fn() -> (L, T)>,
}

impl<L: Layout, T> Field<L, T> {
    /// The field of `width` bits (1 to 64) at bit offset `bit`, both as `mlx5_ifc.h` has them.
    ///
    /// # Panics
    /// If the field does not lie in `L`, or needs more than eight bytes to reach; at compile time
    /// when used in a constant.
    pub const fn new(bit: usize, width: usize) -> Self {
        assert!(width >= 1 && bit % 8 + width <= 64, "a field spans at most eight bytes");
        assert!(bit + width <= L::BYTES * 8, "a field lies inside its structure");
        Self { bit, width, of: PhantomData }
    }

    /// The largest number that fits.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }

    /// Width in bits.
    pub const fn width(self) -> usize {
        self.width
    }

    /// First byte, and one past the last byte, that hold bits of the field.
    const fn span(self) -> (usize, usize) {
        (self.bit / 8, (self.bit + self.width).div_ceil(8))
    }

    /// Bits of the last byte below the field.
    const fn shift(self) -> usize {
        self.span().1 * 8 - self.bit - self.width
    }
}

impl<L, T> Clone for Field<L, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, T> Copy for Field<L, T> {}

impl<L: Layout, T> fmt::Debug for Field<L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{:#x}+{}]", L::NAME, self.bit, self.width)
    }
}

/// A structure `M` at a byte offset inside `L`.
pub struct Nested<L, M> {
    byte: usize,
    of: PhantomData<fn() -> (L, M)>,
}

impl<L: Layout, M: Layout> Nested<L, M> {
    /// The structure that starts at bit offset `bit` of `mlx5_ifc.h`.
    ///
    /// # Panics
    /// If it does not start on a byte or does not lie in `L`; at compile time when used in a
    /// constant.
    pub const fn new(bit: usize) -> Self {
        assert!(bit.is_multiple_of(8), "a nested structure starts on a byte");
        assert!(bit / 8 + M::BYTES <= L::BYTES, "a nested structure lies inside its structure");
        Self { byte: bit / 8, of: PhantomData }
    }
}

impl<L, M> Clone for Nested<L, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, M> Copy for Nested<L, M> {}

impl<L: Layout, M: Layout> fmt::Debug for Nested<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{:#x}: {}]", L::NAME, self.byte * 8, M::NAME)
    }
}

/// `N` plain bytes inside `L`: a GID, a MAC address.
pub struct ByteField<L, const N: usize> {
    byte: usize,
    of: PhantomData<fn() -> L>,
}

impl<L: Layout, const N: usize> ByteField<L, N> {
    /// The bytes that start at bit offset `bit` of `mlx5_ifc.h`.
    ///
    /// # Panics
    /// If they do not start on a byte or do not lie in `L`; at compile time when used in a
    /// constant.
    pub const fn new(bit: usize) -> Self {
        assert!(bit.is_multiple_of(8), "bytes start on a byte");
        assert!(bit / 8 + N <= L::BYTES, "bytes lie inside their structure");
        Self { byte: bit / 8, of: PhantomData }
    }
}

impl<L, const N: usize> Clone for ByteField<L, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, const N: usize> Copy for ByteField<L, N> {}

impl<L: Layout, const N: usize> fmt::Debug for ByteField<L, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{:#x}: {N} bytes]", L::NAME, self.byte * 8)
    }
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macros declare public items")]
mod tests {
    use super::*;
    use std::format;

    layouts! {
        /// A structure with every kind of field.
        Sample: 24, "sample";
        /// The structure inside it.
        Inner: 8, "inner";
    }

    field_enum! {
        /// Three colours in four bits.
        Colour: u8, "colour" {
            /// Red.
            Red = 1, "red";
            /// Green.
            Green = 2, "green";
        }
    }

    impl Sample {
        const COLOUR: Field<Self, Colour> = Field::new(0x0, 4);
        const FLAG: Field<Self, bool> = Field::new(0x4, 1);
        const MIDDLE: Field<Self> = Field::new(0x5, 24);
        const ADDRESS: Field<Self, u64> = Field::new(0x20, 64);
        const INNER: Nested<Self, Inner> = Nested::new(0x60);
        const MAC: ByteField<Self, 6> = ByteField::new(0xa0 - 0x20);
    }

    impl Inner {
        const LAST: Field<Self, u16> = Field::new(0x30, 16);
    }

    #[test]
    fn bits_count_from_the_most_significant() {
        let mut bytes = [0u8; Sample::BYTES];
        let mut sample = ViewMut::<Sample>::new(&mut bytes).unwrap();
        sample
            .set(Sample::COLOUR, Colour::Green)
            .set(Sample::FLAG, true)
            .set(Sample::MIDDLE, 0xab_cdef)
            .set(Sample::ADDRESS, 0x0102_0304_0506_0708);
        sample.nested(Sample::INNER).set(Inner::LAST, 0xbeef);
        assert_eq!(&bytes[..4], [0x2d, 0x5e, 0x6f, 0x78]);
        assert_eq!(&bytes[4..12], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&bytes[12..20], [0, 0, 0, 0, 0, 0, 0xbe, 0xef]);

        let sample = View::<Sample>::new(&bytes).unwrap();
        assert_eq!(sample.get(Sample::COLOUR), Ok(Colour::Green));
        assert!(sample.get(Sample::FLAG));
        assert_eq!(sample.get(Sample::MIDDLE), 0xab_cdef);
        assert_eq!(sample.get(Sample::ADDRESS), 0x0102_0304_0506_0708);
        assert_eq!(sample.nested(Sample::INNER).get(Inner::LAST), 0xbeef);
        assert_eq!(
            format!("{sample:?}"),
            "sample { 0x0: 2d5e6f78 0x20: 01020304 0x40: 05060708 0x80: 0000beef }"
        );
    }

    #[test]
    fn a_store_leaves_its_neighbours() {
        let mut bytes = [0xff_u8; Sample::BYTES];
        let mut sample = ViewMut::<Sample>::new(&mut bytes).unwrap();
        sample.set(Sample::MIDDLE, 0);
        sample.set_array(Sample::MAC, [1, 2, 3, 4, 5, 6]);
        assert_eq!(sample.view().array(Sample::MAC), [1, 2, 3, 4, 5, 6]);
        assert_eq!(&bytes[..4], [0xf8, 0, 0, 0x07]);
        assert_eq!(&bytes[15..23], [0xff, 1, 2, 3, 4, 5, 6, 0xff]);
    }

    #[test]
    fn short_bytes_give_no_view() {
        assert!(View::<Sample>::new(&[0; Sample::BYTES - 1]).is_none());
        assert!(ViewMut::<Sample>::new(&mut [0; 0]).is_none());
        assert!(View::<Sample>::new(&[0; Sample::BYTES + 1]).is_some());
    }

    #[test]
    fn unknown_values_say_what_they_are() {
        let bytes = [0xf0; Sample::BYTES];
        let unknown = View::<Sample>::new(&bytes).unwrap().get(Sample::COLOUR).unwrap_err();
        assert_eq!(format!("{unknown}"), "0xf is no known colour");
        assert_eq!(Colour::try_from(1), Ok(Colour::Red));
        assert_eq!(Colour::ALL.len(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "does not fit")]
    fn a_value_too_large_is_a_mistake() {
        let mut bytes = [0; Sample::BYTES];
        let _ = ViewMut::<Sample>::new(&mut bytes).unwrap().set(Sample::MIDDLE, 1 << 24);
    }
}
