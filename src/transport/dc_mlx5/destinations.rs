//! The address vectors of peers that asked for grants.
//!
//! What names a peer is the peer's word. On Ethernet, the kernel searches for a host that does not
//! respond for up to a second, in the thread of progress. So a host that was not found is not
//! searched for again for a while, whichever MAC and LID are given with its GID. Apart from a
//! burst, searches take at most a tenth of the time, however many hosts peers name. Hosts to which
//! endpoints are connected need no search. Other hosts may not be searched for while a peer keeps
//! naming new ones.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use barewire_mlx5::PortAddress;
use barewire_mlx5::layouts::wqe::AddressVector;

use super::address::TargetAddress;
use crate::base::event::after;

/// How long a host to which the kernel found no way is not searched for again.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// How many times as long as the searches the time without them is.
const PAUSE: u32 = 9;
/// The time of searches without a pause between them: many, where the kernel knows the hosts.
const BURST: Duration = Duration::from_millis(100);
/// Most ports, and most unreachable hosts, that are kept.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct Destinations {
    /// The ports of connected endpoints, which only this process names.
    connected: RefCell<HashMap<PortAddress, AddressVector>>,
    found: RefCell<HashMap<PortAddress, AddressVector>>,
    /// The GIDs of hosts that were not found, and until when they are not searched for.
    unreachable: RefCell<HashMap<[u8; 16], Instant>>,
    /// When the searches so far have taken no more than their part of the time.
    even: Cell<Option<Instant>>,
}

impl Destinations {
    /// Notes the address of a port to which an endpoint is connected.
    pub(super) fn connected(&self, port: PortAddress, address: AddressVector) {
        insert(&mut self.connected.borrow_mut(), port, address);
    }

    /// Returns what is known of a peer, or what `search` finds. `None` if the search fails, or if
    /// none is allowed at this time.
    pub(super) fn find(
        &self,
        port: PortAddress,
        target: &TargetAddress,
        now: impl Fn() -> Instant,
        search: impl FnOnce() -> Option<AddressVector>,
    ) -> Option<AddressVector> {
        for ports in [&self.connected, &self.found] {
            if let Some(address) = ports.borrow().get(&port) {
                let base = address.base.to_target(target.target, target.key);
                return Some(AddressVector { base, ..*address });
            }
        }
        let start = now();
        let mut unreachable = self.unreachable.borrow_mut();
        let even = self.even.get().unwrap_or(start).max(start);
        if even > after(start, BURST * PAUSE)
            || unreachable.get(&port.gid).is_some_and(|until| start < *until)
        {
            return None;
        }
        let found = search();
        let end = now();
        let took = end - start;
        self.even.set(Some(after(even, took.saturating_mul(PAUSE + 1))));
        match found {
            Some(address) => insert(&mut self.found.borrow_mut(), port, address),
            None => insert(&mut unreachable, port.gid, after(end, UNREACHABLE_FOR)),
        }
        found
    }

    /// Returns how many hosts were not found.
    #[cfg(all(test, feature = "soft"))]
    pub(super) fn unreachable(&self) -> usize {
        self.unreachable.borrow().len()
    }
}

