//! What programs do with connections: connect, accept, reject, disconnect, destroy.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use barewire_layouts::management::connection::{reason, status};

use super::abi::{Accept, ConnParam, Connect, Ece, EventType, Reject};
use super::address::{Address, Ends, gid};
use super::link::{Link, Stage, TIME_WAIT};
use super::message::{
    ConnectionRequest, Content, Enhancements, Ids, PACKET_LIFETIME, Parameters, write,
};
use super::state::{State, random};
use crate::errno::Errno;

const PSN: u32 = 0x00ff_ffff;
const QPN: u32 = 0x00ff_ffff;
/// Largest number of retries.
const MOST_RETRIES: u8 = 7;
/// `IB_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: u32 = 4;

/// The messages that a rejection refuses (IBTA table 109).
const OF_REQUEST: u8 = 0;
const OF_REPLY: u8 = 1;

/// Copies private data after `offset` bytes of a message's.
fn private<const N: usize>(offset: usize, data: &[u8], length: u8) -> Result<[u8; N], Errno> {
    let mut all = [0; N];
    let room = all.get_mut(offset..offset + usize::from(length)).ok_or(Errno::INVALID)?;
    room.copy_from_slice(data.get(..usize::from(length)).ok_or(Errno::INVALID)?);
    Ok(all)
}

fn parameters(given: &ConnParam, ece: Ece) -> Parameters {
    Parameters {
        qpn: given.qp_num & QPN,
        psn: random() as u32 & PSN,
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control != 0,
        retries: given.retry_count.min(MOST_RETRIES),
        rnr_retries: given.rnr_retry_count.min(MOST_RETRIES),
        srq: given.srq != 0,
        enhancements: Enhancements { vendor: ece.vendor_id & QPN, options: ece.attr_mod },
    }
}

impl State {
    /// Returns the service and the destination that an identifier is to be connected to.
    pub(super) fn destination(&mut self, channel: u64, id: u32) -> Result<(u64, Address), Errno> {
        let entry = self.id(channel, id)?;
        let destination = entry.destination.filter(|_| entry.routed && entry.link.is_none());
        let destination = destination.ok_or(Errno::INVALID)?;
        Ok((destination.service(entry.space), destination))
    }

    /// Sends a request to the port with address `peer`. Without an address, no program listens at the
    /// destination.
    pub(super) fn connect(
        &mut self,
        channel: u64,
        command: &Connect,
        peer: Option<IpAddr>,
        now: Instant,
    ) -> Result<(), Errno> {
        let (id, given) = (command.id, &command.conn_param);
        let (service, _) = self.destination(channel, id)?;
        let entry = self.id(channel, id)?;
        if given.valid == 0 {
            return Err(Errno::INVALID);
        }
        let (datagram, transport) = (entry.is_datagram(), entry.transport());
        let (index, source) = entry.port.zip(entry.source).ok_or(Errno::INVALID)?;
        let (traffic_class, ack_timeout) = (entry.traffic_class, entry.ack_timeout);
        let port = *self.ports.get(index).ok_or(Errno::NO_DEVICE)?;
        let Some(peer) = peer else {
            let code = i32::from(reason::NO_SERVICE);
            let (event, status) = if datagram {
                (EventType::Unreachable, i32::from(status::UNSUPPORTED))
            } else {
                (EventType::Rejected, code)
            };
            self.tell(id, event, status, |_| {});
            return Ok(());
        };
        // The private data begins with the IP addresses of both ends, unless GIDs name them. Peers
        // reach the device by its own address.
        let ends = Ends { source: SocketAddr::new(port.address, source.port()), destination: peer };
        let offset = if source.native.is_some() { 0 } else { Ends::BYTES };
        let local = parameters(given, command.ece);
        let stage = if datagram { Stage::ServiceRequested } else { Stage::RequestSent };
        let mut link = Link::new(stage, index, peer);
        (link.id, link.service, link.local) = (Some(id), service, local);
        (link.mtu, link.traffic_class) = (port.mtu, traffic_class);
        link.ack_timeout = ack_timeout.unwrap_or(PACKET_LIFETIME + 1);
        let (data, length) = (&given.private_data[..], given.private_data_len);
        let number = self.unused_number();
        let content = if datagram {
            let mut private = private(offset, data, length)?;
            ends.write(&mut private[..offset]);
            Content::ServiceRequest { id: number, service, private }
        } else {
            let mut private = private(offset, data, length)?;
            ends.write(&mut private[..offset]);
            Content::Request(ConnectionRequest {
                id: number,
                service,
                guid: port.guid,
                transport,
                parameters: local,
                mtu: link.mtu,
                gids: [gid(port.address), gid(peer)],
                lids: port.route(peer).lids,
                traffic_class,
                ack_timeout: link.ack_timeout,
                private,
            })
        };
        link.transaction = random() << 32 | u64::from(number);
        let bytes = write(link.transaction, &content);
        link.enter_repeating(stage, bytes, now);
        self.id(channel, id)?.link = Some(number);
        self.links.insert(number, link);
        self.send(index, peer, bytes);
        Ok(())
    }

