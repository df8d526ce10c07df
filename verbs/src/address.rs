//! Address vectors (routes to peers) and address handles.

use std::fmt;

use barewire_layouts::wqe::AddressVector;
use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route};

use crate::sys::{Ah, Plain};
use crate::{Error, Gid, ProtectionDomain, dv};

/// The route from a local port to a peer. verbs.h: `struct ibv_ah_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local port, from 1.
    pub port: u8,
    /// The peer's local identifier on InfiniBand; 0 on Ethernet.
    pub lid: u16,
    /// The service level.
    pub service_level: u8,
    /// Path bits, which are added to the local port's base LID.
    pub source_path_bits: u8,
    /// The maximum static rate in the encoding of verbs (`enum ibv_rate`); 0 is no limit.
    pub static_rate: u8,
    /// The global route, which RoCE requires.
    pub global: Option<GlobalRoute>,
}

/// A route between subnets. verbs.h: `struct ibv_global_route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub gid: Gid,
    /// Index of the local GID in the port's GID table.
    pub source_index: u8,
    /// Flow label of 20 bits, by which routers may select a path.
    pub flow_label: u32,
    /// The maximum number of routers that a packet may pass.
    pub hop_limit: u8,
    /// The traffic class, or DSCP and ECN.
    pub traffic_class: u8,
}

impl GlobalRoute {
    /// The default hop limit.
    pub const HOP_LIMIT: u8 = 64;
}

impl Route {
    /// A route by LID, within an InfiniBand subnet.
    pub fn to_lid(port: u8, lid: u16) -> Self {
        Self { port, lid, service_level: 0, source_path_bits: 0, static_rate: 0, global: None }
    }

    /// A route by GID. The source is the GID at `source_index` of the port's table.
    pub fn to_gid(port: u8, gid: Gid, source_index: u8) -> Self {
        let hop_limit = GlobalRoute::HOP_LIMIT;
        let global = GlobalRoute { gid, source_index, flow_label: 0, hop_limit, traffic_class: 0 };
        Self { global: Some(global), ..Self::to_lid(port, 0) }
    }

    /// Adds the LID of the next hop, which InfiniBand requires besides a GID.
    #[must_use]
    pub fn with_lid(self, lid: u16) -> Self {
        Self { lid, ..self }
    }

    /// Sets the service level, and the traffic class if there is a global route.
    #[must_use]
    pub fn with_service(self, service_level: u8, traffic_class: u8) -> Self {
        let global = self.global.map(|global| GlobalRoute { traffic_class, ..global });
        Self { service_level, global, ..self }
    }

    pub(crate) fn attributes(&self) -> ibv_ah_attr {
        let mut attributes = ibv_ah_attr {
            dlid: self.lid,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            port_num: self.port,
            ..ibv_ah_attr::zeroed()
        };
        if let Some(global) = self.global {
            attributes.is_global = 1;
            attributes.grh = ibv_global_route {
                dgid: ibv_gid { raw: global.gid.0 },
                flow_label: global.flow_label,
                sgid_index: global.source_index,
                hop_limit: global.hop_limit,
                traffic_class: global.traffic_class,
            };
        }
        attributes
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.global {
            Some(global) => {
                write!(f, "{} from GID {} of port {}", global.gid, global.source_index, self.port)
            }
            None => write!(f, "LID {} from port {}", self.lid, self.port),
        }
    }
}

/// An address handle: a resolved route. On Ethernet the kernel has determined the next hop's MAC
/// address.
#[must_use = "dropping it destroys the address handle"]
pub struct AddressHandle(Ah);

impl AddressHandle {
    /// Resolves a route. On RoCE this may block until neighbour discovery has finished.
    ///
    /// # Errors
    /// If the peer is not reachable from the port.
    pub fn new(domain: &ProtectionDomain, route: &Route) -> Result<Self, Error> {
        let handle = Ah::create(domain.handle(), route.attributes());
        let failed = |source| {
            Error::new(domain.device(), format!("create an address handle for {route}"), source)
        };
        handle.map(Self).map_err(failed)
    }

    pub(crate) fn handle(&self) -> &Ah {
        &self.0
    }

    /// The address in the format of the work requests of mlx5 devices, with queue pair number and
    /// key 0. Its `mac` is that of the next hop.
    ///
    /// # Errors
    /// If the device's driver is not libmlx5, or libmlx5 is not installed.
    pub fn address_vector(&self) -> Result<AddressVector, Error> {
        dv::open(self.0.parents().context(), "an address handle", &self.0)
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").finish_non_exhaustive()
    }
}
