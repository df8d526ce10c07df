//! The wire: RoCEv2 packets between devices.
//!
//! A *frame* is what UDP carries: base transport header to invariant CRC. Decorators put fault injection and the way to the own
//! address in front of the carrier: `Faulty<Loopback<Udp>>`.

pub(crate) mod fabric;
pub(crate) mod fault;
pub(crate) mod loopback;
pub(crate) mod packet;
pub(crate) mod udp;

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

pub use fabric::Fabric;
pub use fault::{Faults, FaultsError};

use crate::engine::Counters;

/// The UDP port of RoCEv2 (IBTA annex A17).
pub(crate) const ROCE_PORT: u16 = 4791;

/// Largest frame that is sent or taken: a packet of 4096 bytes with every extended header.
pub(crate) const MAX_FRAME: usize = 4096 + 256;

/// Something that carries frames between IPv4 addresses. Frames may be lost, doubled and reordered; none blocks.
pub(crate) trait Wire: Send + Debug {
    /// Sends one frame.
    fn send(&mut self, to: Ipv4Addr, frame: &[u8]);

    /// Puts the next frame that arrived into `frame` and tells where it came from.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddrV4>;

    /// Ends a pass of the engine: what was held back for batching leaves.
    fn flush(&mut self) {}

    /// What can be polled for arriving frames.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Adds what the wire itself counted.
    fn count(&self, counters: &mut Counters);
}

impl Wire for Box<dyn Wire> {
    fn send(&mut self, to: Ipv4Addr, frame: &[u8]) {
        (**self).send(to, frame);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddrV4> {
        (**self).receive(frame)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn descriptor(&self) -> Option<RawFd> {
        (**self).descriptor()
    }

    fn count(&self, counters: &mut Counters) {
        (**self).count(counters);
    }
}

/// Puts loopback to `address` and, where asked for, `faults` in front of `carrier`.
pub(crate) fn assemble<W: Wire + 'static>(carrier: W, address: Ipv4Addr, faults: &Faults) -> Box<dyn Wire> {
    let wire = loopback::Loopback::new(carrier, address);
    if faults.is_none() { Box::new(wire) } else { Box::new(fault::Faulty::new(wire, faults.clone())) }
}
