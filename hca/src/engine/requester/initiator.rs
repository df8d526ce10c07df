//! The DC initiator: a requester whose peer changes.
//!
//! Requests stay in order across targets, and their PSNs are consecutive. When the next one has
//! another target, outstanding requests complete first, then the connection is ended and another is
//! made; each step is repeated until the target responds. An idle connection is ended too, because
//! targets have few responder contexts.

use std::net::IpAddr;

use barewire_layouts::command::qp::{Mtu, QpState};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::roce::{Bth, BthOpcode, DcEth, DcRefusal, rnr_delay_ns};

use super::{RNR_RETRY_INFINITE, Requester, fail};
use crate::engine::address::Destination;
use crate::engine::fetch::Wqe;
use crate::engine::{Port, Qp};
use crate::wire::packet::{self, Packet};

/// Time that an idle connection is kept, in nanoseconds.
const LINGER: u64 = 50_000;

/// State of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Down,
    /// Asked for.
    Connecting,
    Up,
    /// To be ended, once the target has confirmed it.
    Closing,
}

/// The current or last connection of an initiator.
#[derive(Debug, Default)]
pub(super) struct Initiator {
    link: Link,
    to: Option<Destination>,
    /// The channel whose requests it carries.
    channel: u16,
    /// The target's host.
    address: Option<IpAddr>,
    number: u64,
    /// The time since which it is idle.
    idle_since: Option<u64>,
}

impl Initiator {
    /// Returns whether a request can be sent.
    pub(super) fn reaches(&self, wqe: &Wqe) -> bool {
        self.link == Link::Up && wqe.destination == self.to && wqe.channel == self.channel
    }

    /// Returns when the idle connection is to be ended.
    pub(super) fn idle_until(&self) -> Option<u64> {
        self.idle_since.filter(|_| self.link == Link::Up).map(|since| since + LINGER)
    }

    /// Returns whether this is connection `number` with `host`.
    fn is(&self, number: u64, host: IpAddr) -> bool {
        self.number == number && self.address == Some(host)
    }

    fn is_waiting(&self) -> bool {
        matches!(self.link, Link::Connecting | Link::Closing)
    }
}

