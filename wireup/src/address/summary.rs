//! What an address says of an interface: eight bytes.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | overhead in ns, 1 ns to 59 us |
//! | 1 | latency in ns, 16 ns to 950 us |
//! | 2 | bandwidth in MB/s, 16 MB/s to 950 GB/s |
//! | 3 | priority |
//! | 4, 5 | longest buffered message in units of 64 bytes, rounded down |
//! | 6, 7 | [`Abilities`]; bit 13: the device address is not repeated; bits 14 and 15: place |

use barewire::{AtomicOperations, Attributes, Flags, Place};

use super::AddressError;
use super::float8::Float8;

const OVERHEAD: Float8 = Float8 { lowest: 0 };
const LATENCY: Float8 = Float8 { lowest: 4 };
const BANDWIDTH: Float8 = Float8 { lowest: 4 };
const MEGABYTE: f64 = 1e6;
const UNIT: usize = 64;

/// What an interface can do, as far as a plan asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Abilities(u16);

impl Abilities {
    /// Endpoints connect to an interface address.
    pub const TO_INTERFACE: Self = Self(1 << 0);
    /// Endpoints connect to each other.
    pub const TO_ENDPOINT: Self = Self(1 << 1);
    /// Active messages, short and buffered.
    pub const MESSAGES: Self = Self(1 << 2);
    /// Short puts, and buffered puts and gets.
    pub const MEMORY: Self = Self(1 << 3);
    /// Zero-copy puts.
    pub const PUT_ZCOPY: Self = Self(1 << 4);
    /// Zero-copy gets.
    pub const GET_ZCOPY: Self = Self(1 << 5);
    /// Add, fetch-add and compare-swap of 8 bytes.
    pub const ATOMICS: Self = Self(1 << 6);
    /// Every atomic operation, of 4 and 8 bytes.
    pub const ALL_ATOMICS: Self = Self(1 << 7);
    /// Requests can wait for resources.
    pub const PENDING: Self = Self(1 << 8);
    /// A thread can sleep until something happens.
    pub const EVENTS: Self = Self(1 << 9);
    /// The end of a peer is reported.
    pub const PEER_FAILURE: Self = Self(1 << 10);
    /// The device is a model in software.
    pub const SOFTWARE: Self = Self(1 << 11);
    /// Both directions share the bandwidth.
    pub const SHARED_DUPLEX: Self = Self(1 << 12);

    const NAMES: [(Self, &str); 13] = [
        (Self::TO_INTERFACE, "connect to interface"),
        (Self::TO_ENDPOINT, "connect to endpoint"),
        (Self::MESSAGES, "messages"),
        (Self::MEMORY, "short puts and buffered gets"),
        (Self::PUT_ZCOPY, "zero-copy puts"),
        (Self::GET_ZCOPY, "zero-copy gets"),
        (Self::ATOMICS, "atomics"),
        (Self::ALL_ATOMICS, "all atomics"),
        (Self::PENDING, "pending requests"),
        (Self::EVENTS, "events"),
        (Self::PEER_FAILURE, "peer failure"),
        (Self::SOFTWARE, "software device"),
        (Self::SHARED_DUPLEX, "shared duplex"),
    ];
    const ALL: u16 = (1 << 13) - 1;

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What `other` lacks.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Has every ability of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set with these bits; bits without a meaning are ignored.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & Self::ALL)
    }
}

impl std::fmt::Display for Abilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Self::NAMES
            .iter()
            .filter(|(ability, _)| self.contains(*ability))
            .map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

impl std::fmt::Debug for Abilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// What an address says of an interface. The numbers are those that the peer reads, so that both
/// sides compute with the same ones.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// CPU time of one post, in nanoseconds.
    pub overhead_ns: f64,
    /// Time of one message over the wire, in nanoseconds, with the expected number of endpoints.
    pub latency_ns: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Of two pairs that are otherwise equal, the one with the larger sum is preferred.
    pub priority: u8,
    /// Longest buffered message in bytes, a multiple of 64.
    pub max_message: usize,
    /// What it can do.
    pub abilities: Abilities,
    /// Which processes it can reach.
    pub place: Place,
}

impl Summary {
    pub(super) const BYTES: usize = 8;

