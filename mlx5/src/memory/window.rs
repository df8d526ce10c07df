//! Memory windows: access to part of a region for a time, of one peer (type 2) or of every peer of
//! the protection domain (type 1).

use core::marker::PhantomData;
use core::ops::Range;

use barewire_layouts::wqe::ControlFlags;

use super::change::{ChangeError, checked};
use super::list_key::ListKey;
use super::{MemoryRegion, RemoteMemory};
use crate::context::ProtectionDomain;
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::queue::send::{SendQueue, WqeIndex};
use crate::request::{Bind, Binding, Unbind};
use crate::values::Access;

/// A memory window: a key that opens part of a region to the peer of one queue pair, until it is
/// invalidated. Binding it and invalidating it are work requests, not commands.
///
/// A window of [`Self::create_shared`] opens it to every peer of the protection domain instead.
///
/// Each bind has a new key ([`Self::remote`]). Once the bind is complete, the peer may use it.
/// Access outside the range, after the invalidation, or through another queue pair moves both queue
/// pairs to error. Dropping the window destroys the key.
///
/// The window borrows the memory, which therefore cannot be deregistered before it:
///
/// ```compile_fail,E0505
/// use barewire_mlx5::memory::Window;
/// use barewire_mlx5::{Access, Buffer, ControlFlags, ProtectionDomain, SendQueue};
///
/// fn open(domain: &ProtectionDomain, queue: &mut SendQueue, memory: Buffer) {
///     let mut window = Window::create(domain).unwrap();
///     let access = Access::REMOTE_READ;
///     window.bind(queue, memory.region(), 0..64, access, ControlFlags::COMPLETION).unwrap();
///     drop(memory);
///     window.invalidate(queue, ControlFlags::COMPLETION).unwrap();
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it destroys the key"]
pub struct Window<'m> {
    key: ListKey,
    is_shared: bool,
    bound: Option<Bound>,
    memory: PhantomData<&'m MemoryRegion>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    /// `None`: every queue pair of the domain may use it.
    queue_pair: Option<u32>,
    start: u64,
    length: u64,
}

impl<'m> Window<'m> {
    /// Creates a window for the peer of one queue pair, which is free. This peer may invalidate it
    /// by a send ([`Self::invalidated`]).
    ///
    /// # Errors
    /// If the device refused.
    pub fn create(domain: &ProtectionDomain) -> Result<Self, Error> {
        Self::of(domain, false)
    }

    /// Creates a window for every peer of the protection domain (libmlx5: type 1), which is free.
    /// It is bound by [`Self::bind_shared`]. The device refuses a send that invalidates it:
    /// otherwise one peer could end the access of all.
    ///
    /// # Errors
    /// If the device refused.
    pub fn create_shared(domain: &ProtectionDomain) -> Result<Self, Error> {
        Self::of(domain, true)
    }

    fn of(domain: &ProtectionDomain, is_shared: bool) -> Result<Self, Error> {
        let key = ListKey::create(domain, 1, !is_shared)?;
        Ok(Self { key, is_shared, bound: None, memory: PhantomData })
    }

    /// Returns the index of its mkey, the upper 24 bits of its keys. It is the same for every bind,
    /// until the window is [renewed](Self::renew).
    #[inline]
    pub fn index(&self) -> u32 {
        self.key.key() >> 8
    }

