//! The driver of mlx5 devices for the core of datagrams.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::layouts::cqe::CqeOpcode;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::request::{Inline, Send, Words};
use barewire_mlx5::ud::UdPeer;
use barewire_mlx5::{
    Completion, CompletionKind, CompletionQueue, ControlFlags, DataSegment, Family, Notifier,
    Polled, PortAddress, Uar, UdConfig, UdQueuePair, WqeIndex,
};

use super::{Domain, ID, SOFT_DEVICE, UdMlx5};
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError};
use crate::transport::common::registered::Domain as _;
use crate::transport::common::watch::Alarm;
use crate::transport::rc::{Limits, QueueFull};
use crate::transport::ud::{self, INLINE, Opened, QUEUE_KEY, ReceiveBuffer, Received, Taken};

/// A queue pair with its completion queue.
pub(crate) struct Queue {
    pair: UdQueuePair<Adaptive>,
    completions: CompletionQueue,
    /// The buffer of each receive WQE, by its place in the ring. Their number does not change.
    buffers: Box<[Posted]>,
}

/// The buffer of a receive WQE.
#[derive(Clone, Copy)]
struct Posted {
    /// Its first byte; `None` before the first post.
    start: Option<NonNull<u8>>,
    number: u32,
}

impl Queue {
    /// The place of the receive WQE `counter` in the ring.
    #[inline(always)]
    fn place(&self, counter: u32) -> usize {
        // The number of entries is a power of two. That of the ring itself, so that a message
        // computes the place once.
        (counter & (self.pair.receive.entries() - 1)) as usize
    }

    /// Notes the buffer of the receive WQE `producer`.
    #[inline(always)]
    fn note(&mut self, producer: u32, posted: Posted) {
        let place = self.place(producer);
        // SAFETY: the place is less than the number of entries of the ring, and `open` makes a
        // buffer for each entry. Neither number changes.
        unsafe { *self.buffers.get_unchecked_mut(place) = posted };
    }

    /// Returns the datagram in the buffer of the receive WQE `entry`.
    #[inline(always)]
    fn received(&self, entry: u32, length: u32, from: u32) -> Received {
        let Posted { start, number } = self.posted(entry);
        Received { start, number, length, from, entry }
    }

    /// Returns the buffer of the receive WQE `counter`.
    #[inline(always)]
    fn posted(&self, counter: u32) -> Posted {
        // SAFETY: the place is less than the number of entries of the ring, and `open` makes a
        // buffer for each entry. Neither number changes.
        unsafe { *self.buffers.get_unchecked(self.place(counter)) }
    }
}

impl ud::Queue for Queue {
    type Destination = AddressVector;

    fn number(&self) -> u32 {
        self.pair.number()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.pair.send.room() >= barewire_mlx5::queue::send::MAX_WQE_BLOCKS
    }

    #[inline]
    fn last(&self) -> u16 {
        self.pair.send.last_index().map_or(0, |WqeIndex(index)| index)
    }

    fn is_idle(&self) -> bool {
        self.pair.send.is_idle()
    }

    fn last_is_signaled(&self) -> bool {
        self.pair.send.last_is_signaled()
    }

    #[inline]
    fn is_done(&self, index: u16) -> bool {
        self.pair.send.is_done(WqeIndex(index))
    }

    #[inline]
    fn request_completion(&mut self) {
        self.pair.send.request_completion();
    }

    #[inline]
    fn reap(&mut self, index: u16) {
        self.pair.send.reap(index);
    }

    #[inline(never)]
    fn send_inline(&mut self, to: &AddressVector, packet: &[u8]) -> Result<u16, QueueFull> {
        let sent = self.pair.send.towards(to).post(Send(Inline(packet)), ControlFlags::empty());
        sent.map(|WqeIndex(index)| index).map_err(|_| QueueFull)
    }

