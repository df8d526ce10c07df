//! Posting requests by verbs.
//!
//! Posting does not allocate, block or make a system call, except in providers of software devices,
//! which make one system call per post.
#![allow(unsafe_code, reason = "casts a slice of wrappers to a slice of the library's elements")]

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

/// A scatter/gather element: a range of registered memory. verbs.h: `struct ibv_sge`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Element(sys::Element);

impl Element {
    /// The `length` bytes at `address`, under `local_key`. The device checks that the key covers
    /// them.
    #[inline]
    pub fn new(address: u64, length: u32, local_key: u32) -> Self {
        Self(sys::Element { addr: address, length, lkey: local_key })
    }

    /// The `length` bytes at `offset` of a region. The device checks that they are inside it.
    #[inline]
    pub fn of(region: &MemoryRegion, offset: u64, length: u32) -> Self {
        Self::new(region.address().wrapping_add(offset), length, region.local_key())
    }

    /// Length in bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    #[inline]
    pub(crate) fn as_verbs(elements: &[Self]) -> &[sys::Element] {
        // SAFETY: `Element` is a transparent wrapper of the library's element, so both slices have
        // the same layout; the result has the lifetime of the argument.
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
    /// Address in the peer's region.
    pub address: u64,
    /// The remote key of the region.
    pub key: u32,
}

/// The operation of a send request. The value of an immediate is preserved: it is the same on both
/// sides.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Sends a message, which consumes a receive request of the peer.
    Send {
        /// 32 bits that are delivered with the message.
        immediate: Option<u32>,
    },
    /// Sends a datagram.
    SendTo {
        /// The address of the peer.
        handle: &'a AddressHandle,
        /// The number of the peer's queue pair.
        queue_pair: u32,
        /// The peer's queue key.
        queue_key: u32,
        /// 32 bits that are delivered with the message.
        immediate: Option<u32>,
    },
    /// Writes to the peer's memory.
    Write {
        /// The destination.
        remote: Remote,
        /// 32 bits that are delivered to the peer, where they consume a receive request.
        immediate: Option<u32>,
    },
    /// Reads the peer's memory.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Replaces 8 bytes of the peer by `swap` if they equal `compare`, and returns their previous
    /// value. Each side uses its own byte order.
    CompareSwap {
        /// The address of the 8 bytes, which must be aligned to 8.
        remote: Remote,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer, and returns their previous value.
    FetchAdd {
        /// The address of the 8 bytes, which must be aligned to 8.
        remote: Remote,
        /// The addend.
        add: u64,
    },
}

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Inline data, copied into the request during the call.
    Inline(&'a [u8]),
    /// Inline data in two consecutive pieces, copied into the request during the call.
    Inline2(&'a [u8], &'a [u8]),
    /// Registered memory, which the device reads or writes until the request completes.
    Elements(&'a [Element]),
}

impl Data<'_> {
    /// Length of the data in bytes.
    #[inline(always)]
    pub fn length(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Inline2(front, back) => front.len() + back.len(),
            Self::Elements(elements) => {
                elements.iter().map(|element| element.length() as usize).sum()
            }
        }
    }
}

/// A receive request with one scatter element.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// The number that the completion of the request returns.
    pub id: u64,
    /// The memory that receives the message.
    pub element: Element,
}

impl Receive {
    #[inline]
    pub(crate) fn as_verbs(&self) -> (u64, &[sys::Element]) {
        (self.id, Element::as_verbs(std::slice::from_ref(&self.element)))
    }
}

bitflags! {
    /// Flags of a send request. verbs.h: `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Fence: starts only after all reads and atomics posted before have completed.
        const FENCE = 1 << 0;
        /// Signalled: a completion is reported when the request ends.
        const SIGNALED = 1 << 1;
        /// Solicited: the peer's completion causes an event even if its queue is armed for
        /// solicited completions only.
        const SOLICITED = 1 << 2;
    }
}

