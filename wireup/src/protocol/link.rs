//! What the machine keeps of a link that is not silent.

use super::pieces::Assembly;
use super::reason::Cause;

/// Length of the period in which messages of a peer are counted.
const PERIOD: u64 = 100_000;
/// Messages of a link that are read in a period while it is being connected; parts count.
const MESSAGES: u16 = 256;
/// The same of a connected link, whose messages are never in parts.
const FEW_MESSAGES: u16 = 32;

/// A side of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// This node.
    Here,
    /// The peer.
    Peer,
}

/// The state of a link, as the user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Neither side connects it.
    Idle,
    /// This side offers lanes, or waits in line to do so.
    Offered,
    /// The peer offers lanes.
    Answered,
    /// Both sides have connected their lanes.
    Connected,
    /// One side, or both, closed it; what was sent before is being received.
    Closing,
    /// Closed first by that side. The link does not exist any more.
    Closed(Side),
    /// Failed. The link does not exist any more.
    Failed(Cause),
}

/// What a link waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// A place among the half-open links.
    Waiting,
    /// The lanes of this side's offer.
    Preparing,
    /// The ANSWER.
    Offered,
    /// This side's endpoints, after an ANSWER without refusals.
    Completing,
    /// Further parts of the peer's OFFER.
    Arriving,
    /// A place among the half-open links, with the peer's OFFER.
    Queued,
    /// This side's lanes for the peer's OFFER.
    Answering,
    /// The DONE.
    Answered,
    /// Nothing.
    Connected,
    /// What [`Closing`] says.
    Closing,
}

impl Stage {
    /// Whether the peer's offer stands, and the link is not connected.
    pub(super) fn answers(self) -> bool {
        matches!(self, Self::Arriving | Self::Queued | Self::Answering | Self::Answered)
    }

    pub(super) fn state(self) -> State {
        match self {
            Self::Waiting | Self::Preparing | Self::Offered | Self::Completing => State::Offered,
            Self::Arriving | Self::Queued | Self::Answering | Self::Answered => State::Answered,
            Self::Connected => State::Connected,
            Self::Closing => State::Closing,
        }
    }
}

/// A place among the half-open links: those that this side offers, or those that peers offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    None,
    /// In the line of this side's offers, with a ticket.
    InLine(u64),
    /// One of this side's offers.
    Ours,
    /// In the crowd of the peers' offers.
    InCrowd,
    /// One of the peers' offers.
    Theirs,
}

impl Place {
    pub(super) fn is_active(self) -> bool {
        matches!(self, Self::Ours | Self::Theirs)
    }
}

/// The two halves of a close. The link ends once each half that was begun is finished.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Closing {
    /// This side sent CLOSE ..
    pub(super) sent: bool,
    /// .. which is in the peer's memory, behind everything sent before ..
    pub(super) delivered: bool,
    /// .. and received CLOSED.
    pub(super) acknowledged: bool,
    /// The peer sent CLOSE ..
    pub(super) received: bool,
    /// .. this side has received everything before it, and sends CLOSED ..
    pub(super) drained: bool,
    /// .. which the peer received.
    pub(super) released: bool,
    /// [`Ended`](super::Action::Ended) was reported.
    pub(super) reported: bool,
}

impl Closing {
    /// Whether everything that was sent before has arrived.
    pub(super) fn is_done(self) -> bool {
        let arrived = self.delivered || self.acknowledged;
        (!self.sent || arrived) && (!self.received || self.drained)
    }
}

/// A link that is not silent. Times are microseconds, [`u64::MAX`] for never.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) stage: Stage,
    pub(super) place: Place,
    pub(super) closing: Closing,
    /// Whether the user wants it connected, so that this side offers if the peer's offer comes to
    /// nothing.
    pub(super) wanted: bool,
    /// Whether the caller has received an action about it.
    pub(super) shown: bool,
    /// Whether it counts among the links that only peers requested and that are not connected.
    pub(super) counted: bool,
    /// Whether it counts among the connected links that only peers requested.
    pub(super) foreign: bool,
    /// Whether the peer refused this side's offer as busy.
    pub(super) busy: bool,
    /// Whether its peer has another link of this number, so that this one is probably dead.
    pub(super) suspect: bool,
    /// Whether this side's ANSWER has no refused lane.
    pub(super) complete: bool,
    /// Number of this side's last offer.
    pub(super) attempt: u8,
    /// Number of the peer's offer that stands.
    pub(super) peer_attempt: u8,
    /// Offers of this side that were refused in part.
    pub(super) retries: u8,
    /// How often the current message was sent again.
    pub(super) resends: u8,
    /// PINGs without a message from the peer.
    pub(super) missed: u8,
    /// Lanes of the offer that stands.
    pub(super) lanes: u8,
    /// Bytes of a peer's OFFER that count against the limit.
    pub(super) stored: u16,
    /// The request to the caller whose result is due.
    pub(super) turn: u32,
    /// The name that this side has given the link: random, and known to the peer only.
    pub(super) name: u64,
    /// The peer's name of the link, 0 if unknown.
    pub(super) peer_link: u64,
    /// The peer's number of the link among all that it has made.
    pub(super) peer_order: u32,
    /// What the peer has given this side as proof of its address, 0 before.
    pub(super) pass: u64,
    /// The way on which the peer's OFFER came.
    pub(super) way: u16,
    /// Messages of the peer in this period.
    pub(super) messages: u16,
    pub(super) period: u64,
    /// When it got its place among the peers' offers.
    pub(super) admitted: u64,
    /// Messages that this side sent before it closed the link.
    pub(super) last: u64,
    /// Length of a phase.
    pub(super) patience: u64,
    pub(super) deadline: u64,
    pub(super) timer: u64,
    /// When the peer last sent a message.
    pub(super) heard: u64,
    /// The body of the message to send again, or of the OFFER in line.
    pub(super) body: Box<[u8]>,
    pub(super) assembly: Option<Box<Assembly>>,
}

impl Live {
    pub(super) fn new(name: u64, stage: Stage, patience: u64, now: u64) -> Self {
        Self {
            stage,
            place: Place::None,
            closing: Closing::default(),
            wanted: false,
            shown: false,
            counted: false,
            foreign: false,
            busy: false,
            suspect: false,
            complete: false,
            attempt: 0,
            peer_attempt: 0,
            retries: 0,
            resends: 0,
            missed: 0,
            lanes: 0,
            stored: 0,
            turn: 0,
            name,
            peer_link: 0,
            peer_order: 0,
            pass: 0,
            way: 0,
            messages: 0,
            period: now,
            admitted: 0,
            last: 0,
            patience,
            deadline: now.saturating_add(patience),
            timer: u64::MAX,
            heard: now,
            body: Box::default(),
            assembly: None,
        }
    }

    /// Counts a message of the peer. Returns whether it is to be read: what a peer that follows the
    /// protocol sends at most is far less.
    pub(super) fn may_send(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.period) >= PERIOD {
            (self.period, self.messages) = (now, 0);
        }
        self.messages = self.messages.saturating_add(1);
        let is_connected = matches!(self.stage, Stage::Connected | Stage::Closing);
        self.messages <= if is_connected { FEW_MESSAGES } else { MESSAGES }
    }
}
