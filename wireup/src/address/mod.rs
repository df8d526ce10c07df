//! A worker address: the devices and interfaces of one process as bytes.
//!
//! | bytes | meaning |
//! |---|---|
//! | 2 | `b"bw"` |
//! | 1 | version of this layout, 1 |
//! | 1 | kind, `b'W'` |
//! | 2 | length of the whole address |
//! | 16 | uuid of the process's node: 6 random bytes, and 10 of a hash over these and the flags and entries |
//! | 1 | flags; bit 0: only interfaces that reach other nodes ([`Scope::Network`]) |
//! | | then an entry for each interface: |
//! | 1 | bit 7: the device is that of the entry before; bits 0 to 6: bytes of the entry that follow |
//! | 1 | transport, as in [`TransportId`] |
//! | 8 | [`Summary`] |
//! | | body of the device address, unless it is that of the entry before |
//! | | body of the interface address |
//! | 0, 2 | of `tcp`: port of the node's control connections on the device, if it has one |
//!
//! Integers are big-endian. An entry of `self` has no addresses: the uuid names the process. The
//! hash is SHA-256. It prevents another process from using the uuid with a different address: see
//! [`WorkerAddress::is_certified`].
//! Entries of transports that this library does not know are kept as they are, and skipped by a
//! plan.

mod float8;
mod summary;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use barewire::TransportId;
use barewire::address::{DeviceAddress, InterfaceAddress};
use ring::digest::{Context, SHA256};
use thiserror::Error;

pub use summary::{Abilities, Summary};

const MAGIC: [u8; 2] = *b"bw";
const VERSION: u8 = 1;
const KIND: u8 = b'W';
const HEADER: usize = 23;
/// Bytes of an entry before the addresses, without its length.
const FRONT: usize = 1 + Summary::BYTES;
const SAME_DEVICE: u8 = 0x80;
const NETWORK_ONLY: u8 = 1;
/// No address is longer, so that it fits an OFFER. 80 RDMA devices are not too many.
const LONGEST: usize = 4096;
/// No address has more entries: an OFFER names an entry by a byte.
const MOST_ENTRIES: usize = 256;
/// Random bytes at the front of the uuid of a certified address.
const SALT: usize = 6;

/// The bytes that a value of PMI-1 holds, the smallest carrier of addresses that launchers have.
pub const PMI1_VALUE: usize = 766;

/// Names a node. Its first bytes are random, so that a process that was restarted is another peer;
/// the others are a hash of the node's address, so that no process can take the name of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A new one.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn random() -> std::io::Result<Self> {
        barewire_tcp::key::random().map(Self)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which interfaces an address has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All.
    #[default]
    All,
    /// Those that reach other nodes.
    Network,
}

/// Why bytes are not a worker address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The bytes end too early.
    #[error("truncated: {got} bytes of at least {need}")]
    Truncated {
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Not written by barewire.
    #[error("foreign: it does not start with \"bw\"")]
    Foreign,
    /// Written by a version with another layout.
    #[error(
        "version {found}, this library reads version {VERSION}: use one version of barewire in a job"
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// An address of another kind, such as an endpoint's.
    #[error("kind {0:#04x} instead of a worker address")]
    Kind(u8),
    /// More bytes than the address has.
    #[error("{0} bytes too many at the end")]
    Trailing(usize),
    /// An entry has another length than its transport writes.
    #[error("entry {entry}: {found} bytes, the transport writes {expected}")]
    Length {
        /// Which entry, from 0.
        entry: usize,
        /// Bytes that the transport writes.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// A field has an impossible value.
    #[error("field {0} has an impossible value")]
    Field(&'static str),
    /// Not hexadecimal digits.
    #[error(
        "not a worker address in hexadecimal digits: character {0} is wrong, or the number is odd"
    )]
    Text(usize),
}

