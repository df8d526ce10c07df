//! Active messages as their handlers receive them.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::base::error::PostError;
use crate::base::fork::Maker;
use crate::transport::common::pool::Lease;

/// Number of active-message ids per interface.
pub const MAX_HANDLERS: u8 = 32;
/// The id of a message that only makes the peer acknowledge it.
pub(crate) const NO_HANDLER: u8 = u8::MAX;
/// Bytes of the header that `am_short` puts before the payload.
pub const SHORT_HEADER: usize = size_of::<u64>();

/// # Errors
/// [`PostError::UnknownHandlerId`]
#[inline(always)]
pub(crate) fn check_id(id: u8) -> Result<(), PostError> {
    if id < MAX_HANDLERS { Ok(()) } else { Err(PostError::UnknownHandlerId(id)) }
}

/// A message as its handler receives it. Its bytes are valid until the handler returns, or longer
/// as a [`KeptMessage`], which [`Self::keep`] returns.
///
/// A slice of the message cannot outlive a call of `keep`, because the buffer is reused when the
/// kept message is dropped:
///
/// ```compile_fail,E0505
/// fn handler(message: barewire::Message<'_>) {
///     let data = message.data();
///     drop(message.keep());
///     println!("{data:?}");
/// }
/// ```
///
/// ```compile_fail,E0505
/// fn handler(message: barewire::Message<'_>) {
///     let (_header, payload) = message.split_short().unwrap();
///     drop(message.keep());
///     println!("{payload:?}");
/// }
/// ```
///
/// Read from the kept message instead:
///
/// ```
/// fn handler(message: barewire::Message<'_>) {
///     println!("{:?}", message.data());
///     let kept = message.keep();
///     println!("{:?}", &kept[..]);
/// }
/// ```
// Two words, so that it is passed to the handler in registers.
pub struct Message<'a> {
    /// First byte of the data, [`HEADROOM`] bytes behind the start of its buffer; or an
    /// [`ExternalMessage`].
    data: NonNull<u8>,
    /// With the bit [`EXTERNAL`], if `data` points to an [`ExternalMessage`].
    length: usize,
    buffer: PhantomData<&'a [u8]>,
}

/// Bytes directly in front of a message's data that [`Message::keep_if`] lends.
pub const MESSAGE_HEADROOM: usize = 192;
/// Bytes for the pointer to the keeper ([`write_keeper`]), and for a number of the transport.
const KEEPER: usize = 24;
/// Bytes in front of a message's data: those of the keeper, then those that are lent. The transport's
/// header is the end of the latter, and has been read before the message is delivered.
// Data begin 24 bytes behind the start of a cache line, together with the headers in front of them.
pub(crate) const HEADROOM: usize = KEEPER + MESSAGE_HEADROOM;

/// No message is as long as this.
const EXTERNAL: usize = 1 << 30;

/// A message without headroom, because another process could write to it, or because it is not in a
/// buffer: the address of the data, and the keeper.
pub(crate) struct ExternalMessage<'a> {
    data: Cell<NonNull<u8>>,
    keeper: &'a dyn Keeper,
}

impl<'a> ExternalMessage<'a> {
    pub(crate) fn new(data: NonNull<u8>, keeper: &'a dyn Keeper) -> Self {
        Self { data: Cell::new(data), keeper }
    }

    /// Moves it to other data. No message refers to it.
    #[inline(always)]
    pub(crate) fn move_to(&self, data: NonNull<u8>) {
        self.data.set(data);
    }
}