    /// The summary of an interface that is to have so many endpoints.
    pub fn of(attributes: &Attributes, endpoints: u32) -> Self {
        let flags = attributes.flags;
        let conditions = [
            (Abilities::TO_INTERFACE, flags.contains(Flags::CONNECT_TO_INTERFACE)),
            (Abilities::TO_ENDPOINT, flags.contains(Flags::CONNECT_TO_EP)),
            (Abilities::MESSAGES, flags.contains(Flags::AM_SHORT | Flags::AM_BCOPY)),
            (
                Abilities::MEMORY,
                flags.contains(Flags::PUT_SHORT | Flags::PUT_BCOPY | Flags::GET_BCOPY),
            ),
            (Abilities::PUT_ZCOPY, flags.contains(Flags::PUT_ZCOPY)),
            (Abilities::GET_ZCOPY, flags.contains(Flags::GET_ZCOPY)),
            (Abilities::ATOMICS, attributes.atomic64.contains(AtomicOperations::INFINIBAND)),
            (Abilities::ALL_ATOMICS, attributes.atomic32.is_all() && attributes.atomic64.is_all()),
            (Abilities::PENDING, flags.contains(Flags::PENDING)),
            (Abilities::EVENTS, flags.contains(Flags::EVENT_FD)),
            (Abilities::PEER_FAILURE, flags.contains(Flags::ERRHANDLE_PEER_FAILURE)),
            (Abilities::SOFTWARE, flags.contains(Flags::SOFTWARE_DEVICE)),
            (Abilities::SHARED_DUPLEX, attributes.shared_duplex),
        ];
        let abilities = conditions.iter().filter(|(_, holds)| *holds);
        let abilities =
            abilities.fold(Abilities::default(), |sum, (ability, _)| sum.union(*ability));
        let latency =
            attributes.latency_ns + attributes.latency_per_endpoint_ns * f64::from(endpoints);
        Self {
            overhead_ns: attributes.overhead_ns,
            latency_ns: latency,
            bandwidth: attributes.bandwidth,
            priority: attributes.priority,
            max_message: attributes.am.max_bcopy,
            abilities,
            place: attributes.place,
        }
        .rounded()
    }

    /// As a peer reads it.
    #[must_use]
    pub fn rounded(self) -> Self {
        // Bytes that were just written have no impossible value.
        Self::from_bytes(self.to_bytes(false)).map_or(self, |(summary, _)| summary)
    }

    /// Leads to other nodes.
    pub fn reaches_other_nodes(&self) -> bool {
        self.place == Place::Network
    }

    pub(super) fn to_bytes(self, repeated: bool) -> [u8; Self::BYTES] {
        let place = match self.place {
            Place::Process => 0,
            Place::Node => 1,
            Place::Loopback => 2,
            _ => 3u16,
        };
        let [message_high, message_low] =
            u16::try_from(self.max_message / UNIT).unwrap_or(u16::MAX).to_be_bytes();
        let [flags_high, flags_low] =
            (self.abilities.0 | u16::from(repeated) << 13 | place << 14).to_be_bytes();
        [
            OVERHEAD.write(self.overhead_ns),
            LATENCY.write(self.latency_ns),
            BANDWIDTH.write(self.bandwidth / MEGABYTE),
            self.priority,
            message_high,
            message_low,
            flags_high,
            flags_low,
        ]
    }

    /// The summary, and whether the device address is that of the entry before.
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<(Self, bool), AddressError> {
        let [
            overhead,
            latency,
            bandwidth,
            priority,
            message_high,
            message_low,
            flags_high,
            flags_low,
        ] = bytes;
        let number = |format: Float8, code, field| {
            let number = format.read(code);
            if number.is_nan() { Err(AddressError::Field(field)) } else { Ok(number) }
        };
        let bits = u16::from_be_bytes([flags_high, flags_low]);
        let place = match bits >> 14 {
            0 => Place::Process,
            1 => Place::Node,
            2 => Place::Loopback,
            _ => Place::Network,
        };
        let summary = Self {
            overhead_ns: number(OVERHEAD, overhead, "overhead")?,
            latency_ns: number(LATENCY, latency, "latency")?,
            bandwidth: number(BANDWIDTH, bandwidth, "bandwidth")? * MEGABYTE,
            priority,
            max_message: usize::from(u16::from_be_bytes([message_high, message_low])) * UNIT,
            abilities: Abilities::from_bits(bits),
            place,
        };
        Ok((summary, bits & 1 << 13 != 0))
    }
}
