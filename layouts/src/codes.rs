//! Codes of one byte.

/// Declares an enumeration of codes, with a list of them and the function that decodes a byte.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$item_doc:meta])* $item:ident = $bits:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$item_doc])* $item = $bits,)+
        }

        impl $name {
            /// Every code, in ascending order.
            pub const ALL: [Self; [$($bits as u8),+].len()] = [$(Self::$item),+];

            /// Decodes a byte; `None` for one that this crate does not know.
            #[inline]
            pub const fn from_bits(bits: u8) -> Option<Self> {
                match bits {
                    $($bits => Some(Self::$item),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use codes;