/// Takes the next step towards a connection with the target of the request at the cursor, if one is
/// due.
pub(super) fn steer(qp: &mut Qp, port: &mut Port<'_>) {
    let requester = &mut qp.engine.requester;
    let Some(initiator) = requester.initiator.as_deref_mut().filter(|_| requester.pause.is_none())
    else {
        return;
    };
    let next = requester.requests.get(requester.cursor).filter(|request| {
        request.fault.is_none() && !requester.streams.has_failed(request.wqe.channel)
    });
    let channel = next.map_or(0, |request| request.wqe.channel);
    match (initiator.link, next.and_then(|request| request.wqe.destination)) {
        (Link::Down, Some(to)) => {
            *port.last_connection = port.last_connection.wrapping_add(1);
            *initiator = Initiator {
                link: Link::Connecting,
                to: Some(to),
                channel,
                address: to.address(port.address),
                number: *port.last_connection,
                idle_since: None,
            };
            requester.awaited = Some(port.now);
            shake(qp, port);
        }
        (Link::Up, Some(to)) => {
            initiator.idle_since = None;
            // Otherwise the target has not acknowledged everything.
            if requester.cursor == 0 && requester.packet == 0 {
                initiator.channel = channel;
                if initiator.to != Some(to) {
                    close(qp, port);
                }
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
    if let Some(initiator) =
        requester.initiator.as_deref_mut().filter(|initiator| initiator.link == Link::Up)
    {
        initiator.link = Link::Closing;
        initiator.idle_since = None;
        requester.awaited = Some(port.now);
        shake(qp, port);
    }
}

/// Ends the connection of a failed or destroyed queue pair. Sent once: if it is lost, the target's
/// timeout ends the connection.
pub(in crate::engine) fn hang_up(qp: &mut Qp, port: &mut Port<'_>) {
    close(qp, port);
    let requester = &mut qp.engine.requester;
    if let Some(initiator) = requester.initiator.as_deref_mut() {
        initiator.link = Link::Down;
        requester.awaited = None;
    }
}

/// Returns whether to stop asking for the end of a connection because the target does not respond.
pub(super) fn give_up(requester: &mut Requester, retry_count: u8) -> bool {
    let Some(initiator) = requester.initiator.as_deref_mut() else { return false };
    let over = initiator.link == Link::Closing && requester.retries >= retry_count;
    if over {
        initiator.link = Link::Down;
        (requester.retries, requester.awaited) = (0, None);
    }
    over
}

/// Repeats the last request to the target. Returns `false` if there was none.
pub(super) fn repeat(qp: &Qp, port: &mut Port<'_>) -> bool {
    let waiting =
        qp.engine.requester.initiator.as_ref().is_some_and(|initiator| initiator.is_waiting());
    if waiting {
        shake(qp, port);
    }
    waiting
}

/// Requests a connection or its end from the target.
fn shake(qp: &Qp, port: &mut Port<'_>) {
    let (requester, attributes) = (&qp.engine.requester, &qp.attributes);
    let Some(initiator) = requester.initiator.as_deref() else { return };
    let Some((address, to)) = initiator.address.zip(initiator.to) else {
        // No host can have this address.
        port.counters.send_failures += 1;
        return;
    };
    let (connection, qpn) = (initiator.number.into(), qp.number.into());
    if initiator.link == Link::Connecting {
        let mtu =
            Mtu::ALL.iter().find(|mtu| mtu.bytes() == attributes.mtu).map_or(0, |&mtu| mtu as u8);
        let detail = DcEth::detail(mtu, attributes.ack_timeout);
        let header = DcEth { access_key: to.access_key().into(), connection, qpn, detail };
        let bth = Bth::new(BthOpcode::Connect, to.qpn, requester.cursor_psn().get());
        port.send_connection(address, bth.with_pkey(attributes.pkey), &header);
    } else {
        let header = DcEth { connection, qpn, ..DcEth::default() };
        let bth =
            Bth::new(BthOpcode::Disconnect, attributes.remote_qpn, requester.cursor_psn().get());
        port.send_connection(address, bth.with_pkey(attributes.pkey), &header);
    }
}

/// Ends a connection that a target accepted but that is not wanted: the request was duplicated, or
/// its queue pair was destroyed.
pub(in crate::engine) fn decline(port: &mut Port<'_>, packet: &Packet<'_>) {
    if packet.opcode == BthOpcode::Accept {
        let qpn = packet.bth.destination().into();
        let header = DcEth { connection: packet.dc.connection, qpn, ..DcEth::default() };
        let bth = Bth::new(BthOpcode::Disconnect, packet.dc.qpn.get(), packet.bth.psn());
        port.send_connection(packet.source, bth.with_pkey(packet.bth.pkey.get()), &header);
    } else {
        port.counters.stale_responses += 1;
    }
}

/// Handles a target's response to a connection request.
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
        // The target asks whether the connection is still wanted, or the network duplicated its
        // response.
        (BthOpcode::Accept, Link::Up) => {
            let header = DcEth {
                connection: initiator.number.into(),
                qpn: qp.number.into(),
                ..DcEth::default()
            };
            let bth = Bth::new(BthOpcode::KeepAlive, packet.dc.qpn.get(), packet.bth.psn());
            port.send_connection(packet.source, bth.with_pkey(packet.bth.pkey.get()), &header);
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

/// Handles the refusal or the end of a connection.
fn refused(qp: &mut Qp, port: &mut Port<'_>, refusal: DcRefusal, timer: u8) {
    let (retry_count, rnr_retry) = (qp.attributes.retry_count, qp.attributes.rnr_retry);
    let requester = &mut qp.engine.requester;
    let Some(initiator) = requester.initiator.as_deref_mut() else { return };
    if initiator.link != Link::Connecting && refusal != DcRefusal::Closed {
        // A delayed response to an earlier request for the same connection.
        port.counters.stale_responses += 1;
        return;
    }
    port.counters.dc_refusals_received += 1;
    let link = std::mem::take(&mut initiator.link);
    requester.awaited = None;
    if link != Link::Connecting {
        // A request that was started may or may not have been executed, so it is not sent again.
        let begun = requester.requests.front().is_some_and(|front| requester.sent != front.first);
        if link == Link::Up && begun {
            fail(qp, port, Syndrome::RemoteAborted.into());
        }
        return;
    }
    match refusal {
        DcRefusal::AccessKey => return fail(qp, port, Syndrome::RemoteAccess.into()),
        DcRefusal::PathMtu => return fail(qp, port, Syndrome::RemoteInvalidRequest.into()),
        DcRefusal::Unknown | DcRefusal::Closed if requester.retries >= retry_count => {
            return fail(qp, port, Syndrome::TransportRetryExceeded.into());
        }
        DcRefusal::Unknown | DcRefusal::Closed => requester.retries += 1,
        // The target exists and is asked as often as the retry count allows.
        DcRefusal::Busy if rnr_retry == RNR_RETRY_INFINITE => requester.retries = 0,
        DcRefusal::Busy if requester.rnr_retries >= rnr_retry => {
            return fail(qp, port, Syndrome::RnrRetryExceeded.into());
        }
        DcRefusal::Busy => {
            (requester.retries, requester.rnr_retries) = (0, requester.rnr_retries + 1);
        }
    }
    requester.pause = Some(port.now + rnr_delay_ns(timer));
}

impl Port<'_> {
    /// Sends a connection management packet.
    fn send_connection(&mut self, to: IpAddr, bth: Bth, header: &DcEth) {
        packet::connection(self.frame, bth, header, (self.address, to));
        self.counters.packets_sent += 1;
        self.wire.send(to, self.frame);
    }
}