    #[inline(always)]
    fn send_words(&mut self, to: &AddressVector, words: [u64; 4]) -> Result<u16, QueueFull> {
        let sent = self.pair.send.towards(to).post(Send(Words(words)), ControlFlags::empty());
        sent.map(|WqeIndex(index)| index).map_err(|_| QueueFull)
    }

    #[inline]
    fn send(
        &mut self,
        to: &AddressVector,
        address: u64,
        length: u32,
        key: u32,
    ) -> Result<u16, QueueFull> {
        let segment = DataSegment::new(address, length, key);
        let sent = self.pair.send.towards(to).post(Send(segment), ControlFlags::empty());
        sent.map(|WqeIndex(index)| index).map_err(|_| QueueFull)
    }

    #[inline]
    fn receive(&mut self, buffer: ReceiveBuffer, length: u32) -> Result<(), QueueFull> {
        let receive = &mut self.pair.receive;
        let producer = receive.producer();
        if !receive.push(DataSegment::new(buffer.address(), length, buffer.key)) {
            return Err(QueueFull);
        }
        receive.publish();
        self.note(producer, Posted { start: Some(buffer.start), number: buffer.number });
        Ok(())
    }

    #[inline]
    fn free(&mut self) {
        self.pair.receive.reap();
    }

    #[inline(always)]
    fn receive_again(&mut self, entry: u32, _length: u32) -> Result<(), QueueFull> {
        // In a full ring the next entry is the same one.
        let receive = &mut self.pair.receive;
        if !receive.push_again(entry) {
            // The entry still describes the buffer.
            let producer = receive.producer();
            receive.push_copy(entry);
            self.note(producer, self.posted(entry));
        }
        self.pair.receive.publish();
        Ok(())
    }

    #[inline]
    fn is_ready(&self) -> bool {
        !self.completions.is_empty()
    }

    fn has_backlog(&self, ahead: u32) -> bool {
        self.completions.has(ahead)
    }

    #[inline(always)]
    fn take_datagram(&mut self) -> Option<Received> {
        let polled = self.completions.poll_only(CqeOpcode::ResponderSend)?;
        let (entry, length, from) =
            (polled.wqe_counter().into(), polled.byte_count(), polled.source_qpn());
        Some(self.received(entry, length, from))
    }

    #[inline(never)]
    fn take(&mut self) -> Option<Taken> {
        let Completion { kind, wqe_counter: counter, byte_count, .. } =
            self.completions.poll().map(Polled::completion)?;
        let entry = counter.into();
        Some(match kind {
            CompletionKind::Send => Taken::Sent(counter),
            CompletionKind::SendError(_) => Taken::NotSent(counter),
            CompletionKind::Receive => {
                let from = self.completions.last_cqe().packet().source_qpn();
                Taken::Received(self.received(entry, byte_count, from))
            }
            CompletionKind::ReceiveError(_) => {
                Taken::NotReceived(self.received(entry, 0, 0).number)
            }
            // This crate sends no immediate; still, the receive WQE is consumed.
            _ => Taken::Received(self.received(entry, 0, 0)),
        })
    }

    fn fail(&mut self) {
        let _ = self.pair.to_error();
    }

    fn restart(&mut self) -> bool {
        // Completions from before the reset would be taken for those of later requests.
        while let Some(taken) = self.take() {
            if let Taken::Sent(index) = taken {
                self.reap(index);
            }
        }
        self.pair.reset().is_ok()
    }

    fn stop(&mut self) {
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        let _ = self.pair.reset();
    }
}

/// The events of an interface.
pub(crate) struct Events {
    /// Those of the completion queue, if the device has them.
    notifier: Option<Notifier>,
    /// Calls for attention when the device fails.
    alarm: OnceCell<Alarm>,
}

impl Events {
    fn notifier(&self) -> Result<&Notifier, EventError> {
        self.notifier.as_ref().ok_or_else(missing)
    }
}

/// The error of an interface whose channel has no events.
fn missing() -> EventError {
    let reason = "this command channel has no completion events";
    EventError::Missing { transport: ID, reason }
}

