//! The driver of devices behind libibverbs for the core of datagrams.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use barewire_verbs::{
    self as verbs, Access as Rights, AddressHandle, Capacity, Data, Element, Initialize, OneThread,
    Operation, QueuePairKind, QueuePairOptions, ReadyToSend,
};

use super::{Domain, ID, UdVerbs};
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError, Operation as Name};
use crate::base::event::{Armed, EventError};
use crate::transport::common::registered::Domain as _;
use crate::transport::rc::{Limits, QueueFull};
use crate::transport::rdma::{self, Completions, Pair, PortAddress, QueuePair, WrKind};
use crate::transport::ud::{self, INLINE, Opened, QUEUE_KEY, ReceiveBuffer, Received, Taken};

/// The destination of a packet.
pub(crate) struct Destination {
    handle: AddressHandle,
    qpn: u32,
}

/// A queue pair of verbs with its completion queue.
pub(crate) struct Queue {
    pair: Pair,
    completions: Rc<Completions>,
    /// Receive buffers that were posted, by their numbers.
    buffers: Vec<Option<ReceiveBuffer>>,
    domain: Domain,
}

/// Brings a new queue pair into service.
fn bring_up(qp: &QueuePair, domain: &Domain) -> Result<(), verbs::Error> {
    let values = Initialize {
        port: domain.port().number,
        partition_index: domain.partition_index(),
        access: Rights::empty(),
        queue_key: QUEUE_KEY,
    };
    let send = ReadyToSend {
        packet_sequence_number: 0,
        timeout: 0,
        retries: 0,
        rnr_retries: 0,
        initiator_depth: 0,
    };
    qp.initialize(&values)?;
    qp.ready_to_receive(None)?;
    qp.ready_to_send(&send)
}

impl Queue {
    fn post(&mut self, to: &Destination, data: Data<'_>) -> Result<u16, QueueFull> {
        let operation = Operation::SendTo {
            handle: &to.handle,
            queue_pair: to.qpn,
            queue_key: QUEUE_KEY,
            immediate: None,
        };
        self.pair.post(Name::ActiveMessage, operation, data, false).map_err(|_| QueueFull)
    }
}

impl ud::Queue for Queue {
    type Destination = Destination;

    fn number(&self) -> u32 {
        self.pair.qp().number()
    }

    fn has_room(&self) -> bool {
        self.pair.room() > 0
    }

    fn last(&self) -> u16 {
        self.pair.last()
    }

    fn is_idle(&self) -> bool {
        self.pair.is_idle()
    }

    fn last_is_signaled(&self) -> bool {
        self.pair.last_is_signaled()
    }

    fn is_done(&self, index: u16) -> bool {
        self.pair.is_done(index)
    }

    fn request_completion(&mut self) {
        self.pair.request_completion();
    }

    fn reap(&mut self, index: u16) {
        self.pair.reap(index);
    }

    fn send_inline(&mut self, to: &Destination, packet: &[u8]) -> Result<u16, QueueFull> {
        self.post(to, Data::Inline(packet))
    }

    fn send_words(&mut self, to: &Destination, words: [u64; 4]) -> Result<u16, QueueFull> {
        self.send_inline(to, words.map(u64::to_le_bytes).as_flattened())
    }

    fn send(
        &mut self,
        to: &Destination,
        address: u64,
        length: u32,
        key: u32,
    ) -> Result<u16, QueueFull> {
        self.post(to, Data::Elements(&[Element::new(address, length, key)]))
    }

    fn receive(&mut self, buffer: ReceiveBuffer, length: u32) -> Result<(), QueueFull> {
        let place = buffer.number as usize;
        if self.buffers.len() <= place {
            self.buffers.resize(place + 1, None);
        }
        let element = Element::new(buffer.address(), length, buffer.key);
        self.pair.receive(buffer.number, element).map_err(|_| QueueFull)?;
        self.buffers[place] = Some(buffer);
        Ok(())
    }

    /// libibverbs does it with the completion.
    fn free(&mut self) {}

    /// The entry is the buffer's number.
    fn receive_again(&mut self, entry: u32, length: u32) -> Result<(), QueueFull> {
        let buffer = self.buffers.get(entry as usize).copied().flatten().ok_or(QueueFull)?;
        self.receive(buffer, length)
    }