impl SendFlags {
    /// The flags for libibverbs. Unknown bits are cleared: `IBV_SEND_INLINE` would make a provider
    /// copy from the addresses of the elements, which may be any numbers.
    #[inline(always)]
    fn to_verbs(self) -> u32 {
        self.intersection(Self::all()).bits()
    }
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The number that the completion of the request returns.
    pub id: u64,
    /// The operation.
    pub operation: Operation<'a>,
    /// The data to send or write, or the memory that receives the fetched data.
    pub data: Data<'a>,
    /// The flags.
    pub flags: SendFlags,
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue has no room for another request.
    #[error("the queue is full: poll for completions of signalled requests")]
    Full,
    /// The inline data exceeds the limit of the queue pair.
    #[error("{length} bytes of inline data: this queue pair supports at most {most}")]
    TooLong {
        /// Bytes of the request.
        length: usize,
        /// The limit in bytes.
        most: u32,
    },
    /// The number of scatter/gather elements exceeds the limit of the queue.
    #[error("{count} scatter/gather elements: this queue supports at most {most}")]
    TooManyElements {
        /// Elements of the request.
        count: usize,
        /// The limit.
        most: u32,
    },
    /// The type of the queue pair, or its device, does not support the operation.
    #[error("the queue pair does not support this operation")]
    Unsupported,
    /// Another errno value of the provider.
    #[error("the provider rejected the request: {}", io::Error::from_raw_os_error(*.0))]
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
    /// Converts the request to the form of `sys`. Inlined, because most of its fields are constants
    /// in the caller.
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
            Operation::Send { immediate: Some(immediate) } => {
                (Verb::SendImmediate(immediate), None)
            }
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
    /// The reason why nothing was posted. [`PostError::Full`] is temporary: poll for completions
    /// and retry.
    #[inline(always)]
    pub fn post(&self, request: &Request<'_>) -> Result<(), PostError> {
        let (qp, poster) = self.poster();
        // Each branch converts the request itself, so that the first one keeps it in registers.
        let posted = match poster.extended() {
            Some(extended) => extended.post(&request.post(poster)?),
            None => qp.post(request.post(poster)?),
        };
        posted.map_err(PostError::from_errno)
    }

    /// Posts several send requests without inline data, with one doorbell. Allocates memory.
    ///
    /// # Errors
    /// The number of requests that were posted, counted from the first, and the reason why the next
    /// one was not.
    pub fn post_all<'a>(&self, requests: &[Request<'a>]) -> Result<(), (usize, PostError)> {
        let (qp, poster) = self.poster();
        let post = |request: &Request<'a>| match request.data {
            Data::Elements(_) => request.post(poster),
            Data::Inline(_) | Data::Inline2(..) => Err(PostError::Unsupported),
        };
        let posts =
            requests.iter().map(post).collect::<Result<Vec<_>, _>>().map_err(|error| (0, error))?;
        match poster.extended() {
            Some(extended) => {
                extended.post_all(&posts).map_err(|errno| (0, PostError::from_errno(errno)))
            }
            None => qp
                .post_all(&posts)
                .map_err(|(posted, errno)| (posted, PostError::from_errno(errno))),
        }
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The reason why nothing was posted. [`PostError::Full`] is temporary: poll for completions
    /// and retry.
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

/// The receive queue of a queue pair, which it keeps alive. It is not `Send`, since the queue pair
/// may be bound to its thread.
pub struct ReceiveQueue(Arc<sys::Qp>, PhantomData<Rc<()>>);

impl ReceiveQueue {
    pub(crate) fn new(qp: &Arc<sys::Qp>) -> Self {
        Self(Arc::clone(qp), PhantomData)
    }

    /// Posts receive requests, up to 16 per call of the provider.
    ///
    /// # Errors
    /// The number of requests that were posted, counted from the first, and the reason why the next
    /// one was not.
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
        let poster =
            Poster::listing(Capacity { send_elements: 1, inline: 8, ..Capacity::default() });
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
            // The flag is set only for inline data, whatever bits the caller passes.
            assert_eq!(post.list_flags() & 1 << 3, 0);
            let request = Request { data: Data::Inline(b"inline"), ..request };
            assert_eq!(request.post(&poster).unwrap().list_flags() & 1 << 3, 1 << 3);
        }
    }
}