    /// Returns whether it is for every peer of the protection domain.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Posts the bind of the window to `range` of `memory`, with the rights `access` for the peer
    /// of the queue pair. Peers address the range as they address the memory. The next WQE must wait
    /// for the change: post it with [`ControlFlags::SMALL_FENCE`] or [`ControlFlags::FENCE`].
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    #[inline]
    pub fn bind<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        memory: &'m MemoryRegion,
        range: Range<usize>,
        access: Access,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        let start = memory.address().wrapping_add(range.start as u64);
        self.bind_at::<_, false>(queue, memory, range, start, access, flags)
    }

    /// Like [`Self::bind`], for a window of [`Self::create_shared`]: opens the range to every peer
    /// of the protection domain that has the key. Queue pairs that only send, of DC and XRC, have
    /// no other windows: their peers' requests arrive at other queue pairs.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    pub fn bind_shared<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        memory: &'m MemoryRegion,
        range: Range<usize>,
        access: Access,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        let start = memory.address().wrapping_add(range.start as u64);
        self.bind_at::<_, true>(queue, memory, range, start, access, flags)
    }

    /// Like [`Self::bind`], but peers address the range from 0.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    #[inline]
    pub fn bind_zero_based<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        memory: &'m MemoryRegion,
        range: Range<usize>,
        access: Access,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        self.bind_at::<_, false>(queue, memory, range, 0, access, flags)
    }

    #[inline]
    fn bind_at<D: Doorbell, const SHARED: bool>(
        &mut self,
        queue: &mut SendQueue<D>,
        memory: &'m MemoryRegion,
        range: Range<usize>,
        start: u64,
        access: Access,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        if self.is_shared != SHARED {
            return Err(ChangeError::Sharing);
        }
        if self.bound.is_some() {
            return Err(ChangeError::Bound);
        }
        // The rights of a window are its own, but writes need memory that may be written.
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let needs = if access.intersects(writes) { Access::LOCAL_WRITE } else { Access::empty() };
        let range = checked(self.key.domain(), memory, &range, needs)?;
        let key = self.key.next();
        let access = access - Access::LOCAL_WRITE;
        let binding = Binding { range, start, access };
        let bind = Bind { free: self.key.key(), key, binding, is_shared: SHARED };
        let index = queue.post(bind, flags)?;
        self.key.changed(key);
        let queue_pair = (!SHARED).then(|| queue.qpn());
        let length = range.byte_count.get().into();
        self.bound = Some(Bound { queue_pair, start, length });
        Ok(index)
    }

    /// The memory as the peer addresses it; `None` while the window is free. The peer may use it
    /// once the bind is complete.
    #[inline]
    pub fn remote(&self) -> Option<RemoteMemory> {
        let Bound { start, length, .. } = self.bound?;
        Some(RemoteMemory { address: start, length, key: self.key.key() })
    }

    /// Posts the end of the peer's access. After its completion the device refuses the key. The next
    /// WQE must wait for it, as after [`Self::bind`]. `queue` is of the queue pair that bound the
    /// window. After [`Self::bind_shared`] it may be another of the domain, once the bind is
    /// complete: otherwise the invalidation may fail, and the bind take effect after it.
    ///
    /// # Errors
    /// [`ChangeError`]: nothing was posted.
    #[inline]
    pub fn invalidate<D: Doorbell>(
        &mut self,
        queue: &mut SendQueue<D>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, ChangeError> {
        let Some(bound) = self.bound else { return Err(ChangeError::Free) };
        let is_shared = match bound.queue_pair {
            None => true,
            Some(own) if own == queue.qpn() => false,
            Some(other) => return Err(ChangeError::QueuePair(other)),
        };
        let index = queue.post(Unbind { key: self.key.key(), is_shared }, flags)?;
        self.bound = None;
        Ok(index)
    }

    /// Ends the peer's access by a command, and frees the window, whatever its state: after a queue
    /// pair has failed, it is unknown which of its binds and invalidations took effect. The window
    /// gets another key.
    ///
    /// # Errors
    /// If the device refused. The window is unchanged.
    pub fn renew(&mut self) -> Result<(), Error> {
        self.key = ListKey::create(self.key.domain(), 1, !self.is_shared)?;
        self.bound = None;
        Ok(())
    }

    /// Notes that the peer invalidated `key` by a send: what a completion reports as
    /// [`CompletionKind::ReceiveInvalidate`]. Returns whether it is the key of this window, which is
    /// then free.
    ///
    /// [`CompletionKind::ReceiveInvalidate`]: crate::CompletionKind::ReceiveInvalidate
    pub fn invalidated(&mut self, key: u32) -> bool {
        let is_own = self.bound.is_some() && self.key.key() == key;
        if is_own {
            self.bound = None;
        }
        is_own
    }
}
