//! Frames to the port's own address, which never leave the process.

use std::collections::VecDeque;
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
    queue: VecDeque<Vec<u8>>,
    /// Delivered buffers, for reuse.
    spare: Vec<Vec<u8>>,
    /// Alternates between both sources, so that neither starves.
    own_turn: bool,
}

impl<W: Wire> Loopback<W> {
    pub(crate) fn new(inner: W, address: IpAddr) -> Self {
        Self { inner, address, queue: VecDeque::new(), spare: Vec::new(), own_turn: true }
    }

    fn receive_own(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let delivered = self.queue.pop_front()?;
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
        self.queue.push_back(buffer);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        self.own_turn = !self.own_turn;
        if self.own_turn {
            self.receive_own(frame).or_else(|| self.inner.receive(frame))
        } else {
            self.inner.receive(frame).or_else(|| self.receive_own(frame))
        }
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

    fn count(&self, counters: &mut Counters) {
        self.inner.count(counters);
    }
}
