//! The fast path: a message of one word that is sent for the first time, and a message that is next
//! in order and acknowledges nothing new. Their conditions are computed when the state changes, so
//! that a message tests few words; everything else takes the paths of [`State`] that handle any
//! packet.

use super::socket::SendBuffer;
use super::state::{Sent, State};
use super::{Driver, PACKET, WORD_PACKET};
use crate::transport::reliable::{Header, Sequence};

/// The bits of the first word of a message's header that do not depend on its id.
const NOT_ID: u64 = !0xff00;
/// Not the word of a header: the bits of the id are set.
pub(super) const NO_HEADER: u64 = u64::MAX;

impl<D: Driver> State<D> {
    /// Sends the `am_short` of one word. The caller has checked that there is room for a message.
    #[inline(always)]
    pub(super) fn transmit_word(
        &self,
        id: u8,
        [header, word]: [u64; 2],
        mut buffer: SendBuffer<'_, D>,
    ) -> Result<(), ()> {
        let mut sender = self.sender.borrow_mut();
        let peer = self.peer.borrow();
        let Some(peer) = peer.as_ref() else { return Err(()) };
        let (to, sequence) = (peer.endpoint.unwrap_or_default(), sender.next());
        let [first, second] =
            Header::message(id, to, sequence, self.receiver.expected()).to_words();
        let words = [first, second, header, word];
        // For a retransmission.
        if let Some(place) = buffer.bytes()[PACKET..].first_chunk_mut::<WORD_PACKET>() {
            let packet = words.map(u64::to_le_bytes);
            place.copy_from_slice(packet.as_flattened());
        }
        self.shared.socket.send_words(&peer.to, words).map_err(drop)?;
        self.receiver.told();
        let buffer = buffer.into_lease();
        let sent = Sent { buffer, length: WORD_PACKET as u16, last: None, completion: None };
        sender.push(sent, || self.shared.now());
        self.watch_timers();
        Ok(())
    }

    /// Accepts the message with this header, if it is next in order and acknowledges nothing new.
    /// Returns whether the endpoint may have to acknowledge after it.
    #[inline(always)]
    pub(super) fn accept(&self, [low, high]: [u64; 2]) -> Option<bool> {
        let (sequence, expected) = Header::numbers_in(high);
        let accepts = low & NOT_ID == self.accepts.get() && expected == self.acknowledged.get();
        if accepts { self.receiver.accept_next(sequence) } else { None }
    }

    /// Lets every message take the path of any packet until [`Self::open`].
    pub(super) fn shut(&self) {
        self.accepts.set(NO_HEADER);
    }

    /// Computes what is accepted without further checks, after a change of the receiver or the
    /// sender.
    pub(super) fn open(&self) {
        let is_open = self.posting.is_alive() && !self.receiver.holds_any();
        match self.sender.borrow().awaited() {
            Some(acknowledged) if is_open => {
                self.acknowledged.set(acknowledged);
                let header = Header::message(0, self.name, Sequence(0), Sequence(0));
                self.accepts.set(header.to_words()[0]);
            }
            _ => self.shut(),
        }
    }
}
