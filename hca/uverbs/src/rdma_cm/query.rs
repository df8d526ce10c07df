//! What a program asks of an identifier: its addresses, its path, and the attributes with which its
//! queue pair is to be modified.

use std::net::IpAddr;

use barewire_layouts::roce::DEFAULT_PKEY;
use zerocopy::{FromZeros, IntoBytes};

use super::UDP_QKEY;
use super::abi::{
    InitQpAttr, PathRecord, QpAttr, QueryAddrResponse, QueryPathResponse, QueryRouteResponse,
    SOCKADDR, query,
};
use super::address::{IB, gid, write, write_gid};
use super::link::Stage;
use super::message::{PACKET_LIFETIME, RATE, Transport};
use super::receive::path_to;
use super::state::{Id, Port, Route, State};
use crate::abi::access;
use crate::errno::Errno;
use crate::qp_type::{bit, state};

/// The index of a device that netlink does not name.
const NO_INDEX: u32 = u32::MAX;
/// The selector `exactly` of a path's MTU, rate and lifetime.
const EXACTLY: u8 = 2;
/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
const PATH_FLAGS: u32 = 0x2b;
/// `IB_QPT_XRC_INI`, `IB_QPT_XRC_TGT`.
const XRC_INITIATOR: u8 = 9;
const XRC_TARGET: u8 = 10;

impl State {
    /// Returns the GIDs of an identifier: its port's and the peer's.
    fn gids(&self, id: &Id) -> [[u8; 16]; 2] {
        let port = id.port.and_then(|index| self.ports.get(index));
        let source = port.map(|port| port.address).or(id.source.map(|source| source.ip()));
        let peer = id.link.and_then(|link| self.links.get(&link)).map(|link| link.peer);
        let peer = peer.or(id.destination.map(|destination| destination.ip()));
        [source.map_or([0; 16], gid), peer.map_or([0; 16], gid)]
    }

    /// Returns the route of an identifier at its port.
    fn route(&self, id: &Id, port: &Port) -> Route {
        let [_, peer] = self.gids(id);
        port.route(IpAddr::from(peer).to_canonical())
    }

    /// `rdma_ucm_query_route_resp`.
    pub(super) fn query_route(
        &mut self,
        channel: u64,
        id: u32,
    ) -> Result<QueryRouteResponse, Errno> {
        self.id(channel, id)?;
        let entry = self.ids.get(&id).ok_or(Errno::NO_ENTRY)?;
        let port = entry.port.and_then(|index| self.ports.get(index));
        let [sgid, dgid] = self.gids(entry);
        let address = |address| {
            let (bytes, _) = write(address);
            let mut short = [0; SOCKADDR];
            short.copy_from_slice(&bytes[..SOCKADDR]);
            short
        };
        let mut response = QueryRouteResponse {
            src_addr: address(entry.source),
            dst_addr: address(entry.destination),
            num_paths: entry.routed.into(),
            ibdev_index: NO_INDEX,
            ..QueryRouteResponse::new_zeroed()
        };
        let Some(port) = port else { return Ok(response) };
        (response.node_guid, response.port_num) = (port.guid, port.number);
        response.ib_route[0] =
            PathRecord { dgid, sgid, pkey: DEFAULT_PKEY.to_be(), ..PathRecord::new_zeroed() };
        if entry.routed {
            let Route { lids, hop_limit } = self.route(entry, port);
            let [slid, dlid] = lids.unwrap_or_default();
            response.ib_route[0] = PathRecord {
                dlid: dlid.to_be(),
                slid: slid.to_be(),
                reversible: 1,
                mtu: port.mtu.into(),
                hop_limit,
                traffic_class: entry.traffic_class,
                numb_path: 1,
                mtu_selector: EXACTLY,
                rate_selector: EXACTLY,
                rate: RATE,
                packet_life_time_selector: EXACTLY,
                packet_life_time: PACKET_LIFETIME,
                ..response.ib_route[0]
            };
        }
        Ok(response)
    }

