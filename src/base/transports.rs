//! The table of transports. Everything that lists the transports is generated from it.

/// `rows!({then} (arguments))` expands to the macro `then!` with the arguments and the table.
///
/// A row has the feature that the transport needs, its variant and its module, its code in
/// addresses, its name, the lengths in bytes of the bodies of its device address, interface address,
/// endpoint address and remote key, and what its endpoints connect to.
macro_rules! rows {
    ({$($then:tt)*} $arguments:tt) => {
        $($then)*! {
            $arguments
            Self_ self_ 1 "self" [8, 8, 8, 16] [interfaces];
            #[cfg(feature = "mlx5")] RcMlx5 rc_mlx5 2 "rc_mlx5" [30, 0, 28, 4] [endpoints];
            #[cfg(feature = "shm")] Shm shm 3 "shm" [8, 24, 24, 41] [endpoints interfaces];
            #[cfg(feature = "cma")] Cma cma 4 "cma" [16, 24, 24, 36] [endpoints interfaces];
            #[cfg(feature = "verbs")] RcVerbs rc_verbs 6 "rc_verbs" [30, 0, 24, 4] [endpoints];
            #[cfg(feature = "mlx5")] UdMlx5 ud_mlx5 8 "ud_mlx5" [30, 16, 24, 4] [endpoints interfaces];
            #[cfg(feature = "mlx5")] DcMlx5 dc_mlx5 9 "dc_mlx5" [30, 32, 8, 4] [endpoints interfaces];
            #[cfg(feature = "mlx5")] XrcMlx5 xrc_mlx5 10 "xrc_mlx5" [30, 24, 40, 4] [endpoints interfaces];
            #[cfg(feature = "verbs")] UdVerbs ud_verbs 7 "ud_verbs" [30, 16, 24, 4] [endpoints interfaces];
            #[cfg(feature = "tcp")] Tcp tcp 5 "tcp" [26, 8, 16, 18] [endpoints interfaces];
        }
    };
}

/// `TransportId`, which has the transports that this build lacks, too.
macro_rules! ids {
    (
        ($(#[$attribute:meta])* $visibility:vis enum $id:ident)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
    ) => {
        $(#[$attribute])*
        $visibility enum $id {
            $(#[doc = concat!("`", $name, "`")] $variant = $code,)*
        }

        impl $id {
            /// The transports of this build.
            pub const BUILT: &'static [Self] = &[$($(#[$posting])* Self::$variant,)*];
            /// Every transport, also those that this build lacks.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name by which users know the transport.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The transport with this code in addresses.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Bytes of the body of an address; the transports write and read exactly these.
            const fn body(self, kind: Kind) -> usize {
                match self {
                    $(Self::$variant => $bodies[kind as usize],)*
                }
            }
        }
    };
}

pub(crate) use {ids, rows};
