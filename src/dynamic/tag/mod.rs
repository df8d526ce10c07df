//! Tagged messages that the device matches with receives: what an interface reports about them.
//!
//! A receive names a tag and a mask, and gets the first message whose tag is equal in the bits of
//! the mask. The device has a list of receives; the data of a message that matches one of them is
//! written to its buffer. Any other message is passed to the program, which matches it with the
//! receives that it has not posted. [`Interface::tag_receive`] appends to the list,
//! [`Interface::tag_cancel`] removes from it, and the handler of
//! [`Interface::set_tag_handler`] gets every [`TagEvent`].
//!
//! A receive that is appended while an unexpected message is on its way to the program does not
//! match before the program has got that message. The program must then look whether the message
//! belongs to a receive of the list, cancel that receive, and pass the message to it.
//! `barewire_wireup::tag::offload` keeps this order.
//!
//! [`Interface::tag_receive`]: crate::Interface::tag_receive
//! [`Interface::tag_cancel`]: crate::Interface::tag_cancel
//! [`Interface::set_tag_handler`]: crate::Interface::set_tag_handler

mod post;
mod receives;

pub use receives::TagReceives;

pub use crate::base::tag::TagReceive;

use std::fmt;

use crate::base::error::{OperationError, PostError};
use crate::dynamic::endpoint::Endpoint;
use crate::dynamic::memory::RemoteKey;
use crate::transport::common::message::Message;

/// What happened to a receive, or a message that is not in the buffer of one. `context` is the
/// value that was passed to [`Interface::tag_receive`](crate::Interface::tag_receive).
#[derive(Debug)]
#[non_exhaustive]
pub enum TagEvent<'a> {
    /// A message has matched the receive, and its data is on its way. Another event follows.
    Matched {
        /// The receive.
        context: u64,
        /// The tag of the message.
        tag: u64,
    },
    /// The data is in the buffer. The receive has ended.
    Received {
        /// The receive.
        context: u64,
        /// Where it arrived: [`Endpoint::tag_queue_pair`] of its endpoint.
        queue_pair: u32,
        /// The tag of the message.
        tag: u64,
        /// The immediate of an eager message; of a rendezvous, a number of the sender.
        immediate: u32,
        /// Bytes in the buffer.
        length: usize,
    },
    /// The receive has ended without a message: it was cancelled
    /// ([`Cause::Canceled`](crate::Cause::Canceled)), or the connection of its message failed.
    Ended {
        /// The receive.
        context: u64,
        /// Why.
        error: OperationError,
    },
    /// A rendezvous has matched the receive, whose data the device does not read: the buffer is too
    /// short, or the device too busy. The announcement is in the first `length` bytes of the
    /// buffer: pass them to [`UnreadAnnouncement::read`]. The receive has ended.
    NotRead {
        /// The receive.
        context: u64,
        /// The announcement, without the part in the buffer.
        announcement: UnreadAnnouncement,
        /// Bytes in the buffer.
        length: usize,
    },
    /// An eager message matches no receive in the list.
    Unexpected {
        /// Where it arrived: [`Endpoint::tag_queue_pair`] of its endpoint.
        queue_pair: u32,
        /// Its tag.
        tag: u64,
        /// Its immediate.
        immediate: u32,
        /// Its data.
        message: Message<'a>,
    },
    /// A rendezvous matches no receive in the list.
    Announced {
        /// The announcement.
        announcement: TagAnnouncement,
        /// The sender's header.
        header: &'a [u8],
    },
}

/// The announcement of a rendezvous whose data the program reads: by
/// [`get_zcopy`](Endpoint::get_zcopy) of [`Self::endpoint`], from [`Self::address`] with
/// [`Self::key`]. [`Self::finish`] then completes the operation of the sender.
///
/// Nothing in it is trusted: a peer can name any address, and the get fails if the peer has not
/// registered it.
#[derive(Clone)]
#[must_use = "the operation of the sender completes when it is finished"]
pub struct TagAnnouncement {
    origin: Origin,
    address: u64,
    length: u32,
    key: RemoteKey,
}

