//! The queues of one end on one rail: its queue pairs and their completion queue.

use barewire_mlx5::Access;
use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::{
    CompletionKind, CompletionQueue, ControlFlags, DataSegment, Error as DeviceError, RcConfig,
    RcPath, RcQueuePair, RemoteAddressSegment, Uar,
};

use crate::config::Config;
use crate::error::{End, Failure};
use crate::rails::{Rail, RailInfo};
use crate::request::REQUESTS;

/// WQEBBs of a send ring. All lines of the ring need two each, and room is known to be free a
/// signal period late at most.
const SEND_BLOCKS: usize = 1024;
const _: () = assert!(SEND_BLOCKS >= 4 * REQUESTS);

/// A WQE that completes no request.
pub(crate) const NO_OWNER: u16 = u16::MAX;

/// Which end of the channel the queues are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// A queue pair.
#[derive(Debug)]
struct Pair {
    queues: RcQueuePair<Adaptive>,
    number: u32,
    remote: u32,
    /// The request of each WQE, by its first block.
    owners: Box<[u16; SEND_BLOCKS]>,
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A share of this request was acknowledged.
    Sent(u16),
    /// A share arrived.
    Arrived { immediate: u32, bytes: u32 },
    /// A queue pair failed: see [`Queues::failure`].
    Failed,
}

/// The queues of one end on one rail.
///
/// No method gives access to a queue, so that all queues of the register stay in this value.
#[derive(Debug)]
pub(crate) struct Queues {
    completions: CompletionQueue,
    pairs: Vec<Pair>,
    /// The pair of the next message.
    turn: usize,
    /// Number of the rail in its set.
    rail: usize,
    local: RailInfo,
    remote: Option<RailInfo>,
    failed: Option<(u32, CompletionKind)>,
}

// SAFETY: only the send queues are tied to a thread, because queues of one `Uar` write its register
// without a lock. `create` allocates the `Uar`, makes all of its queues, and drops every handle of
// it, so no other queue has the register. Nothing moves or lends a queue out of this value, so
// that all of them are on one thread at a time.
unsafe impl Send for Queues {}

impl Queues {
    /// Creates the queues. Those of a receiver have all of their receive WQEs posted.
    pub(crate) fn create(
        rail: usize,
        of: &Rail,
        pairs: usize,
        role: Role,
    ) -> Result<Self, DeviceError> {
        let context = of.domain.context();
        let uar = Uar::allocate(context)?;
        let receives = if role == Role::Receiver { REQUESTS as u32 } else { 4 };
        let entries = pairs as u32 * (SEND_BLOCKS as u32 + receives);
        let completions = CompletionQueue::create(context, &uar, entries)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let config = RcConfig::default()
            .send_blocks(SEND_BLOCKS as u32)
            .receive_entries(receives)
            .access(access);
        let made = (0..pairs).map(|_| {
            let mut pair =
                RcQueuePair::create_with(&of.domain, &uar, &completions, &completions, &config)?;
            if role == Role::Receiver {
                while pair.receive.push_empty() {}
                pair.receive.publish();
            }
            let owners = Box::new([NO_OWNER; SEND_BLOCKS]);
            Ok(Pair { number: pair.number(), queues: pair, remote: 0, owners })
        });
        let pairs = made.collect::<Result<_, DeviceError>>()?;
        let local = of.info.clone();
        Ok(Self { completions, pairs, turn: 0, rail, local, remote: None, failed: None })
    }

