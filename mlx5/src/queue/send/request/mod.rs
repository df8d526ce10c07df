//! Requests: what send queues post, as values.
//!
//! | request | what the device does |
//! |---|---|
//! | [`Write`], [`WriteImmediate`], [`Read`] | transfers bytes to or from the peer's memory |
//! | [`Send`], [`SendImmediate`], [`SendInvalidate`] | sends a message |
//! | [`FetchAdd`], [`CompareSwap`] | changes a word of the peer's memory, returns what it was |
//! | [`MaskedFetchAdd`], [`MaskedCompareSwap`] | the same for parts of words |
//! | [`SendTagged`], [`SendRendezvous`], [`AppendTag`], [`ChangeTags`] | tag matching |
//! | [`Bind`], [`Unbind`], [`Invalidate`], [`Join`], [`Interleave`] | changes a memory key |
//! | [`Nop`] | nothing |
//!
//! [`SendQueue::post`] takes every request, and so do [`Batch::post`], for several with one
//! doorbell, and [`SendQueue::post_deferred`], for a doorbell that rings later. Queue pairs whose
//! requests carry their destination (UD, DC, XRC) post requests [to a peer](ToPeer) by
//! [`SendQueue::towards`](crate::SendQueue::towards). The bytes of a transfer or of a message are a
//! [`Payload`]: segments of registered memory, or bytes that are copied to the WQE.
//!
//! [`SendQueue::post`]: crate::SendQueue::post
//! [`SendQueue::post_deferred`]: crate::SendQueue::post_deferred
//! [`Batch::post`]: super::Batch::post
//!
//! ```
//! use barewire_mlx5::request::{FetchAdd, Inline, Prefixed, Segments, Send, Word, Write};
//! use barewire_mlx5::{ControlFlags, DataSegment, PostError, RemoteAddressSegment, SendQueue};
//!
//! fn post(
//!     queue: &mut SendQueue,
//!     page: DataSegment,
//!     word: DataSegment,
//!     remote: RemoteAddressSegment,
//! ) -> Result<(), PostError> {
//!     let none = ControlFlags::empty();
//!     // From registered memory, which must not change before the completion.
//!     queue.post(Write { local: page, remote }, none)?;
//!     queue.post(Send(Segments(&[word, page])), none)?;
//!     // Bytes that are copied to the WQE, and can be reused at once.
//!     queue.post(Write { local: Inline(b"hello"), remote }, none)?;
//!     queue.post(Send(Prefixed { prefix: *b"twelve bytes", payload: Word(*b"and more") }), none)?;
//!     queue.post(FetchAdd { local: word, remote, add: 1 }, ControlFlags::COMPLETION)?;
//!     // One doorbell for a hundred.
//!     let mut batch = queue.batch();
//!     for _ in 0..100 {
//!         batch.post(Write { local: page, remote }, none)?;
//!     }
//!     Ok(())
//! }
//! ```

use barewire_layouts::wqe::{ControlFlags, Opcode, RemoteAddressSegment};

use super::{Destination, Directed, PostError, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::Unit;

mod atomic;
mod key;
mod payload;
mod tag;

pub use atomic::{CompareSwap, FetchAdd, MaskedAdd, MaskedCompareSwap, MaskedFetchAdd, MaskedSwap};
pub use key::{Bind, Binding, Interleave, Invalidate, Join, MAX_INTERLEAVED, MAX_RANGES, Unbind};
pub use payload::{Inline, Line, Payload, Prefixed, Registered, Segments, Word, Words};
pub use tag::{
    AppendTag, ChangeTags, MAX_RENDEZVOUS_DATA, MAX_TAGGED_INLINE, SendRendezvous, SendTagged,
};

/// The result of a post.
pub(super) type Posting = Result<WqeIndex, PostError>;

pub(super) mod sealed {
    use super::{ControlFlags, Destination, Directed, Doorbell, Posting};

    pub trait Request: Copy {
        /// Posts the request to the destination.
        fn post_to<A: Destination, D: Doorbell>(
            self,
            to: Directed<'_, A, D>,
            flags: ControlFlags,
        ) -> Posting;
    }
}

/// What a send queue posts: see [the module](self).
pub trait Request: sealed::Request {}

impl<R: sealed::Request> Request for R {}

/// A request that goes to a peer: all but [`Nop`], those of tag lists and those that change local
/// keys. Queue pairs that reach several peers post it [towards](crate::SendQueue::towards) one of
/// them.
pub trait ToPeer: Request {}

/// What a control segment says about the request. Public as a part of the sealed traits only.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub(super) opcode: Opcode,
    /// Modifies the opcode.
    pub(super) modifier: u8,
    pub(super) immediate: u32,
}

