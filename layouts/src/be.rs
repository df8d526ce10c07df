//! Big-endian integers as a device or a wire stores them.
//!
//! Alignment 1, so that a struct of them has no hidden padding and can lie at any byte of a packet.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! big_endian {
    ($(#[$doc:meta])* $name:ident, $host:ty, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(transparent)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self([0; $bytes]);

            /// Stores `value`, most significant byte first.
            #[inline]
            pub const fn new(value: $host) -> Self {
                Self(value.to_be_bytes())
            }

            /// The value in host order.
            #[inline]
            pub const fn get(self) -> $host {
                <$host>::from_be_bytes(self.0)
            }
        }

        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::ZERO
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }

        impl From<$host> for $name {
            #[inline]
            fn from(value: $host) -> Self {
                Self::new(value)
            }
        }
    };
}

big_endian!(
    /// A 16-bit big-endian integer.
    Be16, u16, 2
);
big_endian!(
    /// A 32-bit big-endian integer.
    Be32, u32, 4
);
big_endian!(
    /// A 64-bit big-endian integer.
    Be64, u64, 8
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_significant_byte_first() {
        assert_eq!(Be16::new(0x0102).as_bytes(), [1, 2]);
        assert_eq!(Be32::new(0x0102_0304).as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Be64::new(0x0102_0304_0506_0708).as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Be32::read_from_bytes(&[1, 2, 3, 4]).unwrap().get(), 0x0102_0304);
    }
}
