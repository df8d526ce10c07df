//! The wire: RoCEv2 packets between devices.
//!
//! A *frame* is the payload of UDP: base transport header to invariant CRC. Decorators add fault
//! injection, capture and loopback to a carrier: `Faulty<Capture<Loopback<Udp>>>`. With a key, the
//! carrier appends a tag to each frame, which the decorators do not see: see `tag`.

mod batch;
pub(crate) mod capture;
mod control;
mod epoll;
pub(crate) mod fabric;
pub(crate) mod fault;
mod fault_text;
mod groups;
pub(crate) mod headers;
pub(crate) mod interface;
pub(crate) mod loopback;
mod near;
mod option;
pub(crate) mod packet;
mod tag;
pub(crate) mod udp;

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;

pub use control::{LinkError, set_link};
pub use fabric::Fabric;
pub use fault::Faults;
pub use fault_text::FaultsError;

use crate::counters::Counters;

/// Environment variable with what carries devices' packets, for [`crate::Config::from_env`].
pub const WIRE_VARIABLE: &str = "BAREWIRE_HCA_WIRE";

/// The UDP port of RoCEv2 (IBTA annex A17).
pub(crate) const ROCE_PORT: u16 = 4791;

/// Largest frame: a packet of 4096 bytes with all extended headers.
pub(crate) const MAX_FRAME: usize = 4096 + 256;

/// Carries frames between IP addresses. Frames may be lost, duplicated and reordered; no method
/// blocks.
pub(crate) trait Wire: Send + Debug {
    /// Sends one frame.
    fn send(&mut self, to: IpAddr, frame: &[u8]);

    /// Sets the traffic class of the frames that are sent from here on; 0 at first.
    fn set_class(&mut self, class: u8);

    /// Receives the next frame into `frame` and returns its source.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr>;

    /// Returns the traffic class of the frame that was received last.
    fn class(&self) -> u8;

    /// Returns the multicast group that the frame that was received last was sent to, if it was
    /// sent to one.
    fn group(&self) -> Option<IpAddr>;

    /// Receives the frames of a multicast group from now on, those of this device included. The
    /// group has the family of the device's address.
    ///
    /// # Errors
    /// The kernel's error.
    fn join(&mut self, group: IpAddr) -> io::Result<()>;

    /// Ends [`Self::join`].
    fn leave(&mut self, group: IpAddr);

    /// Starts a pass of the engine at time `now`, in nanoseconds on the device's clock.
    fn tick(&mut self, now: u64);

    /// Returns when the wire has work without an event.
    fn deadline(&self) -> Option<u64>;

    /// Returns whether frames are held back for later passes.
    fn is_holding(&self) -> bool {
        false
    }

    /// Returns whether frames should not be sent before some are received.
    fn is_full(&self) -> bool {
        false
    }

    /// Takes the link down or up.
    fn set_link(&mut self, _up: bool) {}

    /// Returns whether the link is up.
    fn is_link_up(&self) -> bool {
        true
    }

    /// Takes the last command that came from outside about the link, and confirms it to its sender.
    /// Returns whether the link is to be up.
    fn take_link_command(&mut self) -> Option<bool>;

    /// Ends a pass of the engine: sends frames that were held back for batching.
    fn flush(&mut self) {}

    /// Returns the descriptor that is readable when frames arrive, after [`Self::rest`]. It may
    /// change when a group is joined or left.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Prepares for a sleep that the descriptor ends. Returns false if frames have arrived.
    fn rest(&mut self) -> bool;

    /// Adds the wire's own counts.
    fn count(&self, counters: &mut Counters);
}

/// A port of a device.
#[derive(Debug)]
pub(crate) struct PhysicalPort {
    pub(crate) address: IpAddr,
    pub(crate) wire: Box<dyn Wire>,
}

impl Wire for Box<dyn Wire> {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        (**self).send(to, frame);
    }

    fn set_class(&mut self, class: u8) {
        (**self).set_class(class);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        (**self).receive(frame)
    }

    fn class(&self) -> u8 {
        (**self).class()
    }

    fn group(&self) -> Option<IpAddr> {
        (**self).group()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
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

    fn is_full(&self) -> bool {
        (**self).is_full()
    }

    fn set_link(&mut self, up: bool) {
        (**self).set_link(up);
    }

    fn is_link_up(&self) -> bool {
        (**self).is_link_up()
    }

    fn take_link_command(&mut self) -> Option<bool> {
        (**self).take_link_command()
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn descriptor(&self) -> Option<RawFd> {
        (**self).descriptor()
    }

    fn rest(&mut self) -> bool {
        (**self).rest()
    }

    fn count(&self, counters: &mut Counters) {
        (**self).count(counters);
    }
}

/// Adds loopback to `address` and, if configured, capture and faults to `carrier`.
///
/// # Errors
/// The capture file cannot be created.
pub(crate) fn assemble<W: Wire + 'static>(
    carrier: W,
    address: IpAddr,
    Decoration { faults, pcap, stepped }: Decoration<'_>,
) -> io::Result<Box<dyn Wire>> {
    let mut wire: Box<dyn Wire> = Box::new(loopback::Loopback::new(carrier, address));
    if let Some(pcap) = pcap {
        wire = Box::new(capture::Capture::create(wire, address, pcap, stepped)?);
    }
    // Always added: a link can be taken down without faults.
    Ok(Box::new(fault::Faulty::new(wire, faults.clone())))
}

/// The decorators of a carrier.
#[derive(Clone, Copy)]
pub(crate) struct Decoration<'a> {
    pub(crate) faults: &'a Faults,
    pub(crate) pcap: Option<&'a Path>,
    /// Whether the device is stepped and has no clock.
    pub(crate) stepped: bool,
}