fn insert<K: Copy + Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= MOST
        && let Some(any) = map.keys().next().copied()
    {
        map.remove(&any);
    }
    map.insert(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches of one duration, in a time that passes only in them.
    struct Network {
        destinations: Destinations,
        now: Cell<Instant>,
        takes: Duration,
        finds: Option<AddressVector>,
        searches: Cell<u32>,
    }

    impl Network {
        fn new(takes: Duration, finds: Option<AddressVector>) -> Self {
            let (destinations, searches) = (Destinations::default(), Cell::new(0));
            Self { destinations, now: Cell::new(Instant::now()), takes, finds, searches }
        }

        fn peer(host: u16, mac: u16, target: u32) -> (PortAddress, TargetAddress) {
            let mut port = PortAddress { gid: [0; 16], mac: [0; 6], lid: mac };
            port.gid[14..].copy_from_slice(&host.to_be_bytes());
            port.mac[4..].copy_from_slice(&mac.to_be_bytes());
            let (mtu, key, flush_address, flush_key) = (5, 0, 0, 0);
            (port, TargetAddress { target, mtu, key, flush_address, flush_key })
        }

        /// Returns whether the host `host` is found, and how often it was searched for.
        fn find(&self, host: u16, mac: u16, target: u32) -> (bool, u32) {
            let (port, target) = Self::peer(host, mac, target);
            let before = self.searches.get();
            let found = self.destinations.find(
                port,
                &target,
                || self.now.get(),
                || {
                    self.searches.set(before + 1);
                    self.pass(self.takes);
                    self.finds
                },
            );
            (found.is_some(), self.searches.get() - before)
        }

        fn pass(&self, time: Duration) {
            self.now.set(after(self.now.get(), time));
        }
    }

    #[test]
    fn a_host_that_does_not_respond_is_searched_for_once_whichever_mac_is_named() {
        let network = Network::new(Duration::from_millis(300), None);
        assert_eq!(network.find(1, 0, 0), (false, 1));
        // Longer than the pause.
        network.pass(Duration::from_secs(5));
        for mac in 0..200 {
            assert_eq!(network.find(1, mac, mac.into()), (false, 0));
        }
        assert_eq!(network.find(2, 0, 0), (false, 1));
        network.pass(UNREACHABLE_FOR);
        assert_eq!(network.find(1, 1, 1), (false, 1));
    }

    #[test]
    fn searches_for_many_hosts_take_a_tenth_of_the_time() {
        let takes = Duration::from_millis(300);
        for finds in [None, Some(AddressVector::default())] {
            let network = Network::new(takes, finds);
            for host in 0..2000 {
                network.find(host, 0, 0);
                network.pass(Duration::from_millis(15));
            }
            // 30 s besides the searches.
            let searches = network.searches.get();
            assert!((8..=12).contains(&searches), "{searches} searches");
        }
    }

    /// A host of the network responds for many addresses, each after 90 ms.
    #[test]
    fn searches_that_succeed_take_a_tenth_of_the_time_too() {
        let network = Network::new(Duration::from_millis(90), Some(AddressVector::default()));
        for host in 0..2000 {
            network.find(host, 0, 0);
            network.pass(Duration::from_millis(15));
        }
        let searches = network.searches.get();
        assert!((30..=40).contains(&searches), "{searches} searches");
    }

    #[test]
    fn hosts_that_respond_are_found_without_a_pause() {
        let takes = Duration::from_micros(500);
        let network = Network::new(takes, Some(AddressVector::default()));
        for host in 0..100 {
            assert_eq!(network.find(host, 0, 0), (true, 1));
            assert_eq!(network.find(host, 0, 0), (true, 0));
        }
    }

    #[test]
    fn known_peers_are_found_in_a_pause() {
        let network = Network::new(Duration::from_millis(300), None);
        let found = Network { finds: Some(AddressVector::default()), ..network };
        assert_eq!(found.find(1, 0, 0), (true, 1));
        let network = Network { finds: None, ..found };
        network.pass(Duration::from_secs(3));
        assert_eq!(network.find(2, 0, 0), (false, 1));
        assert_eq!(network.find(3, 0, 0), (false, 0));
        assert_eq!(network.find(1, 0, 0), (true, 0));
    }

    #[test]
    fn peers_of_endpoints_are_found_however_many_others_are_named() {
        let network = Network::new(Duration::from_micros(1), Some(AddressVector::default()));
        let (port, _) = Network::peer(7, 0, 0);
        let address = AddressVector { hop_limit: 64, ..AddressVector::default() };
        network.destinations.connected(port, address);
        for host in 0..2 * MOST as u16 {
            network.find(1000 + host, 0, 0);
        }
        let (port, target) = Network::peer(7, 0, 42);
        let never = || panic!("it is known");
        let found = network.destinations.find(port, &target, || network.now.get(), never).unwrap();
        assert_eq!((found.hop_limit, found.base.qpn.get() & 0xff_ffff), (64, 42));
        // Another MAC is another port.
        assert_eq!(network.find(7, 1, 0), (true, 1));
        assert!(network.destinations.found.borrow().len() <= MOST);
    }
}
