//! Flow control of messages: an endpoint that has used half of its window asks the peer for more,
//! and the peer's interface grants them when it has processed all messages before the request.
//!
//! Requests and grants are messages whose id no handler has. A request carries the address of the
//! interface to which the grant goes. Nothing in them is trusted: a grant that no endpoint waits
//! for is ignored, a request causes at most one short message, and a limited number wait.

use barewire_mlx5::PortAddress;
use barewire_mlx5::request::{Inline, Send};

use super::address::TargetAddress;
use super::initiator::{Holder, NO_OWNER};
use super::interface::Shared;
use super::state::State;
use crate::base::error::PostError;
use crate::transport::handle::InterfaceState as _;
use crate::transport::rc::{AM_ID, Port as _};

/// Ids of messages from this one on are of the transport.
pub(super) const CONTROL: u8 = 0x80;
const REQUEST: u8 = 0xfe;
const GRANT: u8 = 0xff;
/// Milliseconds after which a request is sent again.
const AGAIN: u32 = 1000;
/// Most grants that wait for an initiator. Requests beyond are dropped, and sent again.
const MAX_GRANTS: usize = 1 << 14;
/// Bytes of an address in a request.
const ADDRESS: usize = 24 + 32;

/// A grant that waits for an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    port: PortAddress,
    target: TargetAddress,
    /// Slot and request of the endpoint that asked.
    ticket: [u8; 8],
}

fn ticket(slot: u32, request: u32) -> [u8; 8] {
    (u64::from(slot) << 32 | u64::from(request)).to_be_bytes()
}

impl State {
    /// Returns whether a message would be refused for lack of credit.
    pub(super) fn has_no_credit(&self) -> bool {
        self.credits.get() == 0 && self.reserve.get() == 0
    }

    /// Checks that a message may be sent.
    #[inline(always)]
    pub(super) fn credit(&self) -> Result<(), PostError> {
        if self.credits.get() > 0 { Ok(()) } else { self.ask() }
    }

    /// Asks the peer for more messages: the first time when half of the window is used.
    #[cold]
    #[inline(never)]
    fn ask(&self) -> Result<(), PostError> {
        let reserve = self.reserve.get();
        let now = self.shared.milliseconds();
        let (number, asked) = self.request.get();
        let number = if reserve > 0 {
            number.wrapping_add(1)
        } else if now.wrapping_sub(asked) >= AGAIN {
            // The request or its grant was lost with an initiator that failed.
            number
        } else {
            return Err(self.posting.refuse());
        };
        let mut message = [0; 12 + ADDRESS];
        message[AM_ID] = REQUEST;
        message[4..12].copy_from_slice(&ticket(self.slot, number));
        message[12..].copy_from_slice(&self.shared.own_address());
        let initiator = self.take()?;
        let post = initiator
            .post(&self.address.get(), Send(Inline(&message)))
            .map_err(|_| self.refuse())?;
        initiator.note_owner(post, self.slot);
        self.request.set((number, now));
        if reserve == 0 {
            return Err(self.posting.refuse());
        }
        self.credits.set(reserve);
        self.reserve.set(0);
        Ok(())
    }

    fn granted(&self, request: u32) {
        if self.request.get().0 == request && self.reserve.get() == 0 {
            self.reserve.set((self.shared.config.message_window / 2) as u16);
            if self.credits.get() == 0 {
                self.shared.call_attention();
            }
        }
    }
}

impl Shared {
    /// Milliseconds since the interface was opened; wraps after 49 days.
    fn milliseconds(&self) -> u32 {
        self.started.elapsed().as_millis() as u32
    }

    /// The address of this interface in requests.
    fn own_address(&self) -> [u8; ADDRESS] {
        let mut bytes = [0; ADDRESS];
        bytes[..24].copy_from_slice(&self.domain.port().address.to_bytes());
        bytes[24..].copy_from_slice(&self.own.to_bytes());
        bytes
    }

