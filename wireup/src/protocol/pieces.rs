//! Bodies that are longer than one control message: split at the sender, put together at the
//! receiver.

use super::message::{HEADER, MAX_BODY, Message, PIECE};

/// The least size of a control message.
pub const MIN_SEGMENT: usize = HEADER + 2 * PIECE;

/// Returns `whole` as messages of at most `segment` bytes each.
///
/// `segment` is at least [`MIN_SEGMENT`], and the body at most [`MAX_BODY`] bytes long.
pub(super) fn split(whole: Message<'_>, segment: usize) -> impl Iterator<Item = Message<'_>> {
    let most = (segment - HEADER) / PIECE * PIECE;
    let total = whole.bytes.len() as u16;
    whole.bytes.chunks(most).enumerate().map(move |(index, bytes)| Message {
        offset: (index * most) as u16,
        total,
        bytes,
        ..whole
    })
}

/// A body of which parts have arrived.
#[derive(Debug)]
pub(super) struct Assembly {
    /// The sender's link, and the number of the offer, that the body belongs to.
    pub(super) from: u64,
    pub(super) order: u32,
    pub(super) attempt: u8,
    bytes: Box<[u8]>,
    /// One bit for each [`PIECE`] bytes that have not arrived.
    missing: u128,
}

const _: () = assert!(MAX_BODY / PIECE == 128);

impl Assembly {
    pub(super) fn new(message: &Message<'_>) -> Self {
        let total = usize::from(message.total);
        let missing = u128::MAX >> (128 - total.div_ceil(PIECE));
        let bytes = vec![0; total].into_boxed_slice();
        let Message { from, order, attempt, .. } = *message;
        Self { from, order, attempt, bytes, missing }
    }

    /// Whether `message` is a part of this body.
    pub(super) fn suits(&self, message: &Message<'_>) -> bool {
        let total = usize::from(message.total);
        (self.from, self.attempt, self.bytes.len()) == (message.from, message.attempt, total)
    }

    /// Stores a part that suits. Returns whether the body is complete.
    pub(super) fn add(&mut self, message: &Message<'_>) -> bool {
        let offset = usize::from(message.offset);
        let Some(place) = self.bytes.get_mut(offset..offset + message.bytes.len()) else {
            return false;
        };
        place.copy_from_slice(message.bytes);
        let pieces = u128::MAX >> (128 - message.bytes.len().div_ceil(PIECE));
        self.missing &= !(pieces << (offset / PIECE));
        self.missing == 0
    }

    pub(super) fn into_body(self) -> Box<[u8]> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;
    use super::super::reason::Reason;
    use super::*;

    fn offer(bytes: &[u8]) -> Message<'_> {
        Message {
            kind: Kind::Offer,
            sn: 0,
            from: 1,
            to: 0,
            uuid: [0; 16],
            receiver: [1; 16],
            attempt: 1,
            reason: Reason::None,
            offset: 0,
            total: bytes.len() as u16,
            order: 1,
            pass: 0,
            bytes,
        }
    }

    #[test]
    fn parts_in_any_order_and_twice_give_the_body() {
        let body: Vec<u8> = (0..MAX_BODY).map(|at| (at * 7 % 251) as u8).collect();
        for length in [1, 63, 64, 65, 127, 128, 129, 1000, MAX_BODY] {
            for segment in [MIN_SEGMENT, 300, 4096, 1 << 16] {
                let body = &body[..length];
                let mut parts: Vec<_> = split(offer(body), segment).collect();
                assert!(parts.iter().all(|part| part.to_bytes().len() <= segment));
                assert!(
                    parts.iter().all(|part| Message::from_bytes(&part.to_bytes()) == Ok(*part))
                );
                parts.reverse();
                let mut assembly = Assembly::new(&parts[0]);
                for part in &parts[..parts.len() - 1] {
                    assert!(assembly.suits(part) && !assembly.add(part) && !assembly.add(part));
                }
                assert!(assembly.add(&parts[parts.len() - 1]));
                assert_eq!(*assembly.into_body(), *body);
            }
        }
    }

    #[test]
    fn parts_of_another_offer_do_not_suit() {
        let assembly = Assembly::new(&offer(&[0; 100]));
        assert!(!assembly.suits(&Message { attempt: 2, ..offer(&[0; 100]) }));
        assert!(!assembly.suits(&Message { from: 2, ..offer(&[0; 100]) }));
        assert!(!assembly.suits(&offer(&[0; 99])));
    }
}
