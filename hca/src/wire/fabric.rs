//! An in-process switch: devices that hang on the same [`Fabric`] reach each other without a socket, in a fixed order.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ROCE_PORT, Wire};
use crate::counters::Counters;
use crate::wake::Wake;

/// Most frames that wait for one port; further ones are lost.
const DEPTH: usize = 4096;

/// First and last address that a port gets which asks for none.
const FIRST: u32 = u32::from_be_bytes([10, 0, 0, 1]);
const LAST: u32 = u32::from_be_bytes([10, 255, 255, 254]);

/// A switch inside this process. Clones are the same switch. Delivery is in order of sending, so two stepped devices on it behave
/// the same in every run.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    switch: Arc<Mutex<Switch>>,
}

#[derive(Debug, Default)]
struct Switch {
    ports: BTreeMap<IpAddr, Slot>,
    /// Ports that ever were.
    attached: u64,
    spare: Vec<Vec<u8>>,
}

/// What waits for one port.
#[derive(Debug, Default)]
struct Slot {
    frames: VecDeque<(IpAddr, Vec<u8>)>,
    /// Ends the sleep of the port's device.
    wake: Option<Arc<Wake>>,
    /// It was rung since the port was last found empty.
    rung: bool,
}

impl Fabric {
    /// A switch with no ports.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Switch> {
        // Every change is complete before a panic could strike: queues only.
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port with `address`, or with the lowest free one from 10.0.0.1 on; `None` if the address is taken.
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
        Some(FabricPort { fabric: self.clone(), address, number, wake: None, failures: 0 })
    }
}

/// One device's port. Dropping it takes its address off the switch.
#[derive(Debug)]
pub(crate) struct FabricPort {
    fabric: Fabric,
    address: IpAddr,
    number: u64,
    wake: Option<Arc<Wake>>,
    failures: u64,
}

impl FabricPort {
    /// Lets arriving frames end the sleep of the device's thread.
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

    /// How many ports there were with it: higher than that of whoever had the address before.
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
        let switch = &mut *self.fabric.lock();
        // As on a real network, nobody tells the sender that there is no such host.
        let Some(slot) = switch.ports.get_mut(&to) else { return };
        if slot.frames.len() == DEPTH {
            self.failures += 1;
            return;
        }
        let mut buffer = switch.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        slot.frames.push_back((self.address, buffer));
        if let Some(wake) = slot.wake.as_deref().filter(|_| !slot.rung) {
            wake.ring();
            slot.rung = true;
        }
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let switch = &mut *self.fabric.lock();
        let slot = switch.ports.get_mut(&self.address)?;
        let Some((from, delivered)) = slot.frames.pop_front() else {
            if let Some(wake) = slot.wake.as_deref().filter(|_| slot.rung) {
                wake.drain();
                slot.rung = false;
            }
            return None;
        };
        switch.spare.push(std::mem::replace(frame, delivered));
        Some(SocketAddr::new(from, ROCE_PORT))
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
        assert_eq!((a.address(), b.address()), (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])));
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
