//! Messages of communication management, as values.

use barewire_layouts::management::connection::{
    Acknowledged, DisconnectRequest, Message, Pair, Path, Rejected, Reply, Request, Service,
    ServiceReply, ServiceRequest,
};
use barewire_layouts::management::{MAD_BYTES, Mad};
use barewire_layouts::prm::{Layout, View, ViewMut};
use barewire_layouts::roce::DEFAULT_PKEY;

/// A datagram.
pub(super) type Bytes = [u8; MAD_BYTES];

/// The code of the time in which this manager responds, as the kernel sets it: 4.3 s.
const RESPONSE_TIMEOUT: u8 = 20;
/// The code of the time that a program may take to accept a connection: 69 s.
pub(super) const SERVICE_TIMEOUT: u8 = 24;
/// How often a message is repeated.
pub(super) const RETRIES: u8 = 15;
/// The code of the lifetime of packets, as the kernel assumes it for RoCE: 0.27 s.
pub(super) const PACKET_LIFETIME: u8 = 16;
/// `IB_RATE_PORT_CURRENT`.
pub(super) const RATE: u8 = 0;
pub(super) const HOP_LIMIT: u8 = 64;
/// The LID of ports without one.
const NO_LID: u16 = 0xffff;
/// `extended transport type`: XRC.
const XRC: u8 = 1;

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Rc,
    Uc,
    Xrc,
}

/// Enhancements of a connection: the manufacturer, and its options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Enhancements {
    pub(super) vendor: u32,
    pub(super) options: u32,
}

/// What both sides say of their queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) qpn: u32,
    /// The PSN that this side expects first.
    pub(super) psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: bool,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) srq: bool,
    pub(super) enhancements: Enhancements,
}

/// A request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionRequest {
    pub(super) id: u32,
    pub(super) service: u64,
    pub(super) guid: [u8; 8],
    /// `None` for a service that is not known.
    pub(super) transport: Option<Transport>,
    pub(super) parameters: Parameters,
    pub(super) mtu: u8,
    pub(super) gids: [[u8; 16]; 2],
    /// The LIDs of a path within one InfiniBand subnet.
    pub(super) lids: Option<[u16; 2]>,
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: u8,
    pub(super) private: [u8; 92],
}

/// A message, without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Request(ConnectionRequest),
    Reply { pair: Ids, guid: [u8; 8], parameters: Parameters, private: [u8; 196] },
    ReadyToUse(Ids),
    Rejected { pair: Ids, message: u8, reason: u16, private: [u8; 148] },
    Acknowledged { pair: Ids, message: u8, timeout: u8 },
    DisconnectRequest { pair: Ids, qpn: u32 },
    DisconnectReply(Ids),
    ServiceRequest { id: u32, service: u64, private: [u8; 216] },
    ServiceReply { id: u32, status: u8, service: u64, qpn: u32, qkey: u32, private: [u8; 136] },
}

/// The identifiers of a connection: the sender's, and the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) local: u32,
    pub(super) remote: u32,
}

