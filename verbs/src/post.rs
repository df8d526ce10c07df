//! Posting requests by verbs.
//!
//! No post allocates, waits or makes a system call of its own; providers of software devices make one.
#![allow(unsafe_code, reason = "a slice of our elements is one of the library's, which they wrap")]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use bitflags::bitflags;
use thiserror::Error;

use crate::queue_pair::{Poster, Posts, QueuePair};
use crate::sys::{self, PIECES, Payload, Post, Verb};
use crate::{AddressHandle, MemoryRegion};

/// A piece of registered memory. verbs.h: `struct ibv_sge`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Element(sys::Element);

impl Element {
    /// `length` bytes from `address` under `local_key`. The device checks that the key covers them.
    #[inline]
    pub fn new(address: u64, length: u32, local_key: u32) -> Self {
        Self(sys::Element { addr: address, length, lkey: local_key })
    }

    /// `length` bytes from `offset` of a region. The device checks that they are inside of it.
    #[inline]
    pub fn of(region: &MemoryRegion, offset: u64, length: u32) -> Self {
        Self::new(region.address().wrapping_add(offset), length, region.local_key())
    }

    /// Bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    #[inline]
    pub(crate) fn as_verbs(elements: &[Self]) -> &[sys::Element] {
        // SAFETY: the wrapper is transparent, and the borrow is passed on.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Element")
            .field("address", &format_args!("{:#x}", self.0.addr))
            .field("length", &self.0.length)
            .field("local_key", &format_args!("{:#x}", self.0.lkey))
            .finish()
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address, as the peer's region has it.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

/// What a send request does. A message's immediate comes out at the other side as it went in.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Sends a message into a receive request of the peer.
    Send {
        /// 32 bits that come with it.
        immediate: Option<u32>,
    },
    /// Sends a datagram.
    SendTo {
        /// The way to the peer.
        handle: &'a AddressHandle,
        /// The peer's queue pair.
        queue_pair: u32,
        /// The peer's queue key.
        queue_key: u32,
        /// 32 bits that come with it.
        immediate: Option<u32>,
    },
    /// Writes to memory of the peer.
    Write {
        /// Where to.
        remote: Remote,
        /// 32 bits that come out of a receive request of the peer.
        immediate: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Where from.
        remote: Remote,
    },
    /// Swaps 8 bytes of the peer if they are `compare`, and fetches what they were. Both sides hold them in their own byte order.
    CompareSwap {
        /// Where, aligned to 8.
        remote: Remote,
        /// What they must be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer, and fetches what they were.
    FetchAdd {
        /// Where, aligned to 8.
        remote: Remote,
        /// What is added.
        add: u64,
    },
}

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Copied into the request at once.
    Inline(&'a [u8]),
    /// Two pieces, one after the other, copied into the request at once.
    Inline2(&'a [u8], &'a [u8]),
    /// Taken, or written, by the device until the request ends.
    Elements(&'a [Element]),
}

impl Data<'_> {
    /// Its bytes.
    #[inline(always)]
    pub fn length(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Inline2(front, back) => front.len() + back.len(),
            Self::Elements(elements) => elements.iter().map(|element| element.length() as usize).sum(),
        }
    }
}

/// A receive request for one piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Its own number, which its completion has.
    pub id: u64,
    /// Where the message goes.
    pub element: Element,
}

impl Receive {
    #[inline]
    pub(crate) fn as_verbs(&self) -> (u64, &[sys::Element]) {
        (self.id, Element::as_verbs(std::slice::from_ref(&self.element)))
    }
}

bitflags! {
    /// How a request is carried out. verbs.h: `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Not before the reads and atomics that were posted before.
        const FENCE = 1 << 0;
        /// Its end is told by a completion.
        const SIGNALED = 1 << 1;
        /// The peer's completion raises an event, if solicited ones are asked for.
        const SOLICITED = 1 << 2;
    }
}

