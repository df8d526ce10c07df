//! Tag matching: operations on the list of an XRQ, and messages that match its entries.
//!
//! A message to an XRQ begins with a tag matching header. If an entry of the list matches, the
//! message goes to the buffer of that entry, without its header; otherwise it goes to the next
//! receive WQE as a whole. A matched rendezvous message names data at the sender, which the queue
//! pair's requester reads before it sends the end of the rendezvous.

mod list;
mod message;

pub(super) use list::{Change, change, execute};
pub(super) use message::{Start, start, withdraw};

use barewire_layouts::tag::TagHeader;

/// How a message of an XRQ is received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It has no tag, or is not for an XRQ.
    #[default]
    Plain,
    /// In a receive WQE, because its tag matches no entry.
    Unexpected,
    /// In the buffer of an entry.
    Matched(Matched),
}

/// The entry that a message matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) index: u16,
    pub(super) header: TagHeader,
    /// A completion has reported the match.
    pub(super) announced: bool,
    /// Software reads the data of the rendezvous message.
    pub(super) by_software: bool,
    /// The first packet requests an event.
    pub(super) solicited: bool,
}
