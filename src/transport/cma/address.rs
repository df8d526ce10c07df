//! The bodies of this transport's addresses and keys. Integers are big-endian.

use barewire_shm::pid_namespace;

use super::NAME;
use crate::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::error::{ConnectError, KeyError};
use crate::memory::Access;
use crate::transport::shm::host;

/// A process, and the secret that it keeps at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessAddress {
    pub(super) number: i32,
    pub(super) at: u64,
    pub(super) secret: u128,
}

impl ProcessAddress {
    fn body(&self) -> [u8; 28] {
        let mut body = [0; 28];
        body[..4].copy_from_slice(&self.number.to_be_bytes());
        body[4..12].copy_from_slice(&self.at.to_be_bytes());
        body[12..].copy_from_slice(&self.secret.to_be_bytes());
        body
    }

    pub(super) fn interface(&self) -> InterfaceAddress {
        InterfaceAddress(Packed::new(Kind::Interface, TransportId::Cma, &self.body()))
    }

    pub(super) fn endpoint(&self) -> EndpointAddress {
        EndpointAddress(Packed::new(Kind::Endpoint, TransportId::Cma, &self.body()))
    }
}

/// The machine, and the namespace of its process numbers.
pub(super) fn device() -> DeviceAddress {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&host().to_be_bytes());
    body[8..].copy_from_slice(&pid_namespace().to_be_bytes());
    DeviceAddress(Packed::new(Kind::Device, TransportId::Cma, &body))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// The process that the addresses name, if its number means anything here.
pub(super) fn process(device: &DeviceAddress, address: &Packed) -> Result<ProcessAddress, ConnectError> {
    for packed in [&device.0, address] {
        if packed.transport() != TransportId::Cma {
            return Err(ConnectError::ForeignTransport { transport: NAME, found: packed.transport().name() });
        }
    }
    let wrong = || ConnectError::Address { transport: NAME, source: AddressError::Field("length") };
    let theirs = device.0.body::<16>().ok_or_else(wrong)?;
    let body = address.body::<28>().ok_or_else(wrong)?;
    let process = ProcessAddress {
        number: i32::from_be_bytes(number(body, 0)),
        at: u64::from_be_bytes(number(body, 4)),
        secret: u128::from_be_bytes(number(body, 12)),
    };
    let unreachable = |reason: &str| {
        Err(ConnectError::Unreachable {
            transport: NAME,
            peer: format!("process {}", process.number),
            reason: reason.to_owned(),
        })
    };
    if u64::from_be_bytes(number(theirs, 0)) != host() {
        return unreachable("it is on another machine");
    }
    if u64::from_be_bytes(number(theirs, 8)) != pid_namespace() {
        return unreachable(
            "it lives in another namespace of process numbers (a container): have both share one, or use shm with allocated memory",
        );
    }
    Ok(process)
}

/// What a key says: a range of a process, which is named by a part of its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyBody {
    pub(super) domain: u64,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) access: Access,
}

impl KeyBody {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut body = [0; 25];
        for (place, number) in body.chunks_exact_mut(8).zip([self.domain, self.address, self.length]) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        body[24] = self.access.bits() as u8;
        Packed::new(Kind::Key, TransportId::Cma, &body).bytes().to_vec()
    }

    pub(super) fn unpack(bytes: &[u8]) -> Result<Self, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let transport = packed.transport();
        let (TransportId::Cma, Some(body)) = (transport, packed.body::<25>()) else {
            return Err(KeyError::ForeignTransport { expected: NAME, found: transport.name() });
        };
        let word = |at| u64::from_be_bytes(number(body, at));
        let access = Access::from_bits(body[24].into()).ok_or(AddressError::Field("access"))?;
        let key = Self { domain: word(0), address: word(8), length: word(16), access };
        match key.address.checked_add(key.length) {
            Some(_) => Ok(key),
            None => Err(AddressError::Field("length").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let address = ProcessAddress { number: 0x0102, at: 0x0304, secret: 0x05 };
        let bytes = address.endpoint().to_bytes();
        assert_eq!((bytes[8], bytes[9], bytes[16], bytes[17], bytes[33]), (1, 2, 3, 4, 5));
        assert_eq!(process(&device(), &address.endpoint().0).unwrap(), address);
        let key = KeyBody { domain: 9, address: 1, length: 2, access: Access::REMOTE_READ };
        assert_eq!(KeyBody::unpack(&key.pack()), Ok(key));
        let long = KeyBody { length: u64::MAX, ..key };
        assert_eq!(KeyBody::unpack(&long.pack()), Err(KeyError::Format(AddressError::Field("length"))));
    }

    #[test]
    fn other_machines_and_namespaces_are_named() {
        let address = ProcessAddress { number: 1, at: 2, secret: 3 }.endpoint();
        let mut elsewhere = [0; 16];
        let with = |body: &[u8; 16]| DeviceAddress(Packed::new(Kind::Device, TransportId::Cma, body));
        let reason = |device| process(&device, &address.0).unwrap_err().to_string();
        assert!(reason(with(&elsewhere)).contains("another machine"));
        elsewhere[..8].copy_from_slice(&host().to_be_bytes());
        assert!(reason(with(&elsewhere)).contains("namespace"));
    }
}