    /// Returns the response to QUERY.
    pub(super) fn query(&mut self, channel: u64, id: u32, option: u32) -> Result<Vec<u8>, Errno> {
        self.id(channel, id)?;
        let entry = self.ids.get(&id).ok_or(Errno::NO_ENTRY)?;
        let port = entry.port.and_then(|index| self.ports.get(index));
        let [sgid, dgid] = self.gids(entry);
        let pkey = DEFAULT_PKEY.to_be();
        let mut response = QueryAddrResponse {
            pkey: if port.is_some() { pkey } else { 0 },
            ibdev_index: NO_INDEX,
            ..QueryAddrResponse::new_zeroed()
        };
        if let Some(port) = port {
            (response.node_guid, response.port_num) = (port.guid, port.number);
        }
        match option {
            query::ADDR => {
                (response.src_addr, response.src_size) = write(entry.source);
                (response.dst_addr, response.dst_size) = write(entry.destination);
                Ok(response.as_bytes().to_vec())
            }
            query::GID => {
                (response.src_size, response.dst_size) = (IB, IB);
                response.src_addr = write_gid(sgid, DEFAULT_PKEY);
                response.dst_addr = write_gid(dgid, DEFAULT_PKEY);
                Ok(response.as_bytes().to_vec())
            }
            query::PATH => {
                let mut path = QueryPathResponse::new_zeroed();
                if let Some(port) = port.filter(|_| entry.routed) {
                    (path.num_paths, path.flags) = (1, PATH_FLAGS);
                    let record = &mut path.path_rec;
                    record[8..24].copy_from_slice(&dgid);
                    record[24..40].copy_from_slice(&sgid);
                    let Route { lids, hop_limit } = self.route(entry, port);
                    let [slid, dlid] = lids.unwrap_or_default();
                    record[40..42].copy_from_slice(&dlid.to_be_bytes());
                    record[42..44].copy_from_slice(&slid.to_be_bytes());
                    // Flow label and hop limit, traffic class, reversible and number of paths.
                    record[47] = hop_limit;
                    record[48] = entry.traffic_class;
                    record[49] = 0x81;
                    record[50..52].copy_from_slice(&DEFAULT_PKEY.to_be_bytes());
                    // MTU, rate and lifetime, each after its selector.
                    for (at, value) in [(54, port.mtu), (55, RATE), (56, PACKET_LIFETIME)] {
                        record[at] = EXACTLY << 6 | value;
                    }
                }
                Ok(path.as_bytes().to_vec())
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Returns the attributes for the transition of a queue pair to `command.qp_state`.
    pub(super) fn queue_pair(
        &mut self,
        channel: u64,
        command: &InitQpAttr,
    ) -> Result<QpAttr, Errno> {
        let to = u8::try_from(command.qp_state).map_err(|_| Errno::INVALID)?;
        let entry = self.id(channel, command.id)?;
        let (datagram, qp_type) = (entry.is_datagram(), entry.qp_type);
        let (transport, link) = (entry.transport(), entry.link);
        // linux drivers/infiniband/core/cm.c: `ib_cm_init_qp_attr` of a connection that is idle.
        if entry.ended && !datagram {
            return Err(Errno::INVALID);
        }
        let index = entry.port.ok_or(Errno::INVALID)?;
        let port = *self.ports.get(index).ok_or(Errno::NO_DEVICE)?;
        let link = link.filter(|_| !datagram).and_then(|link| self.links.get(&link));
        let mut attributes =
            QpAttr { qp_state: command.qp_state, port_num: port.number, ..QpAttr::new_zeroed() };
        let Some(link) = link else {
            attributes.qp_attr_mask = bit::STATE | bit::PKEY | bit::PORT;
            if datagram {
                attributes.qkey = UDP_QKEY;
                attributes.qp_attr_mask |= bit::QKEY;
            } else {
                attributes.qp_attr_mask |= bit::ACCESS;
            }
            return Ok(attributes);
        };
        // What this side has agreed to. Before it accepts, what the peer asks for.
        let decided = match link.stage {
            Stage::RequestReceived => false,
            Stage::RequestSent => true,
            _ => !link.active,
        };
        let (responder, initiator) = if decided {
            (link.local.responder_resources, link.local.initiator_depth)
        } else {
            (link.remote.initiator_depth, link.remote.responder_resources)
        };
        match to {
            state::INIT => {
                attributes.qp_attr_mask = bit::STATE | bit::ACCESS | bit::PKEY | bit::PORT;
                attributes.qp_access_flags = access::REMOTE_WRITE;
                if responder > 0 {
                    attributes.qp_access_flags |= access::REMOTE_READ | access::REMOTE_ATOMIC;
                }
            }
            state::RTR if link.stage != Stage::RequestSent => {
                attributes.qp_attr_mask =
                    bit::STATE | bit::PATH | bit::MTU | bit::DESTINATION | bit::RECEIVE_PSN;
                attributes.ah_attr = path_to(link.peer, &port, link.traffic_class);
                attributes.path_mtu = link.mtu.into();
                attributes.dest_qp_num = link.remote.qpn;
                attributes.rq_psn = link.local.psn;
                if transport == Some(Transport::Rc) || qp_type == XRC_TARGET {
                    attributes.qp_attr_mask |= bit::RESPONDER_DEPTH | bit::RNR_TIMER;
                    attributes.max_dest_rd_atomic = responder;
                }
            }
            state::RTS if link.stage != Stage::RequestSent => {
                attributes.qp_attr_mask = bit::STATE | bit::SEND_PSN;
                attributes.sq_psn = link.remote.psn;
                if matches!(transport, Some(Transport::Rc | Transport::Xrc)) {
                    attributes.qp_attr_mask |= bit::TIMEOUT;
                    attributes.timeout = link.ack_timeout;
                }
                if transport == Some(Transport::Rc) || qp_type == XRC_INITIATOR {
                    attributes.qp_attr_mask |=
                        bit::RETRIES | bit::RNR_RETRIES | bit::INITIATOR_DEPTH;
                    let retries = if link.active { link.local } else { link.remote }.retries;
                    (attributes.retry_cnt, attributes.rnr_retry) =
                        (retries, link.remote.rnr_retries);
                    attributes.max_rd_atomic = initiator;
                }
            }
            _ => return Err(Errno::INVALID),
        }
        Ok(attributes)
    }
}