/// An interface in an address.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The transport; `None` if this library does not know it.
    pub transport: Option<TransportId>,
    /// The transport's code.
    pub code: u8,
    /// Entries of one device have the same number; the first device is 0.
    pub device: u16,
    /// What the interface can do and what it costs.
    pub summary: Summary,
    /// Where the device is; `None` for `self` and unknown transports.
    pub device_address: Option<DeviceAddress>,
    /// Where the interface is on its device; `None` for `self` and unknown transports.
    pub interface_address: Option<InterfaceAddress>,
    /// Port on the device on which the node accepts control connections; `tcp` only.
    pub control: Option<NonZeroU16>,
}

impl Entry {
    /// The entry of an interface on the device of that number.
    pub fn new(
        transport: TransportId,
        device: u16,
        summary: Summary,
        addresses: Option<(DeviceAddress, InterfaceAddress)>,
    ) -> Self {
        let (device_address, interface_address) = addresses.unzip();
        Self {
            transport: Some(transport),
            code: transport as u8,
            device,
            summary,
            device_address,
            interface_address,
            control: None,
        }
    }

    /// Where the node accepts control connections, if it does on this device.
    pub fn control_address(&self) -> Option<SocketAddr> {
        let device = self.device_address.as_ref()?.socket_address()?;
        Some(SocketAddr::new(device.ip(), self.control?.get()))
    }

    /// Whether the device has a loopback address.
    pub(crate) fn has_loopback(&self) -> bool {
        self.device_address.is_some_and(|device| device.is_loopback())
    }

    /// The network namespace of the device; see [`DeviceAddress::network`].
    pub(crate) fn network(&self) -> Option<[u8; 6]> {
        self.device_address?.network()
    }

    /// The transport's name, or its number if it is unknown.
    pub fn transport_name(&self) -> String {
        transport_name(self.code)
    }
}

/// The name of the transport with this code, or the code if it is unknown.
pub(crate) fn transport_name(code: u8) -> String {
    TransportId::from_code(code)
        .map_or_else(|| format!("transport {code}"), |id| id.name().to_owned())
}

/// The bytes by which other processes connect to this one.
///
/// ```
/// use barewire_wireup::address::{Uuid, WorkerAddress};
///
/// let address = WorkerAddress::new(Uuid([7; 16]), &[]);
/// assert_eq!(WorkerAddress::from_bytes(address.as_bytes())?, address);
/// assert_eq!(address.to_string().parse::<WorkerAddress>()?, address);
/// # Ok::<(), barewire_wireup::address::AddressError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress(Box<[u8]>);

