//! The initiator of dynamic connections: a requester whose peer changes.
//!
//! Requests stay in order, whatever targets they go to, and their sequence numbers run on. When the next one goes elsewhere, what is on
//! its way is waited for, the connection is ended, and another is made; each step is repeated like a request until it is answered. An idle
//! connection is ended as well, for targets have few responder contexts.

use std::net::IpAddr;

use barewire_layouts::command::qp::{Mtu, QpState};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::roce::{Bth, BthOpcode, DcEth, DcRefusal, rnr_delay_ns};

use super::{RNR_RETRY_INFINITE, Requester, fail};
use crate::engine::Port;
use crate::engine::address::Destination;
use crate::object::Qp;
use crate::wire::packet::{self, Packet};

/// Nanoseconds that an idle connection is kept.
const LINGER: u64 = 50_000;

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Down,
    /// Asked for.
    Connecting,
    Up,
    /// To be ended, when the target has heard of it.
    Closing,
}

/// The connection of an initiator, or the last one that it had.
#[derive(Debug, Default)]
pub(super) struct Initiator {
    link: Link,
    to: Option<Destination>,
    /// The host that it leads to.
    address: Option<IpAddr>,
    number: u64,
    /// Since when there is nothing to send.
    idle_since: Option<u64>,
}

impl Initiator {
    /// Whether a request to `destination` can be sent.
    pub(super) fn reaches(&self, destination: Option<Destination>) -> bool {
        self.link == Link::Up && destination == self.to
    }

    /// When an idle connection is ended.
    pub(super) fn idle_until(&self) -> Option<u64> {
        self.idle_since.filter(|_| self.link == Link::Up).map(|since| since + LINGER)
    }

    /// Whether connection `number` with `host` is the one meant.
    fn is(&self, number: u64, host: IpAddr) -> bool {
        self.number == number && self.address == Some(host)
    }

    fn is_waiting(&self) -> bool {
        matches!(self.link, Link::Connecting | Link::Closing)
    }
}

/// Takes the next step towards the target of the request at the cursor, if one is due.
pub(super) fn steer(qp: &mut Qp, port: &mut Port<'_>) {
    let requester = &mut qp.engine.requester;
    let Some(initiator) = requester.initiator.as_deref_mut().filter(|_| requester.pause.is_none()) else {
        return;
    };
    let next = requester.requests.get(requester.cursor).filter(|request| request.fault.is_none());
    match (initiator.link, next.and_then(|request| request.wqe.destination)) {
        (Link::Down, Some(to)) => {
            *port.last_connection = port.last_connection.wrapping_add(1);
            *initiator = Initiator {
                link: Link::Connecting,
                to: Some(to),
                address: to.address(port.address),
                number: *port.last_connection,
                idle_since: None,
            };
            requester.awaited = Some(port.now);
            shake(qp, port);
        }
        (Link::Up, Some(to)) => {
            initiator.idle_since = None;
            // At the front there is nothing left that the target has not acknowledged.
            if initiator.to != Some(to) && requester.cursor == 0 {
                close(qp, port);
            }
        }
        (Link::Up, None) if requester.requests.is_empty() => {
            initiator.idle_since.get_or_insert(port.now);
        }
        _ => {}
    }
}

/// Ends the connection.
pub(super) fn close(qp: &mut Qp, port: &mut Port<'_>) {
    let requester = &mut qp.engine.requester;
    if let Some(initiator) = requester.initiator.as_deref_mut().filter(|initiator| initiator.link == Link::Up)
    {
        initiator.link = Link::Closing;
        initiator.idle_since = None;
        requester.awaited = Some(port.now);
        shake(qp, port);
    }
}

/// Ends the connection of a queue pair that goes on no more. Said once: if it is lost, the target finds out by the silence.
pub(in crate::engine) fn hang_up(qp: &mut Qp, port: &mut Port<'_>) {
    close(qp, port);
    let requester = &mut qp.engine.requester;
    if let Some(initiator) = requester.initiator.as_deref_mut() {
        initiator.link = Link::Down;
        requester.awaited = None;
    }
}

/// Whether the end of a connection is given up: the target is gone, and so is its end. True if it is.
pub(super) fn give_up(requester: &mut Requester, retry_count: u8) -> bool {
    let Some(initiator) = requester.initiator.as_deref_mut() else { return false };
    let over = initiator.link == Link::Closing && requester.retries >= retry_count;
    if over {
        initiator.link = Link::Down;
        (requester.retries, requester.awaited) = (0, None);
    }
    over
}

/// Repeats what was asked of the target last; false if nothing was.
pub(super) fn repeat(qp: &Qp, port: &mut Port<'_>) -> bool {
    let waiting = qp.engine.requester.initiator.as_ref().is_some_and(|initiator| initiator.is_waiting());
    if waiting {
        shake(qp, port);
    }
    waiting
}

