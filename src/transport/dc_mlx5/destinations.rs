//! The address vectors of peers that asked for grants.
//!
//! What names a peer is the peer's word. On Ethernet, the kernel searches for a host that does not
//! respond for up to a second, in the thread of progress. So a host that was not found is not
//! searched for again for a while, whichever MAC and LID are given with its GID, and after a search
//! that failed or was slow, no host is searched for during a pause that is several times as long:
//! however many hosts peers name, nine tenths of the time remain for everything else.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use barewire_mlx5::PortAddress;
use barewire_mlx5::layouts::wqe::AddressVector;

use super::address::TargetAddress;
use crate::base::event::after;

/// How long a host to which the kernel found no way is not searched for again.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// How many times as long as a search the pause after it is.
const PAUSE: u32 = 9;
/// The time of a search that found its host from which on a pause follows: the kernel knows the
/// host, or its network responds, in less.
const SLOW: Duration = Duration::from_millis(100);
/// Most peers, and most unreachable hosts, that are kept.
const MOST: usize = 4096;

/// Port, number and key of a target.
type Name = (PortAddress, u32, u64);

#[derive(Default)]
pub(super) struct Destinations {
    known: RefCell<HashMap<Name, AddressVector>>,
    /// The GIDs of hosts that were not found, and until when they are not searched for.
    unreachable: RefCell<HashMap<[u8; 16], Instant>>,
    /// When the pause after the last search ends.
    resumes: Cell<Option<Instant>>,
}

impl Destinations {
    /// Returns what is known of a peer, or what `search` finds. `None` if the search fails, or if
    /// none is allowed at this time.
    pub(super) fn find(
        &self,
        port: PortAddress,
        target: &TargetAddress,
        now: impl Fn() -> Instant,
        search: impl FnOnce() -> Option<AddressVector>,
    ) -> Option<AddressVector> {
        let name = (port, target.target, target.key);
        if let Some(address) = self.known.borrow().get(&name) {
            return Some(*address);
        }
        let start = now();
        let waits = |until: &Instant| start < *until;
        let mut unreachable = self.unreachable.borrow_mut();
        if self.resumes.get().as_ref().is_some_and(waits)
            || unreachable.get(&port.gid).is_some_and(waits)
        {
            return None;
        }
        let found = search();
        let end = now();
        let took = end - start;
        if found.is_none() || took >= SLOW {
            self.resumes.set(Some(after(end, took.saturating_mul(PAUSE))));
        }
        match found {
            Some(address) => insert(&mut self.known.borrow_mut(), name, address),
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

fn insert<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= MOST {
        map.clear();
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

        /// Returns whether the host `host` is found, and how often it was searched for.
        fn find(&self, host: u16, mac: u16, target: u32) -> (bool, u32) {
            let mut port = PortAddress { gid: [0; 16], mac: [0; 6], lid: mac };
            port.gid[14..].copy_from_slice(&host.to_be_bytes());
            port.mac[4..].copy_from_slice(&mac.to_be_bytes());
            let (mtu, key, flush_address, flush_key) = (5, 0, 0, 0);
            let target = TargetAddress { target, mtu, key, flush_address, flush_key };
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

    #[test]
    fn hosts_that_respond_are_found_without_a_pause() {
        let network = Network::new(SLOW / 2, Some(AddressVector::default()));
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
}