    /// Handles a message of the transport: its id, and what follows the header.
    #[cold]
    #[inline(never)]
    pub(super) fn take_control(&self, id: u8, message: &[u8]) {
        let Some((ticket, rest)) = message.split_first_chunk::<8>() else { return };
        match (id, <&[u8; ADDRESS]>::try_from(rest)) {
            (GRANT, _) => {
                let ticket = u64::from_be_bytes(*ticket);
                if let Some(state) = self.core.endpoints.get((ticket >> 32) as u32) {
                    state.granted(ticket as u32);
                }
            }
            (REQUEST, Ok(peer)) => {
                let Some(grant) = Grant::of_request(*ticket, peer) else { return };
                let mut grants = self.grants.borrow_mut();
                if grants.len() < MAX_GRANTS {
                    grants.push_back(grant);
                }
                drop(grants);
                self.call_attention();
            }
            _ => {}
        }
    }

    /// Sends grants, as far as there is an initiator.
    pub(super) fn send_grants(&self) {
        if self.grants.borrow().is_empty() {
            return;
        }
        let initiators = &self.initiators;
        let busy = initiators.all().iter().find(|one| one.holder.get() == Holder::Grants);
        let initiator = match (busy, initiators.assigned(0)) {
            (Some(busy), _) => Some(busy),
            (None, Some(assigned)) => Some(assigned),
            (None, None) => initiators.take(Holder::Grants),
        };
        let Some(initiator) = initiator.filter(|initiator| !initiator.failed.get()) else { return };
        while initiator.has_room() {
            let Some(grant) = self.grants.borrow_mut().pop_front() else { break };
            // The time of searches is limited: this loop blocks for a burst of them and one more at
            // most. A peer whose host was not searched for repeats its request.
            let Some(address) = self.known_destination(grant.port, &grant.target) else { continue };
            let mut message = [0; 12];
            message[AM_ID] = GRANT;
            message[4..].copy_from_slice(&grant.ticket);
            let post = initiator.post(&address, Send(Inline(&message)));
            let Ok(index) = post else { break };
            initiator.note_owner(index, NO_OWNER);
        }
        // Every address may have been unusable.
        if initiator.is_idle() {
            self.release(initiator);
        }
    }
}

impl Grant {
    fn of_request(ticket: [u8; 8], peer: &[u8; ADDRESS]) -> Option<Self> {
        let (port, target) = peer.split_first_chunk::<24>()?;
        let target = TargetAddress::from_bytes(target.first_chunk()?).ok()?;
        Some(Self { port: PortAddress::from_bytes(port), target, ticket })
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::net::Ipv4Addr;

    use barewire_mlx5::hca;

    use super::super::{Domain, Interface};
    use super::*;
    use crate::base::config::InterfaceConfig;

    /// Each search of the kernel takes 300 ms.
    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn requests_from_many_hosts_that_do_not_respond_cause_one_search() {
        let slow = "ah-delay=300".parse().unwrap();
        let device = hca::Device::open(hca::Config::default().requirements(slow)).unwrap();
        let domain = Domain::open_soft(device).unwrap();
        let (interface, _progress) = Interface::open(&domain, &InterfaceConfig::default()).unwrap();
        let shared = &interface.0;
        let own = domain.port().address;
        for number in 0..200 {
            let gid = Ipv4Addr::new(10, 1, 2, number).to_ipv6_mapped().octets();
            let port = PortAddress { gid, mac: [2, 0, 0, 0, 0, number], ..own };
            let grant = Grant { port, target: shared.own, ticket: [0; 8] };
            shared.grants.borrow_mut().push_back(grant);
        }
        shared.send_grants();
        assert!(shared.grants.borrow().is_empty());
        // The pause takes 2.7 s; this process may stand still for longer.
        let searches = shared.destinations.unreachable();
        assert!((1..4).contains(&searches), "{searches} searches");
    }
}