impl SendFlags {
    /// For libibverbs. Unknown bits are dropped: `IBV_SEND_INLINE` would make a provider copy from
    /// the addresses of elements, whatever they are.
    #[inline(always)]
    fn to_verbs(self) -> u32 {
        self.intersection(Self::all()).bits()
    }
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its own number, which its completion has.
    pub id: u64,
    /// What it does.
    pub operation: Operation<'a>,
    /// Its data: what is sent or written, and where to put what is fetched.
    pub data: Data<'a>,
    /// How it is carried out.
    pub flags: SendFlags,
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// As many requests as there is room for are outstanding.
    #[error("the queue is full: poll for completions of requests that were posted with a signal")]
    Full,
    /// More inline data than the queue pair takes.
    #[error("{length} bytes inline: this queue pair takes at most {most}")]
    TooLong {
        /// What was asked for.
        length: usize,
        /// What there is room for.
        most: u32,
    },
    /// More pieces of memory than the queue takes.
    #[error("{count} scatter/gather elements: this queue takes at most {most}")]
    TooManyElements {
        /// What was asked for.
        count: usize,
        /// What there is room for.
        most: u32,
    },
    /// This kind of queue pair, or its device, does not do it.
    #[error("the queue pair has no such operation")]
    Unsupported,
    /// What the provider says.
    #[error("the provider refuses the request: {}", io::Error::from_raw_os_error(*.0))]
    Refused(i32),
}

impl PostError {
    #[cold]
    pub(crate) fn from_errno(errno: i32) -> Self {
        const ENOMEM: i32 = 12;
        const EOPNOTSUPP: i32 = 95;
        match errno {
            ENOMEM => Self::Full,
            EOPNOTSUPP => Self::Unsupported,
            other => Self::Refused(other),
        }
    }
}

impl<'a> Request<'a> {
    /// The request in the library's terms. Inlined, as most of it is known where requests are made.
    #[inline(always)]
    fn post(&self, poster: &Poster) -> Result<Post<'a>, PostError> {
        let mut post = Post {
            id: self.id,
            flags: self.flags.to_verbs(),
            verb: Verb::Send,
            remote: (0, 0),
            datagram: None,
            payload: match self.data {
                Data::Inline(data) => poster.inline([data, &[]])?,
                Data::Inline2(first, second) => poster.inline([first, second])?,
                Data::Elements(elements) => poster.elements(elements)?,
            },
        };
        let (verb, remote) = match self.operation {
            Operation::Send { immediate: None } => (Verb::Send, None),
            Operation::Send { immediate: Some(immediate) } => (Verb::SendImmediate(immediate), None),
            Operation::SendTo { handle, queue_pair, queue_key, immediate } => {
                post.datagram = Some((handle.handle(), queue_pair, queue_key));
                (immediate.map_or(Verb::Send, Verb::SendImmediate), None)
            }
            Operation::Write { remote, immediate: None } => (Verb::Write, Some(remote)),
            Operation::Write { remote, immediate: Some(immediate) } => {
                (Verb::WriteImmediate(immediate), Some(remote))
            }
            Operation::Read { remote } => (Verb::Read, Some(remote)),
            Operation::CompareSwap { remote, compare, swap } => {
                (Verb::CompareSwap { compare, swap }, Some(remote))
            }
            Operation::FetchAdd { remote, add } => (Verb::FetchAdd { add }, Some(remote)),
        };
        post.verb = verb;
        if let Some(remote) = remote {
            post.remote = (remote.address, remote.key);
        }
        if poster.is_datagram() != post.datagram.is_some() {
            return Err(PostError::Unsupported);
        }
        Ok(post)
    }
}

impl Poster {
    #[inline(always)]
    fn inline<'a>(&self, data: [&'a [u8]; PIECES]) -> Result<Payload<'a>, PostError> {
        let length = data[0].len() + data[1].len();
        if length > self.capacity().inline as usize {
            return Err(PostError::TooLong { length, most: self.capacity().inline });
        }
        Ok(Payload::Inline(data))
    }

    #[inline(always)]
    fn elements<'a>(&self, elements: &'a [Element]) -> Result<Payload<'a>, PostError> {
        let most = self.capacity().send_elements;
        if elements.len() > most as usize {
            return Err(PostError::TooManyElements { count: elements.len(), most });
        }
        Ok(Payload::Elements(Element::as_verbs(elements)))
    }
}

