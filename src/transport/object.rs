//! The objects of a transport as traits: what the domains, interfaces and endpoints of every
//! transport have in common. The operations of endpoints are in [`capability`](crate::capability).

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::base::address::PeerAddress;
use crate::base::attributes::Attributes;
use crate::base::capability::{Flush, Pending};
use crate::base::completion::Completion;
use crate::base::counters::Counters;
use crate::base::error::{
    ConnectError, EndpointError, HandlerError, KeyError, MemoryError, PostError,
};
use crate::base::event::{Armed, EventError};
use crate::base::memory::{MemoryConfig, Slice};
use crate::base::status::Post;
use crate::transport::common::message::Message;
use crate::transport::sealed::Handled;
#[cfg(feature = "tcp")]
use crate::transport::tcp::Routes;

/// A device opened by a transport. As [`crate::Domain`].
pub trait Domain: Clone + Debug + Send + Sync + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// A right to a peer's memory.
    type RemoteKey: Clone + Debug + Send + Sync;

    /// The device's name: as [`crate::Domain::name`].
    fn name(&self) -> &str;

    /// Allocates zeroed, page-aligned memory and registers it.
    fn allocate(
        &self,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self::Memory, MemoryError>;

    /// Registers memory that the domain does not own.
    ///
    /// # Errors
    /// [`MemoryError`]
    ///
    /// # Safety
    /// As [`crate::Domain::register`].
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self::Memory, MemoryError>;

    /// Creates a key from the bytes of the peer's [`Memory::pack_key`].
    fn unpack_key(&self, bytes: &[u8]) -> Result<Self::RemoteKey, KeyError>;
}

/// A registered region. As [`crate::Memory`].
#[allow(clippy::len_without_is_empty, reason = "regions have at least one byte")]
pub trait Memory: Debug + Send + Sync + Sized {
    /// Address of the first byte, as peers name it in puts, gets and atomics.
    fn address(&self) -> u64;

    /// Bytes.
    fn len(&self) -> usize;

    /// Copies `source` to `offset`.
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), MemoryError>;

    /// Copies from `offset` into `target`.
    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), MemoryError>;

    /// Loads the word at `offset` with acquire ordering.
    fn load_u64(&self, offset: usize) -> Result<u64, MemoryError>;

    /// A range of this memory for zero-copy operations.
    fn slice(&self, offset: usize, length: usize) -> Result<Slice<'_>, MemoryError>;

    /// Deregisters the region.
    fn deregister(self) -> Result<(), MemoryError>;

    /// The bytes from which a peer makes its key.
    fn pack_key(&self) -> Vec<u8>;
}

/// A transport at work on a device. As [`crate::Interface`].
pub trait Interface: Clone + Debug + Handled + 'static {
    /// What the interface can do.
    fn attributes(&self) -> &Attributes;

    /// Where peers find the interface.
    fn address(&self) -> PeerAddress;

    /// Checks whether the interface can reach a peer's interface: as [`crate::Interface::reaches`].
    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError>;

    /// As [`crate::Interface::reaches_by`].
    ///
    /// # Errors
    /// As [`reaches`](Self::reaches)
    #[cfg(feature = "tcp")]
    fn reaches_by(&self, peer: &PeerAddress, routes: &Routes) -> Result<bool, ConnectError>;

    /// Sets the handler of active messages with `id`, from the next progress on. It runs inside
    /// progress (of `self`, inside the send) and may post.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`] if `id` is 32 or more, [`HandlerError::Closed`].
    fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        self.handlers().set(id, Box::new(handler))?;
        self.call_attention();
        Ok(())
    }

    /// Sets the handler that is called once for each endpoint that fails, and over `shm` for each
    /// sender that violates the protocol.
    fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        self.handlers().set_error(Box::new(handler));
    }

    /// Returns the number of messages that were dropped because their id has no handler or they are
    /// of another protocol.
    fn unhandled(&self) -> u64 {
        self.handlers().unhandled()
    }

    /// What all endpoints of the interface did, including those that were dropped.
    fn counters(&self) -> Counters;

    /// A descriptor that becomes readable when something happens to an armed interface; `None` if
    /// nothing ever happens without a call on this thread.
    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError>;

    /// Arms the [descriptor](Self::event_fd) until progress is called. Returns how long the thread
    /// may sleep.
    fn arm(&self) -> Result<Armed, EventError>;

    /// Makes the next progress examine all connections, so that it notices peers whose process has
    /// ended; otherwise `shm` and `tcp` do that every few hundred calls. While peers send too many
    /// requests over the sockets of `shm`, it does that up to 0.3 s later. Has no other effect.
    fn examine(&self);

    /// Waits for the operations of every endpoint.
    fn flush(&self, completion: Option<&Completion>) -> Post;

    /// Orders the operations of every endpoint.
    fn fence(&self) -> Result<(), PostError>;
}

/// The one owner of an interface's progress. Dropping it closes the interface.
pub trait Progress {
    /// Delivers messages, finishes operations and runs pending requests. Never blocks. Returns the
    /// number of events.
    fn progress(&mut self) -> usize;
}

/// One end of a connection.
pub trait Endpoint: Clone + Debug + Flush + Pending + 'static {
    /// What the peer passes to [`Transport::connect`](super::Transport::connect).
    fn address(&self) -> PeerAddress;

    /// Returns the reason if the endpoint failed.
    fn error(&self) -> Option<EndpointError>;

    /// Returns the endpoint's counters.
    fn counters(&self) -> Counters;

    /// Returns whether the endpoint is connected, but the peer has not responded yet.
    fn is_connecting(&self) -> bool;
}

/// Implements the traits by the types' own methods of the same names.
macro_rules! objects {
    ($($object:ident),+) => {
        $($crate::transport::object::objects!(@ $object);)+
    };
    (@ Memory) => {
        impl $crate::transport::Memory for Memory {
            fn address(&self) -> u64 {
                self.address()
            }

            fn len(&self) -> usize {
                self.len()
            }

            fn write(&self, offset: usize, source: &[u8]) -> Result<(), $crate::MemoryError> {
                self.write(offset, source)
            }

            fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), $crate::MemoryError> {
                self.read(offset, target)
            }

            fn load_u64(&self, offset: usize) -> Result<u64, $crate::MemoryError> {
                self.load_u64(offset)
            }

            fn slice(&self, offset: usize, length: usize) -> Result<$crate::Slice<'_>, $crate::MemoryError> {
                self.slice(offset, length)
            }

            fn deregister(self) -> Result<(), $crate::MemoryError> {
                self.deregister()
            }

            fn pack_key(&self) -> Vec<u8> {
                self.pack_key()
            }
        }
    };
    (@ RemoteKey) => {
        impl $crate::base::capability::RemoteMemory for Endpoint {
            type Key = RemoteKey;
        }
    };
    (@ Progress) => {
        impl $crate::transport::Progress for Progress {
            #[inline]
            fn progress(&mut self) -> usize {
                self.progress()
            }
        }
    };
}

pub(crate) use objects;
