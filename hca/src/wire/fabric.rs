//! An in-process switch: devices that hang on the same [`Fabric`] reach each other without a socket, in a fixed order.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ROCE_PORT, Wire};
use crate::engine::Counters;

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
    ports: BTreeMap<Ipv4Addr, VecDeque<(Ipv4Addr, Vec<u8>)>>,
    spare: Vec<Vec<u8>>,
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
    pub(crate) fn attach(&self, address: Option<Ipv4Addr>) -> Option<FabricPort> {
        let mut switch = self.lock();
        let address = match address {
            Some(address) if switch.ports.contains_key(&address) => return None,
            Some(address) => address,
            None => (FIRST..=LAST).map(Ipv4Addr::from).find(|address| !switch.ports.contains_key(address))?,
        };
        switch.ports.insert(address, VecDeque::new());
        drop(switch);
        Some(FabricPort { fabric: self.clone(), address, failures: 0 })
    }
}

/// One device's port. Dropping it takes its address off the switch.
#[derive(Debug)]
pub(crate) struct FabricPort {
    fabric: Fabric,
    address: Ipv4Addr,
    failures: u64,
}

impl FabricPort {
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        self.fabric.lock().ports.remove(&self.address);
    }
}

impl Wire for FabricPort {
    fn send(&mut self, to: Ipv4Addr, frame: &[u8]) {
        let switch = &mut *self.fabric.lock();
        // As on a real network, nobody tells the sender that there is no such host.
        let Some(queue) = switch.ports.get_mut(&to) else { return };
        if queue.len() == DEPTH {
            self.failures += 1;
            return;
        }
        let mut buffer = switch.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        queue.push_back((self.address, buffer));
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddrV4> {
        let switch = &mut *self.fabric.lock();
        let (from, delivered) = switch.ports.get_mut(&self.address)?.pop_front()?;
        switch.spare.push(std::mem::replace(frame, delivered));
        Some(SocketAddrV4::new(from, ROCE_PORT))
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
        assert_eq!((a.address(), b.address()), (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)));
        assert!(fabric.attach(Some(a.address())).is_none());

        let mut frame = Vec::new();
        a.send(b.address(), b"one");
        a.send(b.address(), b"two");
        a.send(Ipv4Addr::new(10, 9, 9, 9), b"nobody");
        assert_eq!(b.receive(&mut frame), Some(SocketAddrV4::new(a.address(), ROCE_PORT)));
        assert_eq!(frame, b"one");
        assert!(b.receive(&mut frame).is_some());
        assert_eq!(frame, b"two");
        assert!(b.receive(&mut frame).is_none() && a.receive(&mut frame).is_none());

        drop(a);
        assert_eq!(fabric.attach(None).unwrap().address(), Ipv4Addr::new(10, 0, 0, 1));
    }
}