/// Asks the target for a connection, or for its end.
fn shake(qp: &Qp, port: &mut Port<'_>) {
    let (requester, attributes) = (&qp.engine.requester, &qp.attributes);
    let Some(initiator) = requester.initiator.as_deref() else { return };
    let Some((address, to)) = initiator.address.zip(initiator.to) else {
        // No host has such an address; nobody will answer.
        port.counters.send_failures += 1;
        return;
    };
    let (connection, qpn) = (initiator.number.into(), qp.number.into());
    if initiator.link == Link::Connecting {
        let mtu = Mtu::ALL.iter().find(|mtu| mtu.bytes() == attributes.mtu).map_or(0, |&mtu| mtu as u8);
        let detail = DcEth::detail(mtu, attributes.ack_timeout);
        let header = DcEth { access_key: to.access_key().into(), connection, qpn, detail };
        let bth = Bth::new(BthOpcode::Connect, to.qpn, requester.cursor_psn().get());
        port.send_connection(address, bth, &header);
    } else {
        let header = DcEth { connection, qpn, ..DcEth::default() };
        let bth = Bth::new(BthOpcode::Disconnect, attributes.remote_qpn, requester.cursor_psn().get());
        port.send_connection(address, bth, &header);
    }
}

/// Ends a connection that a target accepted and nobody wants any more: the request for it was doubled, or its queue pair is gone.
pub(in crate::engine) fn decline(port: &mut Port<'_>, packet: &Packet<'_>) {
    if packet.opcode == BthOpcode::Accept {
        let qpn = packet.bth.destination().into();
        let header = DcEth { connection: packet.dc.connection, qpn, ..DcEth::default() };
        let bth = Bth::new(BthOpcode::Disconnect, packet.dc.qpn.get(), packet.bth.psn());
        port.send_connection(packet.source, bth, &header);
    } else {
        port.counters.stale_responses += 1;
    }
}

/// Takes what a target says of a connection.
pub(in crate::engine) fn answered(qp: &mut Qp, port: &mut Port<'_>, packet: &Packet<'_>) {
    let requester = &mut qp.engine.requester;
    let connection = packet.dc.connection.get();
    let running = qp.state == QpState::Rts;
    let ours = requester.initiator.as_deref_mut().filter(|initiator| {
        running && initiator.is(connection, packet.source) && initiator.link != Link::Down
    });
    let Some(initiator) = ours else { return decline(port, packet) };
    match (packet.opcode, initiator.link) {
        (BthOpcode::Accept, Link::Connecting) => {
            initiator.link = Link::Up;
            (requester.retries, requester.rnr_retries, requester.awaited) = (0, 0, None);
            qp.attributes.remote_address = packet.source;
            qp.attributes.remote_qpn = packet.dc.qpn.get();
        }
        // The target asks whether it is still wanted, or the network doubled its answer.
        (BthOpcode::Accept, Link::Up) => {
            let header =
                DcEth { connection: initiator.number.into(), qpn: qp.number.into(), ..DcEth::default() };
            let bth = Bth::new(BthOpcode::KeepAlive, packet.dc.qpn.get(), packet.bth.psn());
            port.send_connection(packet.source, bth, &header);
        }
        (BthOpcode::Accept, _) => {}
        (BthOpcode::Disconnected, Link::Closing) => {
            initiator.link = Link::Down;
            (requester.retries, requester.awaited) = (0, None);
        }
        (BthOpcode::Refuse, _) => match DcRefusal::try_from(packet.dc.code()) {
            Ok(refusal) => refused(qp, port, refusal, packet.dc.timer()),
            Err(_) => port.counters.malformed += 1,
        },
        _ => port.counters.stale_responses += 1,
    }
}

/// There is no connection, or none any more.
fn refused(qp: &mut Qp, port: &mut Port<'_>, refusal: DcRefusal, timer: u8) {
    let (retry_count, rnr_retry) = (qp.attributes.retry_count, qp.attributes.rnr_retry);
    let requester = &mut qp.engine.requester;
    let Some(initiator) = requester.initiator.as_deref_mut() else { return };
    port.counters.dc_refusals_received += 1;
    let link = std::mem::take(&mut initiator.link);
    requester.awaited = None;
    if link != Link::Connecting {
        // What has begun may have been executed or not. Nobody can tell, so it is not sent again.
        let begun = requester.requests.front().is_some_and(|front| requester.sent != front.first);
        if link == Link::Up && begun {
            fail(qp, port, Syndrome::RemoteAborted);
        }
        return;
    }
    match refusal {
        DcRefusal::AccessKey => return fail(qp, port, Syndrome::RemoteAccess),
        DcRefusal::PathMtu => return fail(qp, port, Syndrome::RemoteInvalidRequest),
        DcRefusal::Unknown | DcRefusal::Closed if requester.retries >= retry_count => {
            return fail(qp, port, Syndrome::TransportRetryExceeded);
        }
        DcRefusal::Unknown | DcRefusal::Closed => requester.retries += 1,
        // It is there, and will be asked as often as its user allows.
        DcRefusal::Busy if rnr_retry == RNR_RETRY_INFINITE => requester.retries = 0,
        DcRefusal::Busy if requester.rnr_retries >= rnr_retry => {
            return fail(qp, port, Syndrome::RnrRetryExceeded);
        }
        DcRefusal::Busy => (requester.retries, requester.rnr_retries) = (0, requester.rnr_retries + 1),
    }
    requester.pause = Some(port.now + rnr_delay_ns(timer));
}

impl Port<'_> {
    /// Sends a packet that makes or ends a connection.
    fn send_connection(&mut self, to: IpAddr, bth: Bth, header: &DcEth) {
        packet::connection(self.frame, bth, header, (self.address, to));
        self.counters.packets_sent += 1;
        self.wire.send(to, self.frame);
    }
}