/// Reads a message. Returns its transaction, and `None` for anything that is not one.
pub(super) fn read(bytes: &Bytes) -> Option<(u64, Content)> {
    let header = View::<Mad>::new(bytes)?;
    let class = (header.get(Mad::CLASS), header.get(Mad::CLASS_VERSION));
    if header.get(Mad::BASE_VERSION) != Mad::VERSION_1
        || class != (Mad::COMMUNICATION, Mad::VERSION_2)
        || header.get(Mad::METHOD) != Mad::SEND
    {
        return None;
    }
    let pair = {
        let view = View::<Pair>::new(bytes)?;
        Ids { local: view.get(Pair::LOCAL_ID), remote: view.get(Pair::REMOTE_ID) }
    };
    let options = header.get(Mad::MODIFIER);
    let content = match header.get(Mad::ATTRIBUTE).ok()? {
        Message::Request => Content::Request(request(bytes, options)?),
        Message::Reply => {
            let view = View::<Reply>::new(bytes)?;
            let vendor = [
                0,
                view.get(Reply::VENDOR_HIGH),
                view.get(Reply::VENDOR_MIDDLE),
                view.get(Reply::VENDOR_LOW),
            ];
            let parameters = Parameters {
                qpn: view.get(Reply::QPN),
                psn: view.get(Reply::PSN),
                responder_resources: view.get(Reply::RESPONDER_RESOURCES),
                initiator_depth: view.get(Reply::INITIATOR_DEPTH),
                flow_control: view.get(Reply::FLOW_CONTROL),
                retries: 0,
                rnr_retries: view.get(Reply::RNR_RETRIES),
                srq: view.get(Reply::SRQ),
                enhancements: Enhancements { vendor: u32::from_be_bytes(vendor), options },
            };
            let (guid, private) = (view.array(Reply::GUID), view.array(Reply::PRIVATE));
            Content::Reply { pair, guid, parameters, private }
        }
        Message::ReadyToUse => Content::ReadyToUse(pair),
        Message::Rejected => {
            let view = View::<Rejected>::new(bytes)?;
            Content::Rejected {
                pair,
                message: view.get(Rejected::MESSAGE),
                reason: view.get(Rejected::REASON),
                private: view.array(Rejected::PRIVATE),
            }
        }
        Message::Acknowledged => {
            let view = View::<Acknowledged>::new(bytes)?;
            let message = view.get(Acknowledged::MESSAGE);
            Content::Acknowledged { pair, message, timeout: view.get(Acknowledged::TIMEOUT) }
        }
        Message::DisconnectRequest => {
            let view = View::<DisconnectRequest>::new(bytes)?;
            Content::DisconnectRequest { pair, qpn: view.get(DisconnectRequest::REMOTE_QPN) }
        }
        Message::DisconnectReply => Content::DisconnectReply(pair),
        Message::ServiceRequest => {
            let view = View::<ServiceRequest>::new(bytes)?;
            Content::ServiceRequest {
                id: view.get(ServiceRequest::REQUEST_ID),
                service: view.get(ServiceRequest::SERVICE_ID),
                private: view.array(ServiceRequest::PRIVATE),
            }
        }
        Message::ServiceReply => {
            let view = View::<ServiceReply>::new(bytes)?;
            Content::ServiceReply {
                id: view.get(ServiceReply::REQUEST_ID),
                status: view.get(ServiceReply::STATUS),
                service: view.get(ServiceReply::SERVICE_ID),
                qpn: view.get(ServiceReply::QPN),
                qkey: view.get(ServiceReply::QKEY),
                private: view.array(ServiceReply::PRIVATE),
            }
        }
    };
    Some((header.get(Mad::TRANSACTION), content))
}

fn request(bytes: &Bytes, options: u32) -> Option<ConnectionRequest> {
    let view = View::<Request>::new(bytes)?;
    let path = view.nested(Request::PRIMARY);
    let transport = match view.get(Request::SERVICE) {
        Ok(Service::Reliable) => Some(Transport::Rc),
        Ok(Service::Unreliable) => Some(Transport::Uc),
        Ok(Service::Extended) if view.get(Request::EXTENDED_SERVICE) == XRC => Some(Transport::Xrc),
        _ => None,
    };
    Some(ConnectionRequest {
        id: view.get(Request::LOCAL_ID),
        service: view.get(Request::SERVICE_ID),
        guid: view.array(Request::GUID),
        transport,
        parameters: Parameters {
            qpn: view.get(Request::QPN),
            psn: view.get(Request::PSN),
            responder_resources: view.get(Request::RESPONDER_RESOURCES),
            initiator_depth: view.get(Request::INITIATOR_DEPTH),
            flow_control: view.get(Request::FLOW_CONTROL),
            retries: view.get(Request::RETRIES),
            rnr_retries: view.get(Request::RNR_RETRIES),
            srq: view.get(Request::SRQ),
            enhancements: Enhancements { vendor: view.get(Request::VENDOR), options },
        },
        mtu: view.get(Request::MTU),
        gids: [path.array(Path::LOCAL_GID), path.array(Path::REMOTE_GID)],
        lids: path
            .get(Path::SUBNET_LOCAL)
            .then(|| [path.get(Path::LOCAL_LID), path.get(Path::REMOTE_LID)]),
        traffic_class: path.get(Path::TRAFFIC_CLASS),
        ack_timeout: path.get(Path::ACK_TIMEOUT),
        private: view.array(Request::PRIVATE),
    })
}