impl WorkerAddress {
    /// Writes the address of a new node, whose uuid [certifies](Self::is_certified) the entries.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn certified(entries: &[Entry]) -> std::io::Result<Self> {
        let mut address = Self::new(Uuid::random()?, entries);
        let uuid = address.certificate();
        if let Some(place) = address.0.get_mut(6..22) {
            place.copy_from_slice(&uuid.0);
        }
        Ok(address)
    }

    /// Returns whether the uuid certifies the address: it is a hash of the entries, so that no
    /// other entries have it. A part of an address ([`scoped`](Self::scoped)) is not certified.
    pub fn is_certified(&self) -> bool {
        self.certificate() == self.uuid()
    }

    /// The uuid with these random bytes that certifies the entries.
    fn certificate(&self) -> Uuid {
        let mut uuid = self.uuid();
        let (salt, rest) = uuid.0.split_at_mut(SALT);
        let mut hash = Context::new(&SHA256);
        for part in [b"barewire node", &*salt, self.0.get(HEADER - 1..).unwrap_or_default()] {
            hash.update(part);
        }
        rest.copy_from_slice(&hash.finish().as_ref()[..rest.len()]);
        uuid
    }

    /// Writes an address. Entries of one device have to follow each other.
    pub fn new(uuid: Uuid, entries: &[Entry]) -> Self {
        Self::of(uuid, entries.iter(), 0)
    }

    fn of<'a>(uuid: Uuid, entries: impl Iterator<Item = &'a Entry>, flags: u8) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[MAGIC[0], MAGIC[1], VERSION, KIND, 0, 0]);
        bytes.extend_from_slice(&uuid.0);
        bytes.push(flags);
        let mut before: Option<&Entry> = None;
        for entry in entries.take(MOST_ENTRIES) {
            let start = bytes.len();
            let same = before.is_some_and(|before| before.device == entry.device);
            let device = entry.device_address.as_ref().map_or(&[][..], |address| address.body());
            let interface =
                entry.interface_address.as_ref().map_or(&[][..], |address| address.body());
            let repeated = same
                && !device.is_empty()
                && before
                    .and_then(|before| before.device_address.as_ref())
                    .map(DeviceAddress::body)
                    == Some(device);
            let device = if repeated { &[] } else { device };
            let control = entry.control.filter(|_| entry.transport == Some(TransportId::Tcp));
            let control = control.map(|port| port.get().to_be_bytes());
            let control = control.as_ref().map_or(&[][..], |port| port);
            let length = FRONT + device.len() + interface.len() + control.len();
            if start + 1 + length > LONGEST {
                // What does not fit is left out; the peer has the entries before it.
                break;
            }
            bytes.push(length as u8 | if same { SAME_DEVICE } else { 0 });
            bytes.push(entry.code);
            bytes.extend_from_slice(&entry.summary.to_bytes(repeated));
            bytes.extend_from_slice(device);
            bytes.extend_from_slice(interface);
            bytes.extend_from_slice(control);
            before = Some(entry);
        }
        let length = bytes.len() as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        Self(bytes.into_boxed_slice())
    }

    /// The part of the address that `scope` names.
    #[must_use]
    pub fn scoped(&self, scope: Scope) -> Self {
        match scope {
            Scope::All => self.clone(),
            Scope::Network => {
                let entries: Vec<_> = self.entries().collect();
                let kept = entries.iter().filter(|entry| entry.summary.reaches_other_nodes());
                Self::of(self.uuid(), kept, NETWORK_ONLY)
            }
        }
    }

    /// The bytes, for any carrier.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Checks bytes that came from elsewhere.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let (address, rest) = Self::split_from(bytes)?;
        if rest.is_empty() { Ok(address) } else { Err(AddressError::Trailing(rest.len())) }
    }

    /// Reads the address at the front of `bytes`, and returns it with the bytes behind it.
    pub fn split_from(bytes: &[u8]) -> Result<(Self, &[u8]), AddressError> {
        let truncated = |need| AddressError::Truncated { got: bytes.len(), need };
        // Foreign bytes are named as such even if there are few.
        if !(bytes.starts_with(&MAGIC) || bytes.len() < 2 && MAGIC.starts_with(bytes)) {
            return Err(AddressError::Foreign);
        }
        let header = bytes.first_chunk::<HEADER>().ok_or_else(|| truncated(HEADER))?;
        if header[2] != VERSION {
            return Err(AddressError::Version { found: header[2] });
        }
        if header[3] != KIND {
            return Err(AddressError::Kind(header[3]));
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if !(HEADER..=LONGEST).contains(&length) {
            return Err(AddressError::Field("length"));
        }
        if header[HEADER - 1] & !NETWORK_ONLY != 0 {
            return Err(AddressError::Field("flags"));
        }
        let (own, rest) = bytes.split_at_checked(length).ok_or_else(|| truncated(length))?;
        let mut entries = Entries::new(&own[HEADER..]);
        while let Some(entry) = entries.read() {
            entry?;
        }
        if entries.index > MOST_ENTRIES {
            return Err(AddressError::Field("number of entries"));
        }
        Ok((Self(own.into()), rest))
    }

    /// The node's uuid.
    pub fn uuid(&self) -> Uuid {
        let uuid = self.0.get(6..).and_then(|rest| rest.first_chunk());
        Uuid(uuid.copied().unwrap_or_default())
    }

    /// Which interfaces are in the address.
    pub fn scope(&self) -> Scope {
        if self.0.get(HEADER - 1).is_some_and(|flags| flags & NETWORK_ONLY != 0) {
            Scope::Network
        } else {
            Scope::All
        }
    }

    /// The interfaces, in the order of the bytes.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut entries = Entries::new(self.0.get(HEADER..).unwrap_or_default());
        // All were read once, when the address was made.
        std::iter::from_fn(move || entries.read()?.ok())
    }
}

