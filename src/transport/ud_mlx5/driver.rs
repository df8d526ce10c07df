//! The driver of mlx5 devices for the core of datagrams.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::ud::UdPeer;
use barewire_mlx5::{
    CompletionKind, CompletionQueue, ControlFlags, DataSegment, Notifier, Polled, PortAddress, Uar,
    UdConfig, UdQueuePair, WqeIndex,
};

use super::{Domain, ID, SOFT_DEVICE, UdMlx5};
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError};
use crate::event::{Armed, EventError};
use crate::message::SHORT_HEADER;
use crate::transport::common::registered::Domain as _;
use crate::transport::common::watch::Alarm;
use crate::transport::rc::{Limits, QueueFull};
use crate::transport::reliable::HEADER;
use crate::transport::ud::{self, INLINE, Opened, QUEUE_KEY, Taken};

/// Bytes of the packet of an `am_short` of one word, the most frequent one.
const WORD_PACKET: usize = HEADER + SHORT_HEADER + size_of::<u64>();

/// A queue pair with its completion queue.
pub(crate) struct Queue {
    pair: UdQueuePair<Adaptive>,
    completions: CompletionQueue,
    /// The buffer of each receive WQE, by its place in the ring.
    buffers: Box<[u32]>,
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
        let send = &mut self.pair.send;
        let sent = match <&[u8; WORD_PACKET]>::try_from(packet) {
            // A constant length needs no loop over the WQE.
            Ok(packet) => send.send_inline_to(to, packet, ControlFlags::empty()),
            Err(_) => send.send_inline_to(to, packet, ControlFlags::empty()),
        };
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
        let sent = self.pair.send.send_to(to, segment, ControlFlags::empty());
        sent.map(|WqeIndex(index)| index).map_err(|_| QueueFull)
    }

    #[inline]
    fn receive(
        &mut self,
        buffer: u32,
        address: u64,
        length: u32,
        key: u32,
    ) -> Result<(), QueueFull> {
        let receive = &mut self.pair.receive;
        let place = receive.producer() as usize & (self.buffers.len() - 1);
        if !receive.push(DataSegment::new(address, length, key)) {
            return Err(QueueFull);
        }
        receive.publish();
        if let Some(known) = self.buffers.get_mut(place) {
            *known = buffer;
        }
        Ok(())
    }

    #[inline]
    fn is_ready(&self) -> bool {
        !self.completions.is_empty()
    }

    #[inline]
    fn take(&mut self) -> Option<Taken> {
        let completion = self.completions.poll().map(Polled::completion)?;
        let counter = completion.wqe_counter;
        let buffer = match completion.kind {
            CompletionKind::Send => return Some(Taken::Sent(counter)),
            CompletionKind::SendError(_) => return Some(Taken::NotSent(counter)),
            _ => {
                self.pair.receive.reap();
                let place = usize::from(counter) & (self.buffers.len() - 1);
                self.buffers.get(place).copied().unwrap_or(u32::MAX)
            }
        };
        Some(match completion.kind {
            CompletionKind::Receive => Taken::Received {
                buffer,
                length: completion.byte_count,
                from: self.completions.last_cqe().packet().source_qpn(),
            },
            CompletionKind::ReceiveError(_) => Taken::NotReceived(buffer),
            // This crate sends no immediate; still, the receive WQE is consumed.
            _ => Taken::Received { buffer, length: 0, from: 0 },
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
        let buffers = vec![0; pair.receive.entries() as usize].into_boxed_slice();
        let queue = Queue { pair, completions, buffers };
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
        // If a completion arrived in the meantime, arming makes the descriptor readable, too.
        notifier.arm(&mut queue.completions);
        Ok(Armed::Indefinitely)
    }

    fn unanswered(domain: &Domain, tried: &str) -> String {
        format!("{tried}, from {} on {}", domain.port().address, domain.device())
    }
}
