//! The wire: RoCEv2 packets between devices.
//!
//! A *frame* is what UDP carries: base transport header to invariant CRC. Decorators put fault injection, capture and the way
//! to the own address in front of the carrier: `Faulty<Capture<Loopback<Udp>>>`. Between devices of one
//! key the carrier appends a tag to each frame, which nothing in front of it sees: see `tag`.

mod batch;
pub(crate) mod capture;
pub(crate) mod fabric;
pub(crate) mod fault;
mod fault_text;
pub(crate) mod headers;
pub(crate) mod loopback;
pub(crate) mod packet;
mod tag;
pub(crate) mod udp;

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;

pub use fabric::Fabric;
pub use fault::Faults;
pub use fault_text::FaultsError;

use crate::counters::Counters;

/// Environment variable with what carries devices' packets, for [`crate::Config::from_env`].
pub const WIRE_VARIABLE: &str = "BAREWIRE_HCA_WIRE";

/// The UDP port of RoCEv2 (IBTA annex A17).
pub(crate) const ROCE_PORT: u16 = 4791;

/// Largest frame that is sent or taken: a packet of 4096 bytes with every extended header.
pub(crate) const MAX_FRAME: usize = 4096 + 256;

/// Something that carries frames between IP addresses. Frames may be lost, doubled and reordered; none blocks.
pub(crate) trait Wire: Send + Debug {
    /// Sends one frame.
    fn send(&mut self, to: IpAddr, frame: &[u8]);

    /// Puts the next frame that arrived into `frame` and tells where it came from.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr>;

    /// Starts a pass of the engine: the time, in nanoseconds on the device's clock.
    fn tick(&mut self, _now: u64) {}

    /// When the wire has something to do although nothing happens.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Whether frames are held that the next passes let go.
    fn is_holding(&self) -> bool {
        false
    }

    /// Takes the link down or up.
    fn set_link(&mut self, _up: bool) {}

    /// Whether the link is up.
    fn is_link_up(&self) -> bool {
        true
    }

    /// Ends a pass of the engine: what was held back for batching leaves.
    fn flush(&mut self) {}

    /// What can be polled for arriving frames.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Adds what the wire itself counted.
    fn count(&self, counters: &mut Counters);
}

/// A port of a device: its address, and what carries its packets.
#[derive(Debug)]
pub(crate) struct PhysicalPort {
    pub(crate) address: IpAddr,
    pub(crate) wire: Box<dyn Wire>,
}

impl Wire for Box<dyn Wire> {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        (**self).send(to, frame);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        (**self).receive(frame)
    }

    fn tick(&mut self, now: u64) {
        (**self).tick(now);
    }

    fn deadline(&self) -> Option<u64> {
        (**self).deadline()
    }

    fn is_holding(&self) -> bool {
        (**self).is_holding()
    }

    fn set_link(&mut self, up: bool) {
        (**self).set_link(up);
    }

    fn is_link_up(&self) -> bool {
        (**self).is_link_up()
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

/// Puts loopback to `address` and, where asked for, capture and faults in front of `carrier`.
///
/// # Errors
/// The capture file cannot be made.
pub(crate) fn assemble<W: Wire + 'static>(
    carrier: W,
    address: IpAddr,
    Decoration { faults, pcap, stepped }: Decoration<'_>,
) -> io::Result<Box<dyn Wire>> {
    let mut wire: Box<dyn Wire> = Box::new(loopback::Loopback::new(carrier, address));
    if let Some(pcap) = pcap {
        wire = Box::new(capture::Capture::create(wire, address, pcap, stepped)?);
    }
    // Always there: a link can be taken down without faults.
    Ok(Box::new(fault::Faulty::new(wire, faults.clone())))
}

/// What goes in front of a carrier.
#[derive(Clone, Copy)]
pub(crate) struct Decoration<'a> {
    pub(crate) faults: &'a Faults,
    pub(crate) pcap: Option<&'a Path>,
    /// There is no clock.
    pub(crate) stepped: bool,
}