/// Writes the keeper of a message to the headroom at `start`. The data lies [`HEADROOM`] bytes
/// behind.
///
/// # Safety
/// `start` is valid for writes of 16 bytes and aligned to 8.
pub(crate) unsafe fn write_keeper(start: NonNull<u8>, keeper: &dyn Keeper) {
    // SAFETY: `start` is valid for this write and aligned (contract of this function). Erasing the
    // lifetime is sound, because `Message::new` requires that the keeper outlives the message.
    unsafe { start.cast::<NonNull<dyn Keeper + '_>>().write(NonNull::from(keeper)) };
}

impl<'a> Message<'a> {
    /// # Safety
    /// `data` lies [`HEADROOM`] bytes behind the start of a buffer, where [`write_keeper`] wrote a
    /// keeper that lives for `'a`. It is valid for reads of `length` bytes, fewer than
    /// [`EXTERNAL`]. Until `'a` ends, or the kept message that the keeper returns is dropped, these
    /// bytes are not written.
    #[inline(always)]
    pub(crate) unsafe fn new(data: NonNull<u8>, length: usize) -> Self {
        Self { data, length, buffer: PhantomData }
    }

    /// # Safety
    /// The data of `external` is valid for reads of `length` bytes, fewer than [`EXTERNAL`]. Until
    /// `'a` ends, `external` is not moved, and until then or until the kept message that the keeper
    /// returns is dropped, these bytes are not written.
    #[inline(always)]
    pub(crate) unsafe fn external(external: &'a ExternalMessage<'_>, length: usize) -> Self {
        Self {
            data: NonNull::from(external).cast(),
            length: length | EXTERNAL,
            buffer: PhantomData,
        }
    }

    #[inline(always)]
    fn external_message(&self) -> Option<&ExternalMessage<'a>> {
        // SAFETY: only `external` sets this bit, and it stores a reference that lives for `'a`.
        (self.length & EXTERNAL != 0).then(|| unsafe { self.data.cast().as_ref() })
    }

    /// Returns the data of the message: for `am_short` the 8-byte header and the payload, for
    /// `am_zcopy` the header and the slices, for `am_bcopy` what was packed.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let data = self.external_message().map_or(self.data, |external| external.data.get());
        // SAFETY: by the contracts of `new` and `external` the bytes are valid and not written
        // while this message exists. The result borrows the message, and `keep` takes it by value,
        // so the result is dead before a kept message can return the buffer.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), self.length & !EXTERNAL) }
    }

    /// Splits a message of `am_short` into its header and payload; `None` if it is shorter than a
    /// header.
    #[inline]
    pub fn split_short(&self) -> Option<(u64, &[u8])> {
        let (header, payload) = self.data().split_first_chunk::<SHORT_HEADER>()?;
        Some((u64::from_le_bytes(*header), payload))
    }

    /// Keeps the bytes beyond the handler, in their buffer. They are copied instead over `tcp`, and
    /// if the message is short over `shm`, or of at most 28 bytes over `rc_mlx5`. A kept buffer is
    /// missing from its queue until the result is dropped; a receiver without buffers slows its
    /// senders down, but loses nothing.
    pub fn keep(self) -> KeptMessage {
        if let Some(external) = self.external_message() {
            return external.keeper.keep(external.data.get(), self.data());
        }
        // SAFETY: without the bit `EXTERNAL` the message is from `new`, whose contract says that
        // `data` lies `HEADROOM` bytes behind the start of a buffer, where a keeper was written
        // that lives for `'a`.
        let (start, keeper) = unsafe {
            let start = self.data.sub(HEADROOM);
            (start, start.cast::<NonNull<dyn Keeper + 'a>>().read().as_ref())
        };
        keeper.keep(start, self.data())
    }

    /// As [`Self::keep`], if `decide` returns true. `decide` receives the headroom and the data. The
    /// headroom is [`MESSAGE_HEADROOM`] bytes directly in front of the data, which the handler and
    /// the owner of the kept message may write. It is empty over `tcp` and `shm`, for messages of
    /// at most 28 bytes over `rc_mlx5`, and while so many messages are kept that the receiver would
    /// run out of buffers: copy such a message instead of keeping it, and any number of messages
    /// can be held without slowing senders down.
    ///
    /// ```
    /// fn handler(message: barewire::Message<'_>) {
    ///     let is_final = |data: &[u8]| data.first() == Some(&1);
    ///     let kept = message.keep_if(|headroom, data| {
    ///         if let Some(mark) = headroom.last_mut() {
    ///             *mark = 7;
    ///         }
    ///         !is_final(data) && !headroom.is_empty()
    ///     });
    ///     if let Some(mut kept) = kept {
    ///         assert_eq!(kept.headroom().last(), Some(&7));
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn keep_if(self, decide: impl FnOnce(&mut [u8], &[u8]) -> bool) -> Option<KeptMessage> {
        if self.external_message().is_some() {
            return decide(&mut [], self.data()).then(|| self.keep());
        }
        // SAFETY: as in `keep`.
        let (start, keeper) = unsafe {
            let start = self.data.sub(HEADROOM);
            (start, start.cast::<NonNull<dyn Keeper + 'a>>().read().as_ref())
        };
        let lent = if keeper.lends() { MESSAGE_HEADROOM } else { 0 };
        // SAFETY: the buffer of the message begins `HEADROOM` bytes in front of the data. Its bytes
        // are initialised, and until the message ends, only this function accesses those between the
        // keeper and the data: a keeper that lends has read its header already (contract of
        // `Keeper::lends`). The data is behind them.
        let headroom = unsafe { std::slice::from_raw_parts_mut(start.add(KEEPER).as_ptr(), lent) };
        if !decide(headroom, self.data()) {
            return None;
        }
        let mut kept = keeper.keep(start, self.data());
        if lent > 0 {
            // The pointer of the whole buffer: that of the slice may not write in front of it.
            // SAFETY: the data begins `HEADROOM` bytes behind the start of its buffer.
            let data = unsafe { start.add(HEADROOM) };
            kept.data = NonNull::slice_from_raw_parts(data, kept.data.len());
            kept.headroom = lent;
        }
        Some(kept)
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("data", &self.data()).finish_non_exhaustive()
    }
}

/// The bytes of a message that its handler kept. Dropping it returns the buffer.
#[must_use = "dropping the message gives its buffer back"]
pub struct KeptMessage {
    data: NonNull<[u8]>,
    /// Taken by the drop; `None` if the owner does not want the buffer back.
    buffer: Option<Lease>,
    /// A forked child does not return the buffer.
    maker: Maker,
    /// Bytes in front of the data that were lent: [`MESSAGE_HEADROOM`] or 0.
    headroom: usize,
    owner: Rc<dyn BufferOwner>,
}

impl KeptMessage {
    /// Passes the message to a handler, as if it arrived now. If the handler keeps it, it is
    /// copied.
    ///
    /// ```
    /// fn later(kept: barewire::KeptMessage) {
    ///     kept.handle(|message| println!("{:?}", message.data()));
    /// }
    /// ```
    pub fn handle<R>(&self, handler: impl FnOnce(Message<'_>) -> R) -> R {
        let external = ExternalMessage::new(self.data.cast(), &Copying);
        // SAFETY: the bytes are valid and unwritten until `reclaim`, which only the drop calls, or
        // while `owner` lives (contract of `new`). `self` is borrowed until the handler returns,
        // and the message cannot outlive the call: it is passed by value to a function that knows
        // no lifetime for it, and `keep` copies. `external` is not moved. A message has fewer bytes
        // than `EXTERNAL`.
        handler(unsafe { Message::external(&external, self.len()) })
    }

    /// # Safety
    /// `data` lies in `buffer`, a buffer of `owner`. It stays valid and unwritten until
    /// `owner.reclaim(buffer)` is called, or, without `buffer`, while `owner` lives.
    pub(crate) unsafe fn new(
        data: &[u8],
        buffer: Option<Lease>,
        owner: Rc<dyn BufferOwner>,
    ) -> Self {
        Self { data: NonNull::from(data), buffer, maker: Maker::current(), headroom: 0, owner }
    }

    /// Returns the bytes directly in front of the data that [`Message::keep_if`] lent.
    pub fn headroom(&mut self) -> &mut [u8] {
        // SAFETY: `keep_if` sets a length only together with a pointer of the whole buffer. The bytes
        // lie in front of the data, and only the kept message accesses them, like the data.
        unsafe {
            let start = self.data.cast::<u8>().sub(self.headroom);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.headroom)
        }
    }
}

impl Deref for KeptMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are valid and unwritten until `reclaim`, which only the drop calls, or
        // while `owner` lives (contract of `new`).
        unsafe { self.data.as_ref() }
    }
}

