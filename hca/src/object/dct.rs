//! Targets of dynamic connections, and the responder contexts that their connections take.

use std::collections::HashMap;
use std::net::IpAddr;

use barewire_layouts::command::dct::DctState;

use super::{Attributes, Qp, Scatter};

/// A target: an initiator with its access key gets a connection, if a responder context is free.
#[derive(Debug)]
pub(crate) struct Dct {
    pub(crate) state: DctState,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The user index, for CQEs.
    pub(crate) user_index: u32,
    /// The completion queue of received messages.
    pub(crate) cq: u32,
    /// The shared receive queue.
    pub(crate) srq: u32,
    /// Whether small messages are scattered to the CQE.
    pub(crate) scatter: Scatter,
    pub(crate) access_key: u64,
    /// Initial attributes of each connection: path MTU, rights and RNR timer.
    pub(crate) attributes: Attributes,
    /// Requests with a wrong access key, and whether the next is reported by an event.
    pub(crate) violations: u32,
    pub(crate) violation_armed: bool,
    /// Responder contexts by initiator: its address and queue pair number.
    pub(crate) connections: HashMap<(IpAddr, u32), u32>,
    /// Returned by QUERY_DCT.
    pub(crate) address_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dscp: u8,
    pub(crate) priority: u8,
    pub(crate) port: u8,
    pub(crate) hop_limit: u8,
}

/// The responder's end of a connection: a queue pair without queues, created and destroyed by
/// packets.
#[derive(Debug)]
pub(crate) struct ResponderContext<E> {
    /// Its peer is the initiator; its completions carry the target's number.
    pub(crate) qp: Qp<E>,
    /// The initiator's number of the connection.
    pub(crate) connection: u64,
    /// Nanoseconds of silence after which the initiator is asked whether it still uses the
    /// connection.
    pub(crate) period: u64,
    /// Time of the last packet, and how often the initiator was asked since.
    pub(crate) heard: u64,
    pub(crate) asked: u8,
}

impl<E> ResponderContext<E> {
    /// Returns whether this is connection `number` of an initiator at `host`.
    pub(crate) fn is(&self, number: u64, host: IpAddr) -> bool {
        self.connection == number && self.qp.attributes.remote_address == host
    }
}
