//! The enums over the transports, and matches on them: generated from the table of transports.

/// `transports!(then! arguments)` expands to the macro `then!` of this file with the arguments and
/// the table.
macro_rules! transports {
    ($then:ident! $($arguments:tt)*) => {
        $crate::base::transports::rows! { {$crate::dynamic::table::$then} ($($arguments)*) }
    };
}

/// `one_of!(enum Kind of Endpoint)`: an enum with a variant for the `Endpoint` of each transport.
macro_rules! one_of {
    (
        ($(#[$attribute:meta])* $visibility:vis enum $kind:ident of $object:ident)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
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
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
    ) => {
        match ($endpoint, $key) {
            $($(#[$posting])* (Kind::$variant($object), KeyKind::$variant($key_object)) => $body,)*
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            _ => Err(PostError::ForeignKey),
        }
    };
    (
        ($value:expr, $object:ident => $body:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
    ) => {
        $crate::dynamic::table::transports!(each_of! Kind, $value, $object => $body)
    };
}

/// `each_of!(kind, value, object => expression)`: `each!` over an enum of another name than `Kind`.
macro_rules! each_of {
    (
        ($kind:ident, $value:expr, $object:ident => $body:expr)
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
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
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
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

/// The implementations of [`Transport`](super::transport::Transport), by the functions of each
/// transport's objects.
macro_rules! implement {
    (
        ()
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt [$($to:ident)+];)*
    ) => {
        $($(#[$posting])* $crate::dynamic::table::implement_one! { $variant $module $($to)+ })*
    };
}

macro_rules! implement_one {
    ($variant:ident $module:ident $($to:ident)+) => {
        impl $crate::dynamic::transport::Transport for $crate::transport::$module::$variant {
            const ID: $crate::TransportId = $crate::TransportId::$variant;
            type Domain = $crate::transport::$module::Domain;
            type Memory = $crate::transport::$module::Memory;
            type RemoteKey = $crate::transport::$module::RemoteKey;
            type Interface = $crate::transport::$module::Interface;
            type Progress = $crate::transport::$module::Progress;
            type Endpoint = $crate::transport::$module::Endpoint;

            fn attributes(config: &$crate::InterfaceConfig) -> $crate::Attributes {
                $crate::transport::$module::attributes(config)
            }

            fn open(device: &str) -> Result<Self::Domain, $crate::OpenError> {
                <Self::Domain>::open(device)
            }

            fn open_interface(
                domain: &Self::Domain,
                config: &$crate::InterfaceConfig,
            ) -> Result<(Self::Interface, Self::Progress), $crate::OpenError> {
                <Self::Interface>::open(domain, config)
            }

            $($crate::dynamic::table::connect_to! { $to })+
        }
    };
}

macro_rules! connect_to {
    (endpoints) => {
        fn open_endpoint(interface: &Self::Interface) -> Result<Self::Endpoint, $crate::OpenError> {
            <Self::Endpoint>::new(interface)
        }

        fn connect(
            endpoint: &Self::Endpoint,
            peer: &$crate::PeerAddress,
        ) -> Result<(), $crate::ConnectError> {
            endpoint.connect(peer)
        }
    };
    (interfaces) => {
        fn connect_to_interface(
            interface: &Self::Interface,
            peer: &$crate::PeerAddress,
        ) -> Result<Self::Endpoint, $crate::ConnectError> {
            interface.connect(peer)
        }
    };
}

/// The conversions between the types of a transport and those of the dynamic API.
macro_rules! conversions {
    (
        $objects:tt
        $($(#[$posting:meta])* $variant:ident $module:ident $code:literal $name:literal $bodies:tt $to:tt;)*
    ) => {
        $($(#[$posting])* $crate::dynamic::table::conversions_of! { $variant $module $objects })*
    };
}

macro_rules! conversions_of {
    ($variant:ident $module:ident ($($into:ident $from:ident $file:ident $kind:ident $object:ident,)*)) => {
        impl $crate::dynamic::transport::sealed::Conversions for $crate::transport::$module::$variant {
            $(
                #[inline]
                fn $into(object: $crate::transport::$module::$object) -> $crate::dynamic::$file::$object {
                    $crate::dynamic::$file::$object($crate::dynamic::$file::$kind::$variant(object))
                }

                #[inline]
                fn $from(object: &$crate::dynamic::$file::$object) -> Option<&$crate::transport::$module::$object> {
                    match &object.0 {
                        $crate::dynamic::$file::$kind::$variant(object) => Some(object),
                        #[allow(unreachable_patterns, reason = "a build may have one transport only")]
                        _ => None,
                    }
                }
            )*

            fn into_progress(progress: $crate::transport::$module::Progress) -> $crate::dynamic::worker::Kind {
                $crate::dynamic::worker::Kind::$variant(progress)
            }
        }

        impl $crate::transport::handle::InDynamic for $crate::transport::$module::$variant {
            type Dynamic = $crate::dynamic::endpoint::Endpoint;

            fn to_dynamic(endpoint: &$crate::transport::$module::Endpoint) -> Self::Dynamic {
                $crate::dynamic::endpoint::Endpoint::from_static::<Self>(endpoint.clone())
            }
        }
    };
}

pub(crate) use {
    by_id, connect_to, conversions, conversions_of, each, each_of, implement, implement_one,
    one_of, transports,
};