impl Drop for KeptMessage {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take()
            && !self.maker.is_parent()
        {
            self.owner.reclaim(buffer);
        }
    }
}

impl fmt::Debug for KeptMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptMessage").field(&&**self).finish()
    }
}

/// Converts the message being handled into a kept one.
pub(crate) trait Keeper {
    /// Keeps the message. Called at most once per message, with its data and the start of its
    /// buffer.
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage;

    /// Returns whether the bytes between the keeper and the data may be written now and after
    /// [`Self::keep`]: the message would be kept in its buffer, whose header is not read any more,
    /// and the receiver would have enough other buffers.
    fn lends(&self) -> bool {
        false
    }
}

/// The keeper of messages whose place is used again soon: it copies them.
pub(crate) struct Copying;

impl Keeper for Copying {
    #[cold]
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner = Rc::new(Copied(data.into()));
        let data: *const [u8] = &raw const *owner.0;
        // SAFETY: `owner` owns the copy, which is never written.
        unsafe { KeptMessage::new(&*data, None, owner) }
    }
}

struct Copied(Box<[u8]>);

impl BufferOwner for Copied {
    fn reclaim(&self, _: Lease) {}
}

/// The owner of the buffers of kept messages.
pub(crate) trait BufferOwner {
    fn reclaim(&self, buffer: Lease);
}