/// The sender of an announcement, and its operation.
#[derive(Clone)]
struct Origin {
    endpoint: Endpoint,
    tag: u64,
    operation: u32,
}

impl TagAnnouncement {
    /// Returns the tag.
    pub fn tag(&self) -> u64 {
        self.origin.tag
    }

    /// Returns the length of the data in bytes.
    #[allow(clippy::len_without_is_empty, reason = "the data of a rendezvous has a length only")]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns the address of the data at the sender.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the key of the data.
    pub fn key(&self) -> &RemoteKey {
        &self.key
    }

    /// Returns the endpoint to the sender.
    pub fn endpoint(&self) -> &Endpoint {
        &self.origin.endpoint
    }

    /// Completes the operation of the sender, whose memory is not read any more. If the data were
    /// not read, the sender does not learn that.
    pub fn finish(&self) -> Result<(), PostError> {
        let Origin { endpoint, tag, operation } = &self.origin;
        endpoint.finish_rendezvous(*tag, *operation)
    }
}

impl fmt::Debug for TagAnnouncement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagAnnouncement")
            .field("tag", &self.origin.tag)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// A [`TagAnnouncement`] whose rest is in the buffer of the receive that it matched.
#[must_use = "the operation of the sender completes when it is finished"]
pub struct UnreadAnnouncement(Origin);

impl UnreadAnnouncement {
    /// Returns the tag.
    pub fn tag(&self) -> u64 {
        self.0.tag
    }
}

impl fmt::Debug for UnreadAnnouncement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnreadAnnouncement").field("tag", &self.0.tag).finish_non_exhaustive()
    }
}

#[cfg(feature = "mlx5")]
mod mlx5 {
    use barewire_mlx5::layouts::tag::{RendezvousHeader, TagHeader};

    use super::{Origin, TagAnnouncement, UnreadAnnouncement};
    use crate::dynamic::endpoint::Endpoint;
    use crate::dynamic::memory::RemoteKey;
    use crate::transport::rc_mlx5::{self, RcMlx5};

    impl TagAnnouncement {
        /// Returns the announcement with this header, whose rest begins with `rest`, and the
        /// sender's header; `None` if it is too short.
        pub(crate) fn parse<'r>(
            endpoint: rc_mlx5::Endpoint,
            header: &TagHeader,
            rest: &'r [u8],
        ) -> Option<(Self, &'r [u8])> {
            UnreadAnnouncement::new(endpoint, header).read(rest)
        }
    }

    impl UnreadAnnouncement {
        pub(crate) fn new(endpoint: rc_mlx5::Endpoint, header: &TagHeader) -> Self {
            Self(Origin {
                endpoint: Endpoint::from_static::<RcMlx5>(endpoint),
                tag: header.tag.get(),
                operation: header.application.get(),
            })
        }

        /// Returns the whole announcement, and the sender's header, from the bytes in the buffer of
        /// the receive; `None` if they are too few.
        pub fn read(self, bytes: &[u8]) -> Option<(TagAnnouncement, &[u8])> {
            let (data, header) = RendezvousHeader::split_from(bytes)?;
            let announcement = TagAnnouncement {
                origin: self.0,
                address: data.address.get(),
                length: data.length.get(),
                key: RemoteKey::from_static::<RcMlx5>(rc_mlx5::RemoteKey::new(data.rkey.get())),
            };
            Some((announcement, header))
        }
    }
}

#[cfg(not(feature = "mlx5"))]
impl UnreadAnnouncement {
    /// Returns the whole announcement, and the sender's header, from the bytes in the buffer of the
    /// receive; `None` if they are too few.
    pub fn read(self, _bytes: &[u8]) -> Option<(TagAnnouncement, &[u8])> {
        None
    }
}
