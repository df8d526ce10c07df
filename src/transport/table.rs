//! The table of transports. Everything that lists the transports is generated from it.

/// `transports!(then! arguments)` expands to `then!` with the arguments and the table.
///
/// A row has the feature that the transport needs, its variant and its module, its code in
/// addresses, its name, and the lengths in bytes of the bodies of its device address, interface
/// address, endpoint address and remote key.
macro_rules! transports {
    ($then:ident! $($arguments:tt)*) => {
        $crate::transport::table::$then! {
            ($($arguments)*)
            Self_ self_ 1 "self" [8, 8, 8, 16];
            #[cfg(feature = "mlx5")] RcMlx5 rc_mlx5 2 "rc_mlx5" [30, 0, 28, 4];
            #[cfg(feature = "shm")] Shm shm 3 "shm" [8, 24, 24, 41];
            #[cfg(feature = "cma")] Cma cma 4 "cma" [16, 24, 24, 36];
            #[cfg(feature = "verbs")] RcVerbs rc_verbs 6 "rc_verbs" [30, 0, 24, 4];
            #[cfg(feature = "mlx5")] UdMlx5 ud_mlx5 8 "ud_mlx5" [30, 16, 24, 4];
            #[cfg(feature = "mlx5")] DcMlx5 dc_mlx5 9 "dc_mlx5" [30, 32, 8, 4];
            #[cfg(feature = "mlx5")] XrcMlx5 xrc_mlx5 10 "xrc_mlx5" [30, 24, 40, 4];
            #[cfg(feature = "verbs")] UdVerbs ud_verbs 7 "ud_verbs" [30, 16, 24, 4];
            #[cfg(feature = "tcp")] Tcp tcp 5 "tcp" [26, 8, 16, 18];
        }
    };
}

/// `one_of!(enum Kind of Endpoint)`: an enum with a variant for the `Endpoint` of each transport.
macro_rules! one_of {
    (
        ($(#[$attribute:meta])* $visibility:vis enum $kind:ident of $object:ident)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        $(#[$attribute])*
        $visibility enum $kind {
            $($(#[$posting])* $variant($crate::transport::$module::$object),)*
        }
    };
}

/// `each!(value, object => expression)`: a match on a `Kind` with the same expression in every arm.
/// In it, `T` is the [`Transport`](crate::transport::Transport) of the arm.
///
/// `each!((endpoint, key), (object, key) => expression)`: the same on an endpoint's `Kind` and a
/// `KeyKind`, which must be of one transport.
macro_rules! each {
    (
        (($endpoint:expr, $key:expr), ($object:ident, $key_object:ident) => $body:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        match ($endpoint, $key) {
            $($(#[$posting])* (Kind::$variant($object), KeyKind::$variant($key_object)) => $body,)*
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            _ => Err(PostError::ForeignKey),
        }
    };
    (
        ($value:expr, $object:ident => $body:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        $crate::transport::table::transports!(each_of! Kind, $value, $object => $body)
    };
}

/// `each_of!(kind, value, object => expression)`: `each!` over an enum of another name than `Kind`.
macro_rules! each_of {
    (
        ($kind:ident, $value:expr, $object:ident => $body:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        match $value {
            $($(#[$posting])* $kind::$variant($object) => {
                #[allow(dead_code, reason = "not every expression names the transport")]
                type T = $crate::transport::$module::$variant;
                $body
            })*
        }
    };
}

/// `by_id!(id, expression, else other)`: a match on a `TransportId`. `other` is the result for a
/// transport that this build lacks.
macro_rules! by_id {
    (
        ($id:expr, $body:expr, else $other:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        match $id {
            $($(#[$posting])* $crate::TransportId::$variant => {
                type T = $crate::transport::$module::$variant;
                $body
            })*
            #[allow(unreachable_patterns, reason = "a build may have them all")]
            _ => $other,
        }
    };
}

/// `TransportId`, which has the transports that this build lacks, too.
macro_rules! ids {
    (
        ($(#[$attribute:meta])* $visibility:vis enum $id:ident)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
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

/// The conversions between the types of a transport and those of the dynamic API.
macro_rules! conversions {
    (
        $objects:tt
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt;)*
    ) => {
        $($(#[$posting])* $crate::transport::table::conversions_of! { $variant $module $objects })*
    };
}

macro_rules! conversions_of {
    ($variant:ident $module:ident ($($into:ident $from:ident $file:ident $kind:ident $object:ident,)*)) => {
        impl $crate::transport::sealed::Conversions for $crate::transport::$module::$variant {
            $(
                #[inline]
                fn $into(object: $crate::transport::$module::$object) -> $crate::$file::$object {
                    $crate::$file::$object($crate::$file::$kind::$variant(object))
                }

                #[inline]
                fn $from(object: &$crate::$file::$object) -> Option<&$crate::transport::$module::$object> {
                    match &object.0 {
                        $crate::$file::$kind::$variant(object) => Some(object),
                        #[allow(unreachable_patterns, reason = "a build may have one transport only")]
                        _ => None,
                    }
                }
            )*

            fn into_progress(progress: $crate::transport::$module::Progress) -> $crate::worker::Kind {
                $crate::worker::Kind::$variant(progress)
            }
        }
    };
}

pub(crate) use {by_id, conversions, conversions_of, each, each_of, ids, one_of, transports};
