//! The address of a port, and the route to it.

use std::fmt;
use std::net::Ipv6Addr;

use barewire_verbs::{Gid, LinkLayer, Route};

use super::Domain;
use crate::base::address::TransportId;
use crate::base::config::InterfaceConfig;
use crate::base::error::ConnectError;

/// The address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortAddress {
    /// All zero for a port that needs no global route.
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
}

impl PortAddress {
    /// Length of an address in bytes, the last few of which are reserved.
    pub(crate) const LENGTH: usize = 24;

    /// Returns the address of the local port.
    pub(crate) fn of(domain: &Domain) -> Self {
        Self { gid: domain.gid().map_or(Gid([0; 16]), |entry| entry.gid), lid: domain.port().lid }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..18].copy_from_slice(&self.lid.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        Self { gid: Gid(gid), lid: u16::from_be_bytes([bytes[16], bytes[17]]) }
    }

    /// Returns the route from the local port, with the traffic class and service level of `config`.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] with the reason.
    pub(crate) fn route(
        &self,
        domain: &Domain,
        config: &InterfaceConfig,
        transport: TransportId,
    ) -> Result<Route, ConnectError> {
        let route = self.plain_route(domain, transport)?;
        Ok(route.with_service(config.service_level, config.traffic_class))
    }

    fn plain_route(&self, domain: &Domain, transport: TransportId) -> Result<Route, ConnectError> {
        let number = domain.port().number;
        let unreachable = |reason: &str| ConnectError::Unreachable {
            transport,
            peer: self.to_string(),
            reason: reason.to_owned(),
        };
        match domain.gid() {
            Some(_) if self.gid == Gid([0; 16]) => {
                Err(unreachable("it has no GID, and this port requires global routes"))
            }
            Some(own) => {
                let index = u8::try_from(own.index)
                    .map_err(|_| unreachable("the local GID's index is beyond 255"))?;
                Ok(Route::to_gid(number, self.gid, index).with_lid(self.lid))
            }
            None if domain.port().link_layer == LinkLayer::Ethernet || self.lid == 0 => {
                Err(unreachable("it has no LID"))
            }
            None => Ok(Route::to_lid(number, self.lid)),
        }
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gid == Gid([0; 16]) {
            return write!(f, "LID {}", self.lid);
        }
        Ipv6Addr::from(self.gid.0).to_canonical().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_told_as_people_write_them() {
        let port = PortAddress { gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), lid: 0 };
        assert_eq!(
            (port.to_string(), PortAddress::from_bytes(&port.to_bytes())),
            ("10.0.0.1".to_owned(), port)
        );
        let port = PortAddress { gid: Gid([0; 16]), lid: 7 };
        assert_eq!(
            (port.to_string(), PortAddress::from_bytes(&port.to_bytes())),
            ("LID 7".to_owned(), port)
        );
    }
}
