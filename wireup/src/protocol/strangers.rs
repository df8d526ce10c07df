//! What nodes send that have not shown yet that they are at the address which they name.
//!
//! Nothing of it has an effect on a link. Little of it is kept: replies that are due, and parts of
//! offers until the address in them is complete.

use std::collections::VecDeque;

use super::action::Action;
use super::id::Uuid;
use super::message::Message;
use super::pieces::Assembly;

/// Replies that wait; a peer repeats its message if it gets none.
const REPLIES: usize = 64;
/// Offers whose address has arrived in part. A further one takes the place of the oldest.
const PARTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Strangers {
    replies: VecDeque<Action>,
    parts: VecDeque<(Uuid, Assembly)>,
}

impl Strangers {
    /// Adds a reply, or drops it if too many wait.
    pub(super) fn reply(&mut self, action: Action) {
        if self.replies.len() < REPLIES {
            self.replies.push_back(action);
        }
    }

    pub(super) fn next(&mut self) -> Option<Action> {
        let reply = self.replies.pop_front();
        if self.replies.is_empty() {
            self.replies = VecDeque::new();
        }
        reply
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Takes a part of an OFFER. Returns the address in it once that has arrived.
    pub(super) fn address(&mut self, offer: &Message<'_>) -> Option<Vec<u8>> {
        if offer.offset == 0
            && let Some(address) = address_in(offer.bytes)
        {
            return Some(address.to_vec());
        }
        let mine = |(uuid, parts): &(Uuid, Assembly)| *uuid == offer.uuid && parts.suits(offer);
        let at = match self.parts.iter().position(mine) {
            Some(at) => at,
            None if offer.offset == 0 => {
                if self.parts.len() >= PARTS {
                    self.parts.pop_front();
                }
                self.parts.push_back((offer.uuid, Assembly::new(offer)));
                self.parts.len() - 1
            }
            None => return None,
        };
        if !self.parts[at].1.add(offer) {
            return None;
        }
        let (_, whole) = self.parts.remove(at)?;
        if self.parts.is_empty() {
            self.parts = VecDeque::new();
        }
        address_in(&whole.into_body()).map(<[u8]>::to_vec)
    }
}

/// Returns the address at the front of the body of an OFFER, if all of it is there.
pub(super) fn address_in(body: &[u8]) -> Option<&[u8]> {
    let (length, rest) = body.get(4..)?.split_first_chunk()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Kind, Reason};

    fn offer(uuid: u8, body: &[u8], offset: usize, length: usize) -> Message<'_> {
        Message {
            kind: Kind::Offer,
            sn: 0,
            from: 1,
            to: 0,
            uuid: [uuid; 16],
            receiver: [1; 16],
            attempt: 1,
            reason: Reason::None,
            offset: offset as u16,
            total: body.len() as u16,
            order: 1,
            pass: 0,
            bytes: &body[offset..offset + length],
        }
    }

    #[test]
    fn an_address_is_found_in_one_part_and_in_several() {
        let mut body = vec![0, 0, 0, 0, 0, 100];
        body.extend((0..100).chain(0..100));
        let address: Vec<u8> = (0..100).collect();
        let mut strangers = Strangers::default();
        assert_eq!(strangers.address(&offer(1, &body, 0, 128)), Some(address.clone()));
        assert_eq!(strangers.address(&offer(1, &body, 64, 64)), None, "its first part is not here");
        assert_eq!(strangers.address(&offer(1, &body, 0, 64)), None);
        assert_eq!(strangers.address(&offer(1, &body, 128, 78)), None);
        assert_eq!(strangers.address(&offer(1, &body, 64, 64)), Some(address));
        assert!(strangers.parts.is_empty());
    }

    #[test]
    fn parts_of_many_offers_take_bounded_memory() {
        let body = vec![255; 8192];
        let mut strangers = Strangers::default();
        for uuid in 0..100 {
            assert_eq!(strangers.address(&offer(uuid, &body, 0, 64)), None);
            assert!(strangers.parts.len() <= PARTS);
        }
    }
}
