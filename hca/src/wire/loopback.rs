//! Frames to the port's own address, which never leave the process.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use super::{ROCE_PORT, Wire};
use crate::counters::Counters;

/// Number of queued frames from which on none should be sent. None is lost: the internal loopback
/// of an adapter holds its senders back.
const DEPTH: usize = 1024;

/// Delivers frames for its own address, and forwards the others.
#[derive(Debug)]
pub(crate) struct Loopback<W> {
    inner: W,
    address: IpAddr,
    /// Frames and their traffic classes.
    queue: VecDeque<(Vec<u8>, u8)>,
    /// Delivered buffers, for reuse.
    spare: Vec<Vec<u8>>,
    /// Alternates between both sources, so that neither starves.
    own_turn: bool,
    /// The traffic class of frames to be sent, and that of the frame that was received last, if it
    /// was an own one.
    class: u8,
    received: Option<u8>,
}

impl<W: Wire> Loopback<W> {
    pub(crate) fn new(inner: W, address: IpAddr) -> Self {
        let (queue, spare) = (VecDeque::new(), Vec::new());
        Self { inner, address, queue, spare, own_turn: true, class: 0, received: None }
    }

    fn receive_own(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let (delivered, class) = self.queue.pop_front()?;
        self.received = Some(class);
        self.spare.push(std::mem::replace(frame, delivered));
        Some(SocketAddr::new(self.address, ROCE_PORT))
    }
}

impl<W: Wire> Wire for Loopback<W> {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        if to != self.address {
            return self.inner.send(to, frame);
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        self.queue.push_back((buffer, self.class));
    }

    fn set_class(&mut self, class: u8) {
        self.class = class;
        self.inner.set_class(class);
    }

    fn class(&self) -> u8 {
        self.received.unwrap_or_else(|| self.inner.class())
    }

    fn group(&self) -> Option<IpAddr> {
        // Those to a group go through the carrier.
        self.inner.group().filter(|_| self.received.is_none())
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        self.received = None;
        self.own_turn = !self.own_turn;
        if self.own_turn {
            self.receive_own(frame).or_else(|| self.inner.receive(frame))
        } else {
            self.inner.receive(frame).or_else(|| self.receive_own(frame))
        }
    }

    fn tick(&mut self, now: u64) {
        self.inner.tick(now);
    }

    fn deadline(&self) -> Option<u64> {
        self.inner.deadline()
    }

    fn take_link_command(&mut self) -> Option<bool> {
        self.inner.take_link_command()
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= DEPTH || self.inner.is_full()
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn rest(&mut self) -> bool {
        self.inner.rest()
    }

    fn count(&self, counters: &mut Counters) {
        self.inner.count(counters);
    }
}
