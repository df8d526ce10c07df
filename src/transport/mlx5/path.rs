//! The path of a connection: ports and codes in addresses, as the driver has them.

use std::ops::RangeInclusive;

use barewire_mlx5::{Mtu, PortAddress, RcAddress, RcPath};

use super::Domain;
use crate::base::config::InterfaceConfig;
use crate::transport::rc::{self, Limits, Path};

/// Codes of path MTUs in an address.
pub(in crate::transport) const MTU_CODES: RangeInclusive<u8> =
    Mtu::Bytes256 as u8..=Mtu::Bytes4096 as u8;
/// Codes of the number of outstanding reads: its log2 (3 bits).
pub(in crate::transport) const READS_CODES: RangeInclusive<u8> = 0..=7;

/// Returns the limits of the device.
pub(in crate::transport) fn limits(domain: &Domain) -> Limits {
    let capabilities = domain.context().capabilities();
    Limits { requests: capabilities.max_queue_entries, completions: capabilities.max_cq_entries }
}

impl rc::Port for PortAddress {
    fn to_bytes(self) -> [u8; 24] {
        let mut body = [0; 24];
        body[..16].copy_from_slice(&self.gid);
        body[16..22].copy_from_slice(&self.mac);
        body[22..].copy_from_slice(&self.lid.to_be_bytes());
        body
    }

    fn from_bytes(body: &[u8; 24]) -> Self {
        let mut port =
            Self { gid: [0; 16], mac: [0; 6], lid: u16::from_be_bytes([body[22], body[23]]) };
        port.gid.copy_from_slice(&body[..16]);
        port.mac.copy_from_slice(&body[16..22]);
        port
    }
}

const MTUS: [Mtu; 5] =
    [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

/// Returns the path MTU of a code in an address, as the PRM defines it.
fn mtu_of(code: u8) -> Mtu {
    MTUS.into_iter().find(|mtu| *mtu as u8 == code).unwrap_or(Mtu::Bytes256)
}

/// Returns the code of the MTU of `bytes`, a power of two from 256 to 4096.
pub(in crate::transport) fn mtu_code(bytes: u32) -> u8 {
    let place = bytes.ilog2().saturating_sub(8) as usize;
    MTUS.get(place).copied().unwrap_or(Mtu::Bytes4096) as u8
}

/// Returns the driver's path to queue pair `qpn` of the peer.
pub(in crate::transport) fn path_to<D: rc::Driver<Port = PortAddress>>(
    config: &InterfaceConfig,
    path: &Path<D>,
    qpn: u32,
) -> RcPath {
    let mtu = mtu_of(path.mtu);
    RcPath::to(&RcAddress { port: path.port, number: qpn, psn: path.receive_psn, mtu })
        // The address of an endpoint with two queue pairs has one number for both.
        .send_psn(Some(path.send_psn))
        .ack_timeout(config.ack_timeout)
        .retry_count(config.retry_count)
        .rnr_retry(config.rnr_retry)
        .min_rnr_nak(config.min_rnr_timer)
        .log_max_reads(path.reads)
        .traffic_class(config.traffic_class)
        .service_level(config.service_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_path_mtus() {
        for (code, bytes) in (1..=5).zip([256, 512, 1024, 2048, 4096]) {
            assert_eq!((mtu_code(bytes), mtu_of(code) as u8), (code, code));
        }
    }
}
