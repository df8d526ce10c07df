//! A switch within the process: devices on the same [`Fabric`] communicate without sockets, in a
//! fixed order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ROCE_PORT, Wire};
use crate::counters::Counters;
use crate::wake::Wake;

/// Maximum number of frames queued for a port; further ones are lost.
const DEPTH: usize = 4096;

/// First and last address assigned to ports that request none.
const FIRST: u32 = u32::from_be_bytes([10, 0, 0, 1]);
const LAST: u32 = u32::from_be_bytes([10, 255, 255, 254]);

/// A switch within this process. Clones are the same switch. Frames are delivered in the order of
/// sending, so two stepped devices behave the same in every run.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    switch: Arc<Mutex<Switch>>,
}

#[derive(Debug, Default)]
struct Switch {
    ports: BTreeMap<IpAddr, Slot>,
    /// Ports created so far.
    attached: u64,
    spare: Vec<Vec<u8>>,
}

/// A frame on its way.
#[derive(Debug)]
struct Frame {
    from: IpAddr,
    /// The multicast group that it was sent to.
    group: Option<IpAddr>,
    class: u8,
    bytes: Vec<u8>,
}

/// The queue of a port.
#[derive(Debug, Default)]
struct Slot {
    frames: VecDeque<Frame>,
    /// The multicast groups whose frames it receives.
    groups: BTreeSet<IpAddr>,
    /// Wakes the port's device.
    wake: Option<Arc<Wake>>,
    /// Whether it was signalled since the port was last found empty.
    rung: bool,
}

impl Slot {
    /// Adds a frame, and wakes the port's device. Returns false if there is no room.
    fn push(&mut self, frame: Frame) -> bool {
        if self.frames.len() == DEPTH {
            return false;
        }
        self.frames.push_back(frame);
        if let Some(wake) = self.wake.as_deref().filter(|_| !self.rung) {
            wake.ring();
            self.rung = true;
        }
        true
    }
}

impl Fabric {
    /// Creates a switch without ports.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Switch> {
        // A panic leaves the queues consistent.
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port with `address`, or with the lowest free one from 10.0.0.1 on; `None` if the
    /// address is taken.
    pub(crate) fn attach(&self, address: Option<IpAddr>) -> Option<FabricPort> {
        let mut switch = self.lock();
        let address = match address {
            Some(address) if switch.ports.contains_key(&address) => return None,
            Some(address) => address,
            None => (FIRST..=LAST)
                .map(|bits| IpAddr::V4(Ipv4Addr::from(bits)))
                .find(|address| !switch.ports.contains_key(address))?,
        };
        switch.ports.insert(address, Slot::default());
        switch.attached += 1;
        let number = switch.attached;
        drop(switch);
        Some(FabricPort {
            fabric: self.clone(),
            address,
            number,
            wake: None,
            failures: 0,
            sends: 0,
            received: (0, None),
        })
    }
}

/// A device's port. Dropping it releases its address.
#[derive(Debug)]
pub(crate) struct FabricPort {
    fabric: Fabric,
    address: IpAddr,
    number: u64,
    wake: Option<Arc<Wake>>,
    failures: u64,
    /// The traffic class of frames to be sent.
    sends: u8,
    /// The traffic class and the group of the frame that was received last.
    received: (u8, Option<IpAddr>),
}

impl FabricPort {
    /// Makes arriving frames wake the device's thread.
    pub(crate) fn with_wake(mut self, wake: Wake) -> Self {
        let wake = Arc::new(wake);
        if let Some(slot) = self.fabric.lock().ports.get_mut(&self.address) {
            slot.wake = Some(Arc::clone(&wake));
        }
        self.wake = Some(wake);
        self
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of this port, which is higher than that of an earlier port with the
    /// address.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        self.fabric.lock().ports.remove(&self.address);
    }
}

impl Wire for FabricPort {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        let Switch { ports, spare, .. } = &mut *self.fabric.lock();
        let group = to.is_multicast().then_some(to);
        let mut copy = || {
            let mut bytes = spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            Frame { from: self.address, group, class: self.sends, bytes }
        };
        // As on a network, the sender does not learn that the host does not exist.
        if group.is_some() {
            for slot in ports.values_mut().filter(|slot| slot.groups.contains(&to)) {
                self.failures += u64::from(!slot.push(copy()));
            }
        } else if let Some(slot) = ports.get_mut(&to) {
            self.failures += u64::from(!slot.push(copy()));
        }
    }

    fn set_class(&mut self, class: u8) {
        self.sends = class;
    }

    fn class(&self) -> u8 {
        self.received.0
    }

    fn group(&self) -> Option<IpAddr> {
        self.received.1
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if let Some(slot) = self.fabric.lock().ports.get_mut(&self.address) {
            slot.groups.insert(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(slot) = self.fabric.lock().ports.get_mut(&self.address) {
            slot.groups.remove(&group);
        }
    }

    /// Nothing outside of the process reaches it.
    fn take_link_command(&mut self) -> Option<bool> {
        None
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let switch = &mut *self.fabric.lock();
        let slot = switch.ports.get_mut(&self.address)?;
        let Some(Frame { from, group, class, bytes }) = slot.frames.pop_front() else {
            if let Some(wake) = slot.wake.as_deref().filter(|_| slot.rung) {
                wake.drain();
                slot.rung = false;
            }
            return None;
        };
        switch.spare.push(std::mem::replace(frame, bytes));
        self.received = (class, group);
        Some(SocketAddr::new(from, ROCE_PORT))
    }

    fn tick(&mut self, _now: u64) {}

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn rest(&mut self) -> bool {
        // A frame that arrives signals `wake`, until the port was found empty.
        true
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.wake.as_deref().map(Wake::descriptor)
    }

    fn count(&self, counters: &mut Counters) {
        counters.send_failures += self.failures;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_addresses_of_their_own() {
        let fabric = Fabric::new();
        let mut a = fabric.attach(None).unwrap();
        let mut b = fabric.attach(None).unwrap();
        assert_eq!(
            (a.address(), b.address()),
            (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]))
        );
        assert!(fabric.attach(Some(a.address())).is_none());

        let mut frame = Vec::new();
        a.send(b.address(), b"one");
        a.send(b.address(), b"two");
        a.send(IpAddr::from([10, 9, 9, 9]), b"nobody");
        assert_eq!(b.receive(&mut frame), Some(SocketAddr::new(a.address(), ROCE_PORT)));
        assert_eq!(frame, b"one");
        assert!(b.receive(&mut frame).is_some());
        assert_eq!(frame, b"two");
        assert!(b.receive(&mut frame).is_none() && a.receive(&mut frame).is_none());

        drop(a);
        assert_eq!(fabric.attach(None).unwrap().address(), IpAddr::from([10, 0, 0, 1]));
    }
}