    /// Only libibverbs knows whether a completion is there.
    fn is_ready(&self) -> bool {
        true
    }

    /// Only libibverbs knows. Without it, buffers grow when messages were lost or kept.
    fn has_backlog(&self, _ahead: u32) -> bool {
        false
    }

    fn take_datagram(&mut self) -> Option<Received> {
        None
    }

    fn take(&mut self) -> Option<Taken> {
        let taken = self.completions.take()?;
        Some(match (taken.kind, taken.outcome) {
            (WrKind::Send(index), Ok(())) => Taken::Sent(index),
            (WrKind::Send(index), Err(_)) => Taken::NotSent(index),
            (WrKind::Receive(number), Ok(())) => {
                let (length, from) = (taken.length, taken.from);
                let buffer = self.buffers.get(number as usize).copied().flatten();
                let start = buffer.map(|buffer| buffer.start);
                Taken::Received(Received { start, number, length, from, entry: number })
            }
            (WrKind::Receive(number), Err(_)) => Taken::NotReceived(number),
        })
    }

    fn fail(&mut self) {
        let _ = self.pair.qp().fail();
    }

    fn restart(&mut self) -> bool {
        let qp = self.pair.qp();
        let done = qp.reset().and_then(|()| bring_up(qp, &self.domain)).is_ok();
        if done {
            self.pair.forget();
        }
        done
    }

    fn stop(&mut self) {
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        let _ = self.pair.qp().reset();
    }
}

impl ud::Driver for UdVerbs {
    type Domain = Domain;
    type Port = PortAddress;
    type Queue = Queue;
    type Events = Rc<Completions>;

    fn limits(domain: &Domain) -> Limits {
        let limits = domain.limits();
        Limits { requests: limits.requests, completions: limits.completions }
    }

    fn port(domain: &Domain) -> PortAddress {
        PortAddress::of(domain)
    }

    fn mtu(domain: &Domain) -> u32 {
        domain.port().active_mtu
    }

    fn choose(domain: &Domain, config: &InterfaceConfig) -> Result<Domain, OpenError> {
        domain.chosen(config)
    }

    fn open(
        domain: &Domain,
        config: &InterfaceConfig,
        receives: u32,
    ) -> Result<Opened<Self>, OpenError> {
        let completions = Rc::new(Completions::new(domain, config.send_ring + receives)?);
        let options = |inline: usize| QueuePairOptions {
            kind: QueuePairKind::UnreliableDatagram,
            send_queue: completions.reference(),
            receive_queue: completions.reference(),
            shared_receive: None,
            capacity: Capacity {
                sends: config.send_ring,
                receives,
                send_elements: 1,
                receive_elements: 1,
                inline: inline as u32,
            },
            signal_all: false,
        };
        let thread = OneThread::new(domain.context());
        let make = |inline| thread.queue_pair(domain.protection(), &options(inline));
        let qp = make(INLINE)
            .or_else(|_| make(0))
            .map_err(|e| domain.refused("create a queue pair", e))?;
        bring_up(&qp, domain).map_err(|e| domain.refused("bring a queue pair up", e))?;
        let inline = INLINE.min(qp.capacity().inline as usize);
        let pair = Pair::new(qp, config.send_ring, 0, config.signal_every);
        let events = Rc::clone(&completions);
        let queue = Queue { pair, completions, buffers: Vec::new(), domain: domain.clone() };
        Ok(Opened { queue, events, inline, is_software: false })
    }

    fn destination(
        shared: &ud::Shared<Self>,
        port: PortAddress,
        qpn: u32,
    ) -> Result<Destination, ConnectError> {
        let route = port.route(&shared.domain, &shared.config, ID)?;
        let handle = AddressHandle::new(shared.domain.protection(), &route);
        let handle = handle.map_err(|error| ConnectError::Device {
            transport: ID,
            peer: format!("{port} QP {qpn:#08x}"),
            source: error.into(),
        })?;
        Ok(Destination { handle, qpn })
    }

    fn descriptor(events: &Rc<Completions>) -> Result<BorrowedFd<'_>, EventError> {
        Ok(events.descriptor())
    }

    fn arm(events: &Rc<Completions>, _: &mut Queue) -> Result<Armed, EventError> {
        events.arm()
    }

    fn unanswered(domain: &Domain, tried: &str) -> String {
        rdma::unanswered(domain, tried)
    }
}