impl<A: Posts> QueuePair<A> {
    /// Posts a send request.
    ///
    /// # Errors
    /// Nothing was posted then. [`PostError::Full`] goes away with completions.
    #[inline(always)]
    pub fn post(&self, request: &Request<'_>) -> Result<(), PostError> {
        let (qp, poster) = self.poster();
        // Either makes the library's request for itself, so that the first keeps it in registers.
        let posted = match poster.extended() {
            Some(extended) => extended.post(&request.post(poster)?),
            None => qp.post(request.post(poster)?),
        };
        posted.map_err(PostError::from_errno)
    }

    /// Posts several send requests, none with inline data, with one doorbell. It allocates.
    ///
    /// # Errors
    /// How many were posted, from the first on, and why the next was not.
    pub fn post_all<'a>(&self, requests: &[Request<'a>]) -> Result<(), (usize, PostError)> {
        let (qp, poster) = self.poster();
        let post = |request: &Request<'a>| match request.data {
            Data::Elements(_) => request.post(poster),
            Data::Inline(_) | Data::Inline2(..) => Err(PostError::Unsupported),
        };
        let posts = requests.iter().map(post).collect::<Result<Vec<_>, _>>().map_err(|error| (0, error))?;
        match poster.extended() {
            Some(extended) => extended.post_all(&posts).map_err(|errno| (0, PostError::from_errno(errno))),
            None => qp.post_all(&posts).map_err(|(posted, errno)| (posted, PostError::from_errno(errno))),
        }
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Nothing was posted then. [`PostError::Full`] goes away with completions.
    #[inline]
    pub fn post_receive(&self, id: u64, elements: &[Element]) -> Result<(), PostError> {
        let (qp, poster) = self.poster();
        let most = poster.capacity().receive_elements;
        if elements.len() > most as usize {
            return Err(PostError::TooManyElements { count: elements.len(), most });
        }
        qp.receive(id, Element::as_verbs(elements)).map_err(PostError::from_errno)
    }
}

/// The receive queue of a queue pair, which it keeps alive. It stays on its thread, as the queue pair may.
pub struct ReceiveQueue(Arc<sys::Qp>, PhantomData<Rc<()>>);

impl ReceiveQueue {
    pub(crate) fn new(qp: &Arc<sys::Qp>) -> Self {
        Self(Arc::clone(qp), PhantomData)
    }

    /// Posts receive requests, in one call for every 16.
    ///
    /// # Errors
    /// How many were posted, from the first on, and why the next was not.
    pub fn post_all(&self, receives: &[Receive]) -> Result<(), (usize, PostError)> {
        let posted = self.0.receive_all(receives, Receive::as_verbs);
        posted.map_err(|(posted, errno)| (posted, PostError::from_errno(errno)))
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReceiveQueue").field(&format_args!("{:#x}", self.0.number())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Capacity;

    #[test]
    fn unknown_flags_do_not_reach_the_request() {
        let poster = Poster::listing(Capacity { send_elements: 1, inline: 8, ..Capacity::default() });
        let elements = [Element::new(0x1000, 8, 7)];
        for bits in [1 << 3, u32::MAX] {
            let request = Request {
                id: 1,
                operation: Operation::Send { immediate: None },
                data: Data::Elements(&elements),
                flags: SendFlags::from_bits_retain(bits),
            };
            let post = request.post(&poster).unwrap();
            assert_eq!(post.flags, bits & SendFlags::all().bits());
            // Only inline data sets the flag.
            assert_eq!(post.list_flags() & 1 << 3, 0);
            let request = Request { data: Data::Inline(b"inline"), ..request };
            assert_eq!(request.post(&poster).unwrap().list_flags() & 1 << 3, 1 << 3);
        }
    }
}