impl Head {
    #[inline(always)]
    pub(super) fn of(opcode: Opcode) -> Self {
        Self::with(opcode, 0)
    }

    #[inline(always)]
    pub(super) fn with(opcode: Opcode, immediate: u32) -> Self {
        Self { opcode, modifier: 0, immediate }
    }
}

/// Does nothing. It completes after all WQEs before it.
#[derive(Clone, Copy, Debug)]
pub struct Nop;

impl sealed::Request for Nop {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        to.post_units(Head::of(Opcode::Nop), flags, None, [])
    }
}

/// `with_payload!(Name<Bound>(fields) { opcode, immediate, remote address, payload } ...)`.
macro_rules! with_payload {
    ($($name:ident<$bound:ident>($request:ident) {
        $opcode:ident, $immediate:expr, $remote:expr, $local:expr
    })+) => {$(
        impl<P: $bound> sealed::Request for $name<P> {
            #[inline(always)]
            fn post_to<A: Destination, D: Doorbell>(
                self,
                to: Directed<'_, A, D>,
                flags: ControlFlags,
            ) -> Posting {
                let $request = self;
                let head = Head::with(Opcode::$opcode, $immediate);
                let remote: Option<RemoteAddressSegment> = $remote;
                $local.post_to(to, head, flags, remote.as_ref().map(Unit::remote))
            }
        }

        impl<P: $bound> ToPeer for $name<P> {}
    )+};
}

with_payload! {
    Write<Payload>(it) { RdmaWrite, 0, Some(it.remote), it.local }
    WriteImmediate<Payload>(it) { RdmaWriteImmediate, it.immediate, Some(it.remote), it.local }
    Read<Registered>(it) { RdmaRead, 0, Some(it.remote), it.local }
    Send<Payload>(it) { Send, 0, None, it.0 }
    SendImmediate<Payload>(it) { SendImmediate, it.immediate, None, it.local }
    SendInvalidate<Payload>(it) { SendInvalidate, it.rkey, None, it.local }
}

/// Writes to the peer's memory (RDMA write).
#[derive(Clone, Copy, Debug)]
pub struct Write<P> {
    /// The bytes.
    pub local: P,
    /// Where they are written.
    pub remote: RemoteAddressSegment,
}

/// As [`Write`], and consumes a receive WQE of the peer, whose completion carries `immediate`.
#[derive(Clone, Copy, Debug)]
pub struct WriteImmediate<P> {
    /// The bytes.
    pub local: P,
    /// Where they are written.
    pub remote: RemoteAddressSegment,
    /// The peer's completion carries it.
    pub immediate: u32,
}

/// Reads the peer's memory (RDMA read).
#[derive(Clone, Copy, Debug)]
pub struct Read<P> {
    /// Where the bytes are stored: a segment, or [`Segments`].
    pub local: P,
    /// The first byte.
    pub remote: RemoteAddressSegment,
}

/// Sends a message.
#[derive(Clone, Copy, Debug)]
pub struct Send<P>(
    /// The message.
    pub P,
);

/// Sends a message whose completion at the peer carries `immediate`.
#[derive(Clone, Copy, Debug)]
pub struct SendImmediate<P> {
    /// The message.
    pub local: P,
    /// The peer's completion carries it.
    pub immediate: u32,
}

/// Sends a message that invalidates the peer's key `rkey` on arrival.
#[derive(Clone, Copy, Debug)]
pub struct SendInvalidate<P> {
    /// The message.
    pub local: P,
    /// The key.
    pub rkey: u32,
}