/// Reads entries.
struct Entries<'a> {
    rest: &'a [u8],
    index: usize,
    device: u16,
    /// Of the entry before.
    device_body: &'a [u8],
}

impl<'a> Entries<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, index: 0, device: 0, device_body: &[] }
    }

    /// The next entry; `None` at the end.
    fn read(&mut self) -> Option<Result<Entry, AddressError>> {
        let (&first, rest) = self.rest.split_first()?;
        let entry = self.parse(first, rest);
        self.index += 1;
        Some(entry)
    }

    fn parse(&mut self, first: u8, rest: &'a [u8]) -> Result<Entry, AddressError> {
        let length = usize::from(first & !SAME_DEVICE);
        let same = first & SAME_DEVICE != 0;
        if same && self.index == 0 {
            return Err(AddressError::Field("device of the first entry"));
        }
        let (own, rest) = rest
            .split_at_checked(length)
            .ok_or(AddressError::Truncated { got: rest.len(), need: length })?;
        self.rest = rest;
        if !same && self.index > 0 {
            self.device += 1;
        }
        let expected =
            |expected| AddressError::Length { entry: self.index, expected, found: length };
        let (&code, body) = own.split_first().ok_or_else(|| expected(FRONT))?;
        let (summary, bodies) = body.split_first_chunk().ok_or_else(|| expected(FRONT))?;
        let (summary, repeated) = Summary::from_bytes(*summary)?;
        if repeated && (!same || self.device_body.is_empty()) {
            return Err(AddressError::Field("repeated device address"));
        }
        let transport = TransportId::from_code(code);
        let mut entry = Entry {
            transport,
            code,
            device: self.device,
            summary,
            device_address: None,
            interface_address: None,
            control: None,
        };
        match transport {
            Some(TransportId::Self_) if !bodies.is_empty() || repeated => {
                return Err(expected(FRONT));
            }
            None | Some(TransportId::Self_) => self.device_body = &[],
            Some(id) => {
                let device_length = if repeated { 0 } else { DeviceAddress::body_length(id) };
                let whole = FRONT + device_length + InterfaceAddress::body_length(id);
                let cut = || expected(whole);
                let (device, rest) = bodies.split_at_checked(device_length).ok_or_else(cut)?;
                let (interface, rest) =
                    rest.split_at_checked(InterfaceAddress::body_length(id)).ok_or_else(cut)?;
                if !repeated {
                    self.device_body = device;
                }
                entry.device_address = Some(
                    DeviceAddress::from_body(id, self.device_body).map_err(|_| expected(whole))?,
                );
                entry.interface_address =
                    Some(InterfaceAddress::from_body(id, interface).map_err(|_| expected(whole))?);
                entry.control = match (rest, id) {
                    ([], _) => None,
                    ([high, low], TransportId::Tcp) => {
                        let port = NonZeroU16::new(u16::from_be_bytes([*high, *low]));
                        Some(port.ok_or(AddressError::Field("control port"))?)
                    }
                    _ => return Err(expected(whole)),
                };
            }
        }
        Ok(entry)
    }
}

/// In hexadecimal digits, as `barewire plan` reads and writes it.
impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the bodies, which have secrets over some transports.
        let names: Vec<_> = self.entries().map(|entry| entry.transport_name()).collect();
        f.debug_struct("WorkerAddress")
            .field("uuid", &self.uuid())
            .field("transports", &names)
            .finish()
    }
}

impl FromStr for WorkerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let digits = text.as_bytes();
        let digit = |at: usize| {
            let digit = digits.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            digit.ok_or(AddressError::Text(at))
        };
        let bytes: Result<Vec<u8>, _> = (0..digits.len())
            .step_by(2)
            .map(|at| Ok((digit(at)? << 4 | digit(at + 1)?) as u8))
            .collect();
        Self::from_bytes(&bytes?)
    }
}

#[cfg(test)]
mod tests;