    /// Accepts a request, or confirms a reply.
    pub(super) fn accept(
        &mut self,
        channel: u64,
        command: &Accept,
        now: Instant,
    ) -> Result<(), Errno> {
        let (id, given) = (command.id, &command.conn_param);
        let (number, link) = self.link(channel, id)?;
        let (port, peer) = (link.port, link.peer);
        let pair = Ids { local: number, remote: link.remote_id };
        let (transaction, service) = (link.transaction, link.service);
        let guid = self.ports.get(port).ok_or(Errno::NO_DEVICE)?.guid;
        let (_, link) = self.link(channel, id)?;
        let data = (&given.private_data[..], given.private_data_len);
        let bytes = match (link.stage, given.valid) {
            (Stage::ReplyReceived, 0) => {
                link.enter(Stage::Established);
                let bytes = write(transaction, &Content::ReadyToUse(pair));
                link.last = Some(Box::new(bytes));
                bytes
            }
            (Stage::RequestReceived, 1..) => {
                let private = private(0, data.0, data.1)?;
                // The PSN was chosen before: the program may have set up its queue pair with it.
                let psn = link.local.psn;
                link.local = Parameters { psn, ..parameters(given, command.ece) };
                let content = Content::Reply { pair, guid, parameters: link.local, private };
                let bytes = write(transaction, &content);
                link.enter_repeating(Stage::ReplySent, bytes, now);
                bytes
            }
            (Stage::ServiceAsked, 1..) => {
                let private = private(0, data.0, data.1)?;
                let (id, status) = (link.remote_id, status::VALID);
                let qpn = given.qp_num & QPN;
                let qkey = if given.qkey == 0 { super::UDP_QKEY } else { given.qkey };
                let content = Content::ServiceReply { id, status, service, qpn, qkey, private };
                let bytes = write(transaction, &content);
                link.enter_until(Stage::ServiceAnswered, now.checked_add(TIME_WAIT));
                link.last = Some(Box::new(bytes));
                bytes
            }
            _ => return Err(Errno::INVALID),
        };
        if given.valid != 0 {
            self.id(channel, id)?.uid = command.uid;
        }
        self.send(port, peer, bytes);
        Ok(())
    }

    /// Rejects a request or a reply.
    pub(super) fn reject(&mut self, channel: u64, command: &Reject) -> Result<(), Errno> {
        /// `IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`.
        const ENHANCEMENTS: u8 = 35;
        let code = match command.reason {
            0 => reason::CONSUMER,
            code if u16::from(code) == reason::CONSUMER || code == ENHANCEMENTS => code.into(),
            _ => return Err(Errno::INVALID),
        };
        let (number, link) = self.link(channel, command.id)?;
        let data = (&command.private_data[..], command.private_data_len);
        let pair = Ids { local: number, remote: link.remote_id };
        let message = match link.stage {
            Stage::RequestReceived => OF_REQUEST,
            Stage::ReplyReceived => OF_REPLY,
            Stage::ServiceAsked => {
                let content = refuse_service(link, private(0, data.0, data.1)?);
                return self.end(number, &content);
            }
            _ => return Err(Errno::INVALID),
        };
        let private = private(0, data.0, data.1)?;
        self.end(number, &Content::Rejected { pair, message, reason: code, private })
    }

