//! The contents of this transport's addresses and keys. Integers are big-endian.

use barewire_shm::{RegionKey, TableAddress, pid_namespace};

use super::ID;
use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::base::error::{ConnectError, KeyError};
use crate::transport::common::host::host;

/// The location of a process's region table.
fn body(table: &TableAddress) -> [u8; 24] {
    let mut body = [0; 24];
    body[..4].copy_from_slice(&table.process.to_be_bytes());
    body[4..8].copy_from_slice(&table.descriptor.to_be_bytes());
    body[8..].copy_from_slice(&table.secret.to_be_bytes());
    body
}

pub(super) fn interface(table: &TableAddress) -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, TransportId::Cma, &body(table)))
}

pub(super) fn endpoint(table: &TableAddress) -> EndpointAddress {
    EndpointAddress(Packed::new(Kind::Endpoint, TransportId::Cma, &body(table)))
}

/// Returns the machine and the PID namespace.
pub(super) fn device() -> DeviceAddress {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&host().to_be_bytes());
    body[8..].copy_from_slice(&pid_namespace().to_be_bytes());
    DeviceAddress(Packed::new(Kind::Device, TransportId::Cma, &body))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Returns the location of the peer's region table, if its process id is valid in this PID
/// namespace.
pub(super) fn table(
    device: &DeviceAddress,
    address: &Packed,
) -> Result<TableAddress, ConnectError> {
    for packed in [&device.0, address] {
        if packed.transport() != TransportId::Cma {
            return Err(ConnectError::ForeignTransport {
                transport: ID,
                found: packed.transport(),
            });
        }
    }
    let wrong = || ConnectError::Address { transport: ID, source: AddressError::Field("length") };
    let theirs = device.0.body::<16>().ok_or_else(wrong)?;
    let body = address.body::<24>().ok_or_else(wrong)?;
    let table = TableAddress {
        process: i32::from_be_bytes(number(body, 0)),
        descriptor: u32::from_be_bytes(number(body, 4)),
        secret: u128::from_be_bytes(number(body, 8)),
    };
    let unreachable = |reason: &str| {
        Err(ConnectError::Unreachable {
            transport: ID,
            peer: format!("process {}", table.process),
            reason: reason.to_owned(),
        })
    };
    if u64::from_be_bytes(number(theirs, 0)) != host() {
        return unreachable("it is on another machine");
    }
    if u64::from_be_bytes(number(theirs, 8)) != pid_namespace() {
        return unreachable(
            "it is in another PID namespace (a container): let both share one, or use shm with allocated memory",
        );
    }
    Ok(table)
}

/// The contents of a key: an entry in the region table of a domain, which a part of its secret
/// identifies. The entry has the region's address and rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyBody {
    pub(super) domain: u64,
    pub(super) region: RegionKey,
    /// By how much the addresses of the key exceed those of the memory (modulo 2^64).
    pub(super) shift: u64,
}

impl KeyBody {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut body = [0; 36];
        body[..8].copy_from_slice(&self.domain.to_be_bytes());
        body[8..12].copy_from_slice(&self.region.index.to_be_bytes());
        body[12..28].copy_from_slice(&self.region.token.to_be_bytes());
        body[28..].copy_from_slice(&self.shift.to_be_bytes());
        Packed::new(Kind::Key, TransportId::Cma, &body).bytes().to_vec()
    }

    pub(super) fn unpack(bytes: &[u8]) -> Result<Self, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let found = packed.transport();
        if found != TransportId::Cma {
            return Err(KeyError::ForeignTransport { expected: ID, found });
        }
        let body = packed.body::<36>().ok_or(AddressError::Field("length"))?;
        let index = u32::from_be_bytes(number(body, 8));
        let token = u128::from_be_bytes(number(body, 12));
        Ok(Self {
            domain: u64::from_be_bytes(number(body, 0)),
            region: RegionKey { index, token },
            shift: u64::from_be_bytes(number(body, 28)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let address = TableAddress { process: 0x0102, descriptor: 0x0304, secret: 0x05 };
        let bytes = endpoint(&address).to_bytes();
        assert_eq!((bytes[8], bytes[9], bytes[12], bytes[13], bytes[29]), (1, 2, 3, 4, 5));
        assert_eq!(table(&device(), &endpoint(&address).0).unwrap(), address);
        let key =
            KeyBody { domain: 0x06, region: RegionKey { index: 0x07, token: 0x0809 }, shift: 0x0a };
        let bytes = key.pack();
        let front = bytes.len() - 36;
        let body: Vec<_> = (0..36).filter(|at| bytes[front + at] != 0).collect();
        assert_eq!((body, &bytes[front + 26..front + 28]), (vec![7, 11, 26, 27, 35], &[8, 9][..]));
        assert_eq!(KeyBody::unpack(&bytes), Ok(key));
        assert!(KeyBody::unpack(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn other_machines_and_namespaces_are_named() {
        let address = endpoint(&TableAddress { process: 1, descriptor: 2, secret: 3 });
        let mut elsewhere = [0; 16];
        let with =
            |body: &[u8; 16]| DeviceAddress(Packed::new(Kind::Device, TransportId::Cma, body));
        let reason = |device| table(&device, &address.0).unwrap_err().to_string();
        assert!(reason(with(&elsewhere)).contains("another machine"));
        elsewhere[..8].copy_from_slice(&host().to_be_bytes());
        assert!(reason(with(&elsewhere)).contains("namespace"));
    }
}
