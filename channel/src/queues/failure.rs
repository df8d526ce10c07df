//! What queues say and do when their rail fails, and how it is tried again.

use std::time::{Duration, Instant};

use barewire_mlx5::request::{Read, Write};
use barewire_mlx5::{
    CompletionKind, ControlFlags, DataSegment, ReceiveQueue, RemoteAddressSegment, WqeIndex,
};

use super::{NO_OWNER, Pair, Queues, REFUSAL, SAMPLES, SEND_BLOCKS};
use crate::fail_over::{Cause, Operation};

impl Queues {
    /// What [`Event::Failed`] is about.
    #[cold]
    pub(crate) fn cause(
        &mut self,
        connected: Duration,
        now: Instant,
    ) -> Result<Cause, &'static str> {
        let (number, counter, kind) = self.failed.take().ok_or("an unknown failure")?;
        let (operation, syndrome) = match kind {
            CompletionKind::SendError(syndrome) => (Operation::Write, syndrome),
            CompletionKind::ReceiveError(syndrome) => (Operation::Receive, syndrome),
            CompletionKind::Receive | CompletionKind::ReceiveImmediate(_) => {
                return Err("it sent a message instead of a write");
            }
            _ => return Err("a completion that belongs to no operation"),
        };
        let pair = self.pairs().find(|pair| pair.number == number);
        let remote = pair.map_or(0, |pair| pair.remote);
        let codes = [syndrome.code, syndrome.vendor_code, syndrome.opcode];
        let age = pair.filter(|_| operation == Operation::Write).map(|pair| pair.age(counter, now));
        let age = age.unwrap_or_default();
        Ok(Cause { operation, codes, pair: number, remote, connected, age })
    }

    /// Notes what is posted at this time, for the age of an operation that fails later.
    #[cold]
    pub(crate) fn sample(&mut self, now: Instant) {
        for Pair { queues, samples, .. } in self.pairs_mut() {
            let posted = queues.send.posted();
            if samples.back().is_none_or(|(last, _)| *last != posted) {
                if samples.len() >= SAMPLES {
                    samples.pop_front();
                }
                samples.push_back((posted, now));
            }
        }
    }

    /// What the failure of the device is about.
    pub(crate) fn device_cause(&self, connected: Duration) -> Cause {
        let (pair, remote) = (self.first.number, self.first.remote);
        let (codes, age) = ([0; 3], Duration::ZERO);
        Cause { operation: Operation::Device, codes, pair, remote, connected, age }
    }

    /// Moves the queue pairs to error: the peer's operations fail from now on.
    #[cold]
    pub(crate) fn fence(&mut self) {
        for pair in self.pairs_mut() {
            if let Err(error) = pair.queues.to_error() {
                // They are destroyed afterwards, which has the same effect.
                tracing::warn!("queue pair {:#x} was not moved to error: {error}", pair.number);
            }
        }
    }

    /// Immediates taken so far, by queue pair. For a receiver.
    pub(crate) fn taken(&self) -> Vec<u32> {
        let taken = |queue: &ReceiveQueue| queue.producer().wrapping_sub(queue.entries());
        self.pairs().map(|pair| taken(&pair.queues.receive)).collect()
    }

    /// Returns whether a refusal is not acknowledged. For a sender.
    #[cold]
    pub(crate) fn has_refusals(&self) -> bool {
        self.pairs().any(|Pair { queues, owners, tail, .. }| {
            let open = (queues.send.posted() as u16).wrapping_sub(*tail);
            let owner = |at| owners[usize::from(tail.wrapping_add(at)) % SEND_BLOCKS];
            (0..open).any(|at| owner(at) == REFUSAL)
        })
    }

    /// Reads from the memory of the peer, with a completion. For a sender. Returns `false` if there
    /// is no room.
    #[cold]
    pub(crate) fn read(&mut self, local: DataSegment, remote: RemoteAddressSegment) -> bool {
        let pair = self.pair();
        let send = &mut pair.queues.send;
        send.announce();
        let posted = send.post(Read { local, remote }, ControlFlags::COMPLETION);
        pair.note(posted, NO_OWNER, false)
    }

    /// Writes a letter to the memory of the peer, with a completion. Returns its WQE, if there was
    /// room.
    #[cold]
    pub(crate) fn write_letter(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
    ) -> Option<u16> {
        let pair = &mut self.first;
        pair.queues.send.announce();
        let posted = pair.queues.send.post(Write { local, remote }, ControlFlags::COMPLETION);
        let wqe = posted.ok().map(|WqeIndex(index)| index);
        pair.note(posted, NO_OWNER, false).then_some(wqe).flatten()
    }

    /// Returns whether the letter of this WQE is in the memory of the peer.
    pub(crate) fn has_acknowledged(&self, wqe: u16) -> bool {
        self.first.tail.wrapping_sub(wqe.wrapping_add(1)) < 1 << 15
    }

    /// Writes nothing to the peer, to learn whether the first queue pair works.
    pub(crate) fn probe(&mut self) -> bool {
        let nothing = DataSegment::new(0, 0, 0);
        let nowhere = RemoteAddressSegment::new(0, 0);
        self.first
            .queues
            .send
            .post(Write { local: nothing, remote: nowhere }, ControlFlags::COMPLETION)
            .is_ok()
    }
}

impl Pair {
    /// How long the WQE of `counter` has been posted at least, in whole milliseconds.
    fn age(&self, counter: u16, now: Instant) -> Duration {
        let posted = self.queues.send.posted();
        let index = posted.wrapping_sub((posted as u16).wrapping_sub(counter).into());
        let since = self.samples.iter().find(|(posted, _)| *posted > index);
        let age = since.map(|(_, since)| now.saturating_duration_since(*since));
        // Both ends report the same, and milliseconds cross the wire.
        Duration::from_millis(age.unwrap_or_default().as_millis() as u64)
    }
}