    /// Sends the last message of a connection and removes it.
    fn end(&mut self, number: u32, content: &Content) -> Result<(), Errno> {
        let link = self.drop_link(number).ok_or(Errno::INVALID)?;
        self.send(link.port, link.peer, write(link.transaction, content));
        Ok(())
    }

    /// Removes a connection, also from its identifier.
    pub(super) fn drop_link(&mut self, number: u32) -> Option<Link> {
        let link = self.links.remove(&number)?;
        if let Some(entry) = link.id.and_then(|id| self.ids.get_mut(&id))
            && entry.link == Some(number)
        {
            entry.link = None;
            entry.ended = true;
        }
        Some(link)
    }

    /// Ends a connection, or responds to its end.
    pub(super) fn disconnect(&mut self, channel: u64, id: u32, now: Instant) -> Result<(), Errno> {
        let (number, link) = self.link(channel, id)?;
        match link.stage {
            Stage::Established | Stage::ReplySent => self.ask_for_end(number, now),
            Stage::DisconnectReceived => self.confirm_end(number, now),
            // As the kernel.
            _ => {}
        }
        Ok(())
    }

    /// Sends the request to end a connection.
    pub(super) fn ask_for_end(&mut self, number: u32, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let pair = Ids { local: number, remote: link.remote_id };
        link.transaction = random() << 32 | u64::from(number);
        let content = Content::DisconnectRequest { pair, qpn: link.remote.qpn };
        let bytes = write(link.transaction, &content);
        link.enter_repeating(Stage::DisconnectSent, bytes, now);
        let (port, peer) = (link.port, link.peer);
        self.send(port, peer, bytes);
    }

    /// Confirms the end of a connection.
    pub(super) fn confirm_end(&mut self, number: u32, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let pair = Ids { local: number, remote: link.remote_id };
        let bytes = write(link.transaction, &Content::DisconnectReply(pair));
        link.enter_until(Stage::TimeWait, now.checked_add(TIME_WAIT));
        link.last = Some(Box::new(bytes));
        let (port, peer) = (link.port, link.peer);
        self.send(port, peer, bytes);
    }

    /// The program saw a message on the connection before this manager did.
    pub(super) fn notify(&mut self, channel: u64, id: u32, event: u32) -> Result<(), Errno> {
        let (_, link) = self.link(channel, id)?;
        if event != COMMUNICATION_ESTABLISHED {
            return Err(Errno::INVALID);
        }
        match link.stage {
            Stage::ReplySent => {
                link.enter(Stage::Established);
                self.tell(id, EventType::Established, 0, |_| {});
                Ok(())
            }
            Stage::Established => Ok(()),
            _ => Err(Errno::INVALID),
        }
    }

    /// Ends a connection whose identifier is destroyed (linux cm.c: `cm_destroy_id`).
    pub(super) fn abandon(&mut self, number: u32, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.id = None;
        let pair = Ids { local: number, remote: link.remote_id };
        let rejected =
            |message, reason| Content::Rejected { pair, message, reason, private: [0; 148] };
        let content = match link.stage {
            Stage::RequestSent => rejected(OF_REQUEST, reason::TIMEOUT),
            Stage::RequestReceived => rejected(OF_REQUEST, reason::CONSUMER),
            Stage::ReplyReceived | Stage::ReplySent => rejected(OF_REPLY, reason::CONSUMER),
            Stage::Established => return self.ask_for_end(number, now),
            Stage::DisconnectReceived => return self.confirm_end(number, now),
            Stage::ServiceAsked => refuse_service(link, [0; 136]),
            Stage::ServiceRequested => {
                self.links.remove(&number);
                return;
            }
            // They end on their own.
            Stage::DisconnectSent | Stage::TimeWait | Stage::ServiceAnswered => return,
        };
        // It was found above.
        let _ = self.end(number, &content);
    }
}

fn refuse_service(link: &Link, private: [u8; 136]) -> Content {
    Content::ServiceReply {
        id: link.remote_id,
        status: status::REJECTED,
        service: link.service,
        qpn: 0,
        qkey: 0,
        private,
    }
}
