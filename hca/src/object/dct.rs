//! Targets of dynamic connections, and the responder contexts that their connections take.

use std::collections::HashMap;
use std::net::IpAddr;

use barewire_layouts::command::dct::DctState;

use super::{Attributes, Qp, Scatter};

/// A target: whoever knows its access key gets a connection, as long as there is a responder context.
#[derive(Debug)]
pub(crate) struct Dct {
    pub(crate) state: DctState,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The user's own number, for CQEs.
    pub(crate) user_index: u32,
    /// The completion queue of what arrives.
    pub(crate) cq: u32,
    /// The shared receive queue that it takes from.
    pub(crate) srq: u32,
    /// Whether small messages go into the completion itself.
    pub(crate) scatter: Scatter,
    pub(crate) access_key: u64,
    /// What every connection starts from: path MTU, rights and the pause when there is no receive WQE.
    pub(crate) attributes: Attributes,
    /// Requests with a wrong access key, and whether an event shall tell of the next.
    pub(crate) violations: u32,
    pub(crate) violation_armed: bool,
    /// Responder contexts by initiator: its device and its number.
    pub(crate) connections: HashMap<(IpAddr, u32), u32>,
    /// As QUERY_DCT tells it again.
    pub(crate) address_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// The responder's end of a connection: a queue pair without queues, made and taken away by packets.
#[derive(Debug)]
pub(crate) struct ResponderContext<E> {
    /// Its peer is the initiator; its completions bear the target's number.
    pub(crate) qp: Qp<E>,
    /// The number that the initiator gave the connection.
    pub(crate) connection: u64,
    /// Nanoseconds of silence after which the initiator is asked whether it still wants the connection.
    pub(crate) period: u64,
    /// When it was heard last, and how often it was asked since.
    pub(crate) heard: u64,
    pub(crate) asked: u8,
}

impl<E> ResponderContext<E> {
    /// Whether it stands for connection `number` of an initiator at `host`.
    pub(crate) fn is(&self, number: u64, host: IpAddr) -> bool {
        self.connection == number && self.qp.attributes.remote_address == host
    }
}