/// Sets fields of a message of layout `L`.
fn fill<L: Layout>(bytes: &mut Bytes, fill: impl FnOnce(&mut ViewMut<'_, L>)) {
    if let Some(mut view) = ViewMut::<L>::new(bytes) {
        fill(&mut view);
    }
}

/// Returns the datagram of a message.
pub(super) fn write(transaction: u64, content: &Content) -> Bytes {
    let mut bytes = [0; MAD_BYTES];
    let (message, pair, modifier) = match content {
        Content::Request(request) => {
            (Message::Request, None, request.parameters.enhancements.options)
        }
        Content::Reply { pair, parameters, .. } => {
            (Message::Reply, Some(pair), parameters.enhancements.options)
        }
        Content::ReadyToUse(pair) => (Message::ReadyToUse, Some(pair), 0),
        Content::Rejected { pair, .. } => (Message::Rejected, Some(pair), 0),
        Content::Acknowledged { pair, .. } => (Message::Acknowledged, Some(pair), 0),
        Content::DisconnectRequest { pair, .. } => (Message::DisconnectRequest, Some(pair), 0),
        Content::DisconnectReply(pair) => (Message::DisconnectReply, Some(pair), 0),
        Content::ServiceRequest { .. } => (Message::ServiceRequest, None, 0),
        Content::ServiceReply { .. } => (Message::ServiceReply, None, 0),
    };
    fill::<Mad>(&mut bytes, |header| {
        header
            .set(Mad::BASE_VERSION, Mad::VERSION_1)
            .set(Mad::CLASS, Mad::COMMUNICATION)
            .set(Mad::CLASS_VERSION, Mad::VERSION_2)
            .set(Mad::METHOD, Mad::SEND)
            .set(Mad::TRANSACTION, transaction)
            .set(Mad::ATTRIBUTE, message)
            .set(Mad::MODIFIER, modifier);
    });
    if let Some(pair) = pair {
        fill::<Pair>(&mut bytes, |view| {
            view.set(Pair::LOCAL_ID, pair.local).set(Pair::REMOTE_ID, pair.remote);
        });
    }
    match content {
        Content::Request(request) => write_request(&mut bytes, request),
        Content::Reply { guid, parameters, private, .. } => fill::<Reply>(&mut bytes, |view| {
            let [_, high, middle, low] = parameters.enhancements.vendor.to_be_bytes();
            view.set(Reply::QPN, parameters.qpn)
                .set(Reply::VENDOR_HIGH, high)
                .set(Reply::VENDOR_MIDDLE, middle)
                .set(Reply::VENDOR_LOW, low)
                .set(Reply::PSN, parameters.psn)
                .set(Reply::RESPONDER_RESOURCES, parameters.responder_resources)
                .set(Reply::INITIATOR_DEPTH, parameters.initiator_depth)
                .set(Reply::FLOW_CONTROL, parameters.flow_control)
                .set(Reply::RNR_RETRIES, parameters.rnr_retries)
                .set(Reply::SRQ, parameters.srq)
                .set_array(Reply::GUID, *guid)
                .set_array(Reply::PRIVATE, *private);
        }),
        Content::ReadyToUse(_) | Content::DisconnectReply(_) => {}
        Content::Rejected { message, reason, private, .. } => {
            fill::<Rejected>(&mut bytes, |view| {
                view.set(Rejected::MESSAGE, *message)
                    .set(Rejected::REASON, *reason)
                    .set_array(Rejected::PRIVATE, *private);
            });
        }
        Content::Acknowledged { message, timeout, .. } => {
            fill::<Acknowledged>(&mut bytes, |view| {
                view.set(Acknowledged::MESSAGE, *message).set(Acknowledged::TIMEOUT, *timeout);
            });
        }
        Content::DisconnectRequest { qpn, .. } => fill::<DisconnectRequest>(&mut bytes, |view| {
            view.set(DisconnectRequest::REMOTE_QPN, *qpn);
        }),
        Content::ServiceRequest { id, service, private } => {
            fill::<ServiceRequest>(&mut bytes, |view| {
                view.set(ServiceRequest::REQUEST_ID, *id)
                    .set(ServiceRequest::PKEY, DEFAULT_PKEY)
                    .set(ServiceRequest::SERVICE_ID, *service)
                    .set_array(ServiceRequest::PRIVATE, *private);
            });
        }
        Content::ServiceReply { id, status, service, qpn, qkey, private } => {
            fill::<ServiceReply>(&mut bytes, |view| {
                view.set(ServiceReply::REQUEST_ID, *id)
                    .set(ServiceReply::STATUS, *status)
                    .set(ServiceReply::QPN, *qpn)
                    .set(ServiceReply::SERVICE_ID, *service)
                    .set(ServiceReply::QKEY, *qkey)
                    .set_array(ServiceReply::PRIVATE, *private);
            });
        }
    }
    bytes
}

fn write_request(bytes: &mut Bytes, request: &ConnectionRequest) {
    let parameters = &request.parameters;
    fill::<Request>(bytes, |view| {
        let (service, extended) = match request.transport {
            Some(Transport::Uc) => (Service::Unreliable, 0),
            Some(Transport::Xrc) => (Service::Extended, XRC),
            Some(Transport::Rc) | None => (Service::Reliable, 0),
        };
        view.set(Request::LOCAL_ID, request.id)
            .set(Request::VENDOR, parameters.enhancements.vendor)
            .set(Request::SERVICE_ID, request.service)
            .set_array(Request::GUID, request.guid)
            .set(Request::QPN, parameters.qpn)
            .set(Request::RESPONDER_RESOURCES, parameters.responder_resources)
            .set(Request::INITIATOR_DEPTH, parameters.initiator_depth)
            .set(Request::REMOTE_TIMEOUT, RESPONSE_TIMEOUT)
            .set(Request::SERVICE, service)
            .set(Request::FLOW_CONTROL, parameters.flow_control)
            .set(Request::PSN, parameters.psn)
            .set(Request::LOCAL_TIMEOUT, RESPONSE_TIMEOUT)
            .set(Request::RETRIES, parameters.retries)
            .set(Request::PKEY, DEFAULT_PKEY)
            .set(Request::MTU, request.mtu)
            .set(Request::RNR_RETRIES, parameters.rnr_retries)
            .set(Request::MANAGER_RETRIES, RETRIES)
            .set(Request::SRQ, parameters.srq)
            .set(Request::EXTENDED_SERVICE, extended)
            .set_array(Request::PRIVATE, request.private);
        let [local, remote] = request.gids;
        let is_local = request.lids.is_some();
        let [local_lid, remote_lid] = request.lids.unwrap_or([NO_LID; 2]);
        view.nested(Request::PRIMARY)
            .set(Path::LOCAL_LID, local_lid)
            .set(Path::REMOTE_LID, remote_lid)
            .set(Path::SUBNET_LOCAL, is_local)
            .set_array(Path::LOCAL_GID, local)
            .set_array(Path::REMOTE_GID, remote)
            .set(Path::RATE, RATE)
            .set(Path::TRAFFIC_CLASS, request.traffic_class)
            .set(Path::HOP_LIMIT, if is_local { 0 } else { HOP_LIMIT })
            .set(Path::ACK_TIMEOUT, request.ack_timeout);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_back_as_they_were_written() {
        let pair = Ids { local: 1, remote: 2 };
        let enhancements = Enhancements { vendor: 0x15b3, options: 5 };
        let parameters = Parameters {
            qpn: 3,
            psn: 4,
            responder_resources: 5,
            initiator_depth: 6,
            flow_control: true,
            retries: 0,
            rnr_retries: 7,
            srq: true,
            enhancements,
        };
        let request = ConnectionRequest {
            id: 9,
            service: 0x0106_1234,
            guid: [1; 8],
            transport: Some(Transport::Xrc),
            parameters: Parameters { retries: 7, ..parameters },
            mtu: 5,
            gids: [[3; 16], [4; 16]],
            lids: Some([0x102, 0x103]),
            traffic_class: 8,
            ack_timeout: 17,
            private: [5; 92],
        };
        for content in [
            Content::Request(request),
            Content::Request(ConnectionRequest { lids: None, ..request }),
            Content::Reply { pair, guid: [8; 8], parameters, private: [9; 196] },
            Content::ReadyToUse(pair),
            Content::Rejected { pair, message: 1, reason: 28, private: [3; 148] },
            Content::Acknowledged { pair, message: 1, timeout: 24 },
            Content::DisconnectRequest { pair, qpn: 77 },
            Content::DisconnectReply(pair),
            Content::ServiceRequest { id: 1, service: 2, private: [3; 216] },
            Content::ServiceReply {
                id: 1,
                status: 2,
                service: 3,
                qpn: 4,
                qkey: 5,
                private: [6; 136],
            },
        ] {
            assert_eq!(read(&write(6, &content)), Some((6, content)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: [[u8; 16]; 16]) {
            let mut bytes: Bytes = bytes.as_flattened().try_into().unwrap();
            let _ = read(&bytes);
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16] = 0;
            bytes[17] = 0x10 | bytes[17] & 0xf;
            let _ = read(&bytes);
        }
    }
}