    /// Numbers of the queue pairs.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.pairs.iter().map(|pair| pair.number).collect()
    }

    /// Connects the queue pairs to those of the peer with `numbers`, in order.
    pub(crate) fn connect(
        &mut self,
        remote: &RailInfo,
        numbers: &[u32],
        config: &Config,
    ) -> Result<(), DeviceError> {
        let mtu = core::cmp::min_by_key(self.local.mtu, remote.mtu, |mtu| mtu.bytes());
        for (pair, number) in self.pairs.iter_mut().zip(numbers) {
            let path = RcPath::new(remote.address, *number)
                .mtu(mtu)
                .ack_timeout(config.ack_timeout)
                .retry_count(config.retry_count)
                .traffic_class(config.traffic_class)
                .service_level(config.service_level);
            pair.queues.connect(&path)?;
            pair.remote = *number;
        }
        self.remote = Some(remote.clone());
        Ok(())
    }

    /// Number of the rail in its set.
    #[inline(always)]
    pub(crate) fn rail(&self) -> usize {
        self.rail
    }

    /// The queue pair for the next message, if it has room for `blocks`.
    #[inline(always)]
    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        self.pairs.get(self.turn).is_some_and(|pair| pair.queues.send.room() >= blocks)
    }

    /// Ends a message: the next one uses the next queue pair.
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        let next = self.turn + 1;
        self.turn = if next < self.pairs.len() { next } else { 0 };
    }

    /// Writes a share with `immediate` for request `owner`. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_share(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        immediate: u32,
        owner: u16,
    ) -> bool {
        let Some(Pair { queues, owners, .. }) = self.pairs.get_mut(self.turn) else { return false };
        let flags = ControlFlags::COMPLETION;
        match queues.send.write_one_immediate(local, remote, immediate, flags) {
            Ok(index) => {
                owners[usize::from(index.0) % SEND_BLOCKS] = owner;
                true
            }
            Err(_) => false,
        }
    }

    /// Writes a line to the ring of the peer. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_line(&mut self, line: &[u8; 64], remote: RemoteAddressSegment) -> bool {
        let Some(Pair { queues, .. }) = self.pairs.get_mut(self.turn) else { return false };
        queues.send.write_inline_64(line, remote, ControlFlags::empty()).is_ok()
    }

    /// Writes the lines of a group, which are at `local`, to the ring of the peer. Returns `false` if
    /// there is no room.
    #[inline(always)]
    pub(crate) fn write_lines(&mut self, local: DataSegment, remote: RemoteAddressSegment) -> bool {
        let Some(Pair { queues, .. }) = self.pairs.get_mut(self.turn) else { return false };
        queues.send.write(local, remote, ControlFlags::empty()).is_ok()
    }

    /// Returns whether there is no completion.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// Takes a completion.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<Event> {
        let polled = self.completions.poll()?;
        let (number, counter) = (polled.qpn(), polled.wqe_counter());
        let Some(Pair { queues, owners, .. }) =
            self.pairs.iter_mut().find(|pair| pair.number == number)
        else {
            self.failed = Some((number, polled.kind()));
            return Some(Event::Failed);
        };
        if polled.is_write_immediate() {
            let (immediate, bytes) = (polled.immediate(), polled.byte_count());
            if !queues.receive.push_again(counter.into()) {
                // Receive WQEs of a queue pair complete in order.
                self.failed = Some((number, polled.kind()));
                return Some(Event::Failed);
            }
            queues.receive.publish();
            return Some(Event::Arrived { immediate, bytes });
        }
        if polled.is_send() {
            queues.send.reap(counter);
            return Some(Event::Sent(owners[usize::from(counter) % SEND_BLOCKS]));
        }
        self.failed = Some((number, polled.kind()));
        Some(Event::Failed)
    }

    /// The reason for [`Event::Failed`].
    #[cold]
    pub(crate) fn failure(&mut self, peer: std::net::SocketAddr) -> Failure {
        let protocol = |what| Failure::Protocol { peer, what };
        let Some((number, kind)) = self.failed.take() else {
            return protocol("an unknown failure");
        };
        let (operation, syndrome) = match kind {
            CompletionKind::SendError(syndrome) => ("a write", syndrome),
            CompletionKind::ReceiveError(syndrome) => ("a receive", syndrome),
            CompletionKind::Receive | CompletionKind::ReceiveImmediate(_) => {
                return protocol("it sent a message instead of a write");
            }
            _ => return protocol("a completion that belongs to no operation"),
        };
        let pair = self.pairs.iter().find(|pair| pair.number == number);
        let local = End {
            rail: self.local.name.clone(),
            address: self.local.address.to_string(),
            pair: number,
        };
        let remote = match &self.remote {
            Some(remote) => End {
                rail: remote.name.clone(),
                address: remote.address.to_string(),
                pair: pair.map_or(0, |pair| pair.remote),
            },
            None => local.clone(),
        };
        Failure::Rail { operation, local, remote, syndrome }
    }
}
