//! The contents of this transport's addresses and keys. Integers are big-endian.

use barewire_shm::PortAddress;

use super::ID;
use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::base::error::{ConnectError, KeyError};
use crate::base::memory::Access;
use crate::transport::common::host::host;

pub(super) fn device() -> DeviceAddress {
    DeviceAddress(Packed::new(Kind::Device, TransportId::Shm, &host().to_be_bytes()))
}

fn port_body(port: PortAddress) -> [u8; 24] {
    let mut body = [0; 24];
    body[..8].copy_from_slice(&port.number.to_be_bytes());
    body[8..].copy_from_slice(&port.secret.to_be_bytes());
    body
}

pub(super) fn interface(port: PortAddress) -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, TransportId::Shm, &port_body(port)))
}

pub(super) fn endpoint(port: PortAddress) -> EndpointAddress {
    EndpointAddress(Packed::new(Kind::Endpoint, TransportId::Shm, &port_body(port)))
}

/// Returns the body of `packed`, if it is of this transport.
fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body()) {
        (TransportId::Shm, Some(body)) => Ok(body),
        (other, _) => Err(ConnectError::ForeignTransport { transport: ID, found: other }),
    }
}

/// Returns the port that the addresses name, if it is on this machine.
pub(super) fn port(device: &DeviceAddress, address: &Packed) -> Result<PortAddress, ConnectError> {
    let theirs = u64::from_be_bytes(*body::<8>(&device.0)?);
    let body = body::<24>(address)?;
    if theirs != host() {
        return Err(ConnectError::Unreachable {
            transport: ID,
            peer: format!("machine {theirs:016x}"),
            reason: format!(
                "it shares no memory with this machine, {:016x}: use a network transport",
                host()
            ),
        });
    }
    let (number, secret) = body.split_at(8);
    Ok(PortAddress {
        number: u64::from_be_bytes(number.try_into().unwrap_or_default()),
        secret: u128::from_be_bytes(secret.try_into().unwrap_or_default()),
    })
}

/// The contents of a key. The region's number is a secret: see `Debug` of
/// [`RemoteKey`](super::RemoteKey).
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct KeyBody {
    /// The set of the process's regions, and the region in it.
    pub(super) region_set: u64,
    pub(super) region: u64,
    /// Address of the region in its own process.
    pub(super) address: u64,
    pub(super) length: u64,
    /// The region's process and its descriptor there, for a peer without a connection.
    pub(super) process: u32,
    pub(super) descriptor: u32,
    pub(super) access: Access,
    /// The region is the list of a view.
    pub(super) is_list: bool,
}

/// The bit of [`KeyBody::is_list`] beside the rights.
const LIST: u8 = 1 << 7;
const _: () = assert!(Access::all().bits() < LIST as u32, "the rights leave the bit");

/// The region of a key to registered memory, which peers cannot map.
pub(super) const UNSHARED: u64 = u64::MAX;

impl KeyBody {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut body = [0; 41];
        for (place, number) in
            body.chunks_exact_mut(8).zip([self.region_set, self.region, self.address, self.length])
        {
            place.copy_from_slice(&number.to_be_bytes());
        }
        body[32..36].copy_from_slice(&self.process.to_be_bytes());
        body[36..40].copy_from_slice(&self.descriptor.to_be_bytes());
        body[40] = self.access.bits() as u8 | if self.is_list { LIST } else { 0 };
        Packed::new(Kind::Key, TransportId::Shm, &body).bytes().to_vec()
    }

    pub(super) fn unpack(bytes: &[u8]) -> Result<Self, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let transport = packed.transport();
        let (TransportId::Shm, Some(body)) = (transport, packed.body::<41>()) else {
            return Err(KeyError::ForeignTransport { expected: ID, found: transport });
        };
        let number =
            |at: usize| body[8 * at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let half =
            |at: usize| body[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let access = Access::from_bits((body[40] & !LIST).into());
        let access = access.ok_or(AddressError::Field("access"))?;
        let key = Self {
            region_set: number(0),
            region: number(1),
            address: number(2),
            length: number(3),
            process: half(32),
            descriptor: half(36),
            access,
            is_list: body[40] & LIST != 0,
        };
        if key.address.checked_add(key.length).is_none() {
            return Err(AddressError::Field("length").into());
        }
        if key.region == UNSHARED {
            return Err(KeyError::NotShared { transport: ID, instead: TransportId::Cma });
        }
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let port = PortAddress { number: 0x0102_0304_0506_0708, secret: 0x11 << 120 | 0x22 };
        let bytes = endpoint(port).to_bytes();
        assert_eq!(bytes[6..], [&[1, 2, 3, 4, 5, 6, 7, 8, 0x11][..], &[0; 14], &[0x22]].concat());
        assert_eq!(self::port(&device(), &endpoint(port).0).unwrap(), port);
        let key = KeyBody {
            region_set: 1,
            region: 2,
            address: 3,
            length: 4,
            process: 0x0102_0304,
            descriptor: 0x0506_0708,
            access: Access::REMOTE_READ,
            is_list: false,
        };
        let bytes = key.pack();
        assert_eq!((bytes[13], bytes[21], bytes[29], bytes[37]), (1, 2, 3, 4));
        assert_eq!(bytes[38..], [1, 2, 3, 4, 5, 6, 7, 8, 4]);
        assert_eq!(KeyBody::unpack(&bytes), Ok(key));
        let list = KeyBody { is_list: true, ..key };
        assert_eq!((list.pack()[46], KeyBody::unpack(&list.pack())), (0x84, Ok(list)));
    }

    #[test]
    fn impossible_keys_are_refused() {
        let key = KeyBody {
            region_set: 1,
            region: 2,
            address: 3,
            length: 4,
            process: 5,
            descriptor: 6,
            access: Access::all(),
            is_list: false,
        };
        let long = KeyBody { length: u64::MAX, ..key };
        assert_eq!(
            KeyBody::unpack(&long.pack()),
            Err(KeyError::Format(AddressError::Field("length")))
        );
        let unshared = KeyBody { region: UNSHARED, ..key };
        assert!(matches!(KeyBody::unpack(&unshared.pack()), Err(KeyError::NotShared { .. })));
        let mut bytes = key.pack();
        bytes[46] = 0xff;
        assert_eq!(KeyBody::unpack(&bytes), Err(KeyError::Format(AddressError::Field("access"))));
    }

    #[test]
    fn another_machine_is_named() {
        let other =
            DeviceAddress(Packed::new(Kind::Device, TransportId::Shm, &(!host()).to_be_bytes()));
        let port = endpoint(PortAddress { number: 1, secret: 2 });
        assert!(matches!(self::port(&other, &port.0), Err(ConnectError::Unreachable { .. })));
    }
}
