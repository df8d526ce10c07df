//! What the caller has to do, and the results that it may not report.

use thiserror::Error;

use super::id::{LinkId, Uuid};
use super::lanes::{Answer, Offer};
use super::link::State;
use super::reason::Reason;

/// Identifies a request to the caller, so that a late result is not taken for that of a later
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn(pub(super) u32);

/// Something that the caller does for the machine.
///
/// An action that names a link is about a link that the caller opened, or that was announced by
/// [`Answer`](Action::Answer); [`Ended`](Action::Ended) is its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send one control message. It may be lost: the machine sends again what has to arrive.
    Send {
        /// The receiver.
        to: Uuid,
        /// The link that the message belongs to, or none: the sender of a message had no link here.
        link: Option<LinkId>,
        /// The receiver's address, if the machine received it just now. If it is empty, the caller
        /// has it, or else drops the message.
        address: Vec<u8>,
        /// Of a reply to a message that has no link here: where that message came from, as the
        /// caller of [`receive_via`](super::Links::receive_via) named it; otherwise 0.
        via: u64,
        /// At most [`Config::segment`](super::Config::segment) bytes.
        message: Box<[u8]>,
    },
    /// A node offers a link, and has not shown yet that it is at its address. If the uuid and the
    /// address belong together, send [`Links::pass`](super::Links::pass) to that address, by a way
    /// on which no other process receives it. The message may be lost, or not sent at all: the peer
    /// repeats its offer.
    Vouch {
        /// The node that the offer names.
        peer: Uuid,
        /// Its name of the link.
        name: u64,
        /// Its address.
        address: Vec<u8>,
    },
    /// Choose the lanes, create their endpoints, and call [`offer`](super::Links::offer), or
    /// [`fail`](super::Links::fail) if there is no lane for messages. Endpoints of an earlier turn
    /// are not used any more.
    Prepare {
        /// The link.
        link: LinkId,
        /// For the result.
        turn: Turn,
        /// The peer.
        peer: Uuid,
        /// Lanes of the previous offer that the peer refused: index and reason.
        refused: Vec<(u8, Reason)>,
    },
    /// The peer offers lanes. Create an endpoint for each and connect it, then call
    /// [`answer`](super::Links::answer), or [`refuse`](super::Links::refuse). Endpoints of an
    /// earlier turn are not used any more.
    Answer {
        /// The link, perhaps a new one.
        link: LinkId,
        /// For the result.
        turn: Turn,
        /// The peer.
        peer: Uuid,
        /// The peer's address for control messages.
        address: Vec<u8>,
        /// What it offers.
        offer: Offer,
    },
    /// The peer connected all lanes of the offer. Connect the endpoints to these addresses, then
    /// call [`completed`](super::Links::completed).
    Complete {
        /// The link.
        link: LinkId,
        /// For the result.
        turn: Turn,
        /// The peer's endpoints.
        answer: Answer,
    },
    /// The link waits again. Endpoints of an earlier turn are not used any more.
    Discard {
        /// The link.
        link: LinkId,
    },
    /// Both sides have connected their lanes.
    Connected {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Uuid,
        /// Whether this side opened it, too. Otherwise the user does not know it.
        requested: bool,
    },
    /// The peer closed the link. Call [`drained`](super::Links::drained) once the first `last`
    /// messages of the peer have been received.
    Drain {
        /// The link.
        link: LinkId,
        /// Messages that the peer sent.
        last: u64,
    },
    /// The link does not exist any more.
    Ended {
        /// The link.
        link: LinkId,
        /// [`State::Closed`] or [`State::Failed`].
        state: State,
    },
}

/// Why a call had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The link does not exist any more; [`Action::Ended`] was or will be reported.
    #[error("the link does not exist any more")]
    Ended,
    /// The request was replaced by a later one, for example because the peer's offer stands.
    #[error("the request was replaced by a later one")]
    Superseded,
    /// More lanes, or longer addresses or private data, than a message carries.
    #[error("the offer or answer is too long: at most 16 lanes and 8192 bytes")]
    TooLong,
    /// The answer does not have as many lanes as the offer.
    #[error("the answer has {found} lanes, the offer {expected}")]
    Lanes {
        /// Lanes of the answer.
        found: usize,
        /// Lanes of the offer.
        expected: usize,
    },
}
