//! Active messages as their handlers receive them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::error::PostError;
use crate::fork::Maker;
use crate::transport::common::pool::Lease;

/// Active-message ids per interface.
pub const MAX_HANDLERS: u8 = 32;
/// Bytes of the header that `am_short` puts before the payload.
pub const SHORT_HEADER: usize = size_of::<u64>();

/// # Errors
/// [`PostError::UnknownHandlerId`]
#[inline(always)]
pub(crate) fn check_id(id: u8) -> Result<(), PostError> {
    if id < MAX_HANDLERS { Ok(()) } else { Err(PostError::UnknownHandlerId(id)) }
}

/// A message as its handler sees it. Its bytes are borrowed from it: they are valid until the
/// handler returns, and longer only as a [`KeptMessage`], which [`Self::keep`] makes of it.
///
/// A slice of the message does not outlive a call of `keep`, as the buffer is reused when the kept
/// message is dropped:
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
/// The kept message is read in its place:
///
/// ```
/// fn handler(message: barewire::Message<'_>) {
///     println!("{:?}", message.data());
///     let kept = message.keep();
///     println!("{:?}", &kept[..]);
/// }
/// ```
// Two words, so that it reaches the handler in registers.
pub struct Message<'a> {
    /// First byte, [`HOME`] bytes behind the start of its buffer; or an [`Elsewhere`].
    data: NonNull<u8>,
    /// With [`ELSEWHERE`], if that is what `data` points to.
    length: usize,
    buffer: PhantomData<&'a [u8]>,
}

/// Bytes in front of a message's data: who keeps it ([`write_home`]), and what a transport puts before the data.
pub(crate) const HOME: usize = 24;

const ELSEWHERE: usize = 1 << (usize::BITS - 1);

/// A message whose data has no home in front, as another process could write it: where the data is, and who keeps it.
pub(crate) struct Elsewhere<'a> {
    data: NonNull<u8>,
    keeper: &'a dyn Keeper,
}

impl<'a> Elsewhere<'a> {
    pub(crate) fn new(data: NonNull<u8>, keeper: &'a dyn Keeper) -> Self {
        Self { data, keeper }
    }
}

/// Notes in a buffer that starts at `start` who keeps a message whose data lies [`HOME`] bytes behind.
///
/// # Safety
/// `start` is valid for writes of 16 bytes and aligned to 8.
pub(crate) unsafe fn write_home(start: NonNull<u8>, keeper: &dyn Keeper) {
    // SAFETY: the caller's contract; the lifetime is that of `Message::new`.
    unsafe { start.cast::<NonNull<dyn Keeper + '_>>().write(NonNull::from(keeper)) };
}

impl<'a> Message<'a> {
    /// # Safety
    /// `data` lies [`HOME`] bytes behind the start of a buffer whose home was written with a keeper
    /// that lives for `'a`. It is valid for reads of `length` bytes. Until `'a` ends, or the kept
    /// message that the keeper returns is dropped, these bytes are not written.
    #[inline(always)]
    pub(crate) unsafe fn new(data: NonNull<u8>, length: usize) -> Self {
        Self { data, length, buffer: PhantomData }
    }

    /// # Safety
    /// The data of `place` is valid for reads of `length` bytes, fewer than half the address space.
    /// Until `'a` ends, or the kept message that the keeper returns is dropped, these bytes are not
    /// written.
    #[inline(always)]
    pub(crate) unsafe fn elsewhere(place: &'a Elsewhere<'_>, length: usize) -> Self {
        Self { data: NonNull::from(place).cast(), length: length | ELSEWHERE, buffer: PhantomData }
    }

    #[inline(always)]
    fn place(&self) -> Option<&Elsewhere<'a>> {
        // SAFETY: the contract of `elsewhere`: with this bit, it was made there.
        (self.length & ELSEWHERE != 0).then(|| unsafe { self.data.cast().as_ref() })
    }

    /// Everything that was sent: for `am_short` the 8-byte header and the payload, for `am_zcopy` the header
    /// and the slices, for `am_bcopy` what was packed.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let data = self.place().map_or(self.data, |place| place.data);
        // SAFETY: by the contracts of `new` and `elsewhere` the bytes are valid and not written while
        // this message exists. The result borrows the message, and `keep` takes it by value, so that
        // the result is dead before a kept message can give the buffer back.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), self.length & !ELSEWHERE) }
    }

    /// A message of `am_short` as its header and payload; `None` if it is shorter than a header.
    #[inline]
    pub fn split_short(&self) -> Option<(u64, &[u8])> {
        let (header, payload) = self.data().split_first_chunk::<SHORT_HEADER>()?;
        Some((u64::from_le_bytes(*header), payload))
    }

    /// Keeps the bytes beyond the handler, without copying them but over `tcp`. The receive buffer is missing from its queue
    /// until the result is dropped; a receiver out of buffers slows its senders down and loses nothing.
    pub fn keep(self) -> KeptMessage {
        if let Some(place) = self.place() {
            return place.keeper.keep(place.data, self.data());
        }
        // SAFETY: the contract of `new`.
        let (start, keeper) = unsafe {
            let start = self.data.sub(HOME);
            (start, start.cast::<NonNull<dyn Keeper + 'a>>().read().as_ref())
        };
        keeper.keep(start, self.data())
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("data", &self.data()).finish_non_exhaustive()
    }
}

/// Bytes of a message that its handler kept. Dropping it gives the buffer back.
#[must_use = "dropping the message gives its buffer back"]
pub struct KeptMessage {
    data: NonNull<[u8]>,
    /// Taken when it is dropped; `None` if the owner has no use for it any more.
    buffer: Option<Lease>,
    /// A child by fork gives nothing back.
    maker: Maker,
    owner: Rc<dyn Reclaim>,
}

impl KeptMessage {
    /// # Safety
    /// `data` lies in `buffer`, a buffer of `owner`, and stays valid and unwritten until `owner.reclaim(buffer)` is
    /// called, or, if it is not to be given back, while `owner` lives.
    pub(crate) unsafe fn new(data: &[u8], buffer: Option<Lease>, owner: Rc<dyn Reclaim>) -> Self {
        Self { data: NonNull::from(data), buffer, maker: Maker::current(), owner }
    }
}

impl Deref for KeptMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: valid and unwritten until `reclaim`, by the contract of `new`.
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

/// Turns the message being handled into a kept one.
pub(crate) trait Keeper {
    /// Called once per message, if at all, with its data and the start of its buffer.
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage;
}

/// Takes the buffer of a kept message back.
pub(crate) trait Reclaim {
    fn reclaim(&self, buffer: Lease);
}