impl ud::Driver for UdMlx5 {
    type Domain = Domain;
    type Port = PortAddress;
    type Queue = Queue;
    type Events = Events;

    fn limits(domain: &Domain) -> Limits {
        let capabilities = domain.context().capabilities();
        Limits {
            requests: capabilities.max_queue_entries,
            completions: capabilities.max_cq_entries,
        }
    }

    fn port(domain: &Domain) -> PortAddress {
        domain.port().address
    }

    fn mtu(domain: &Domain) -> u32 {
        domain.port().mtu.bytes() as u32
    }

    fn choose(domain: &Domain, config: &InterfaceConfig) -> Result<Domain, OpenError> {
        domain.chosen(config)
    }

    fn open(
        domain: &Domain,
        config: &InterfaceConfig,
        receives: u32,
    ) -> Result<Opened<Self>, OpenError> {
        domain.check_family(Family::Datagrams)?;
        let context = domain.context();
        let uar = Uar::allocate(context).map_err(|e| domain.refused("take a UAR page", e))?;
        // Room for the CQE of each request; rings have at least 16 and 4 entries.
        let entries = config.send_ring.max(16) + receives.max(4);
        let (completions, notifier) = CompletionQueue::create_with_notifier(context, &uar, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let wanted = UdConfig::default()
            .send_blocks(config.send_ring)
            .receive_entries(receives)
            .signal_period(config.signal_every)
            .queue_key(QUEUE_KEY)
            .port(Some(*domain.port()));
        let pair = UdQueuePair::create_with(
            domain.protection(),
            &uar,
            &completions,
            &completions,
            &wanted,
        )
        .map_err(|e| domain.refused("create a queue pair", e))?;
        let entries = pair.receive.entries();
        let buffers = vec![Posted { start: None, number: u32::MAX }; entries as usize];
        let queue = Queue { pair, completions, buffers: buffers.into() };
        let is_software = domain.device() == SOFT_DEVICE;
        let events = Events { notifier, alarm: OnceCell::new() };
        Ok(Opened { queue, events, inline: INLINE, is_software })
    }

    fn opened(shared: &Rc<ud::Shared<Self>>) -> Result<(), OpenError> {
        let Some(watch) = shared.domain.watch()? else { return Ok(()) };
        // SAFETY: the alarm is a part of the value that contains the flag, which does not move out
        // of its `Rc`: it is dropped before the flag's memory is freed.
        let alarm = unsafe { watch.alarm(NonNull::from(&shared.attention), false) };
        let _ = shared.events.alarm.set(alarm);
        Ok(())
    }

    fn failure(domain: &Domain) -> Option<String> {
        domain.failure()
    }

    fn destination(
        shared: &ud::Shared<Self>,
        port: PortAddress,
        qpn: u32,
    ) -> Result<AddressVector, ConnectError> {
        let (config, mut peer) = (&shared.config, UdPeer::new(port, qpn));
        peer.queue_key = QUEUE_KEY;
        (peer.traffic_class, peer.service_level) = (config.traffic_class, config.service_level);
        let to = shared.with_queue(|queue| queue.pair.destination(&peer));
        to.map_err(|error| ConnectError::Device {
            transport: ID,
            peer: format!("{port} QP {qpn:#08x}"),
            source: error.into(),
        })
    }

    fn descriptor(events: &Events) -> Result<BorrowedFd<'_>, EventError> {
        events.notifier().map(AsFd::as_fd)
    }

    fn arm(events: &Events, queue: &mut Queue) -> Result<Armed, EventError> {
        let notifier = events.notifier()?;
        if !queue.completions.is_empty() {
            return Ok(Armed::Ready);
        }
        let is_empty = notifier.arm(&mut queue.completions);
        Ok(if is_empty { Armed::Indefinitely } else { Armed::Ready })
    }

    fn unanswered(domain: &Domain, tried: &str) -> String {
        format!("{tried}, from {} on {}", domain.port().address, domain.device())
    }
}
