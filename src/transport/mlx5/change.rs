//! Windows and views: keys that posts of an endpoint change.

use std::ops::Range;
use std::ptr::NonNull;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::memory::{self as device, ChangeError as Refused};
use barewire_mlx5::queue::send::MAX_WQE_BLOCKS;
use barewire_mlx5::request::MAX_RANGES;
use barewire_mlx5::{self as mlx5, ControlFlags, MemoryRegion, WqeIndex};
use barewire_shared_bytes::SharedBytes;

use super::post::NO_FLAGS;
use super::requests::Requests;
use super::{Domain, KEYS, Memory};
use crate::base::address::{Kind, Packed};
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, MemoryError, PostError};
use crate::base::interleaved::{Interleaved, MAX_ENTRIES};
use crate::base::memory::{Access, Slice};
use crate::base::status::Posted;
use crate::transport::common::operation::Done;
use crate::transport::common::registered::{Domain as _, device_access};
use crate::transport::handle::poster::Poster;
use crate::transport::{handle, rc};

const _: () = assert!(MAX_ENTRIES == MAX_RANGES, "views have the same room over all transports");

/// A send queue of the driver.
pub(in crate::transport) type Queue = mlx5::SendQueue<Adaptive>;
/// The result of posting a change.
pub(in crate::transport) type Changing = Result<WqeIndex, Refused>;

/// An endpoint whose send queue changes keys.
pub(in crate::transport) trait ChangesKeys {
    /// Returns whether windows that it binds are for its peer only. Otherwise they are for every
    /// peer of the domain: requests of peers arrive at other queue pairs than the one that binds.
    fn has_own_windows(&self) -> bool;

    /// Posts a change of a key of the domain with `tag`, for which later posts of this endpoint
    /// wait. `run` calls a posting function of the driver and nothing else.
    fn change_key(
        &self,
        tag: u32,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut Queue, ControlFlags) -> Changing,
    ) -> Result<Posted, ChangeError>;

    /// Refers to the endpoint.
    fn poster(&self) -> Poster;
}

impl<D: rc::Driver<Queue: Requests> + handle::States<State = rc::State<D>>> ChangesKeys
    for rc::Endpoint<D>
{
    fn has_own_windows(&self) -> bool {
        D::has_own_windows(&self.0)
    }

    fn change_key(
        &self,
        tag: u32,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut Queue, ControlFlags) -> Changing,
    ) -> Result<Posted, ChangeError> {
        self.0.posting.check()?;
        if tag != self.0.shared.tag {
            return Err(PostError::ForeignMemory.into());
        }
        let flags = if completion.is_some() { ControlFlags::COMPLETION } else { NO_FLAGS };
        let posted = self.0.with_queue(|queue| queue.change_key(|queue| run(queue, flags)));
        let WqeIndex(index) =
            posted.map_err(|error| reason(&error, || self.0.refuse_full(MAX_WQE_BLOCKS)))?;
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    fn poster(&self) -> Poster {
        Poster::of(self)
    }
}

/// Posts a change by `run`, for which the next post to the queue waits.
#[inline]
pub(in crate::transport) fn fenced(
    queue: &mut Queue,
    run: impl FnOnce(&mut Queue) -> Changing,
) -> Changing {
    let posted = run(queue);
    if posted.is_ok() {
        queue.fence();
    }
    posted
}

/// Returns the error of the driver as one of this library. `full` is called for a full queue.
pub(in crate::transport) fn reason(
    error: &Refused,
    full: impl FnOnce() -> PostError,
) -> ChangeError {
    match *error {
        Refused::Post(mlx5::PostError::QueueFull) => full().into(),
        Refused::Post(mlx5::PostError::TooLong) => {
            PostError::TooManySlices { limit: MAX_RANGES as u32 }.into()
        }
        Refused::Range(mlx5::memory::OutOfBounds { offset, length, size }) => {
            MemoryError::OutOfRange { offset, length, region: size }.into()
        }
        Refused::Length(length) => ChangeError::Length(length),
        Refused::Rights(rights) => ChangeError::Rights(lacking(rights)),
        Refused::Domain => PostError::ForeignMemory.into(),
        Refused::Bound => ChangeError::Bound,
        Refused::Free => ChangeError::Free,
        Refused::QueuePair(_) => ChangeError::OtherEndpoint,
        Refused::Entries { got, room } => ChangeError::Entries { got, room: room as usize },
        Refused::Wide(bytes) => ChangeError::Wide(bytes),
        error => ChangeError::Key(error.into()),
    }
}

fn lacking(rights: mlx5::Access) -> Access {
    rights.iter_names().filter_map(|(name, _)| Access::from_name(name)).collect()
}

fn region(memory: &Memory) -> Result<&MemoryRegion, ChangeError> {
    // Deregistered memory is consumed, so there is none without a region.
    memory.region().ok_or(ChangeError::Post(PostError::KeyExpired))
}

fn refused(error: mlx5::Error) -> ChangeError {
    ChangeError::Key(error.into())
}

/// Creates a free window: for one peer if `is_own`, otherwise for every peer of the domain.
fn create<'m>(domain: &Domain, is_own: bool) -> Result<device::Window<'m>, ChangeError> {
    let domain = domain.protection();
    let made =
        if is_own { device::Window::create(domain) } else { device::Window::create_shared(domain) };
    made.map_err(refused)
}

fn packed(key: u32) -> Vec<u8> {
    Packed::new(Kind::Key, KEYS, &key.to_be_bytes()).bytes().to_vec()
}

/// A memory window of the device: for the peer of an endpoint of `rc_mlx5` (type 2), or for every
/// peer of the domain (type 1). As [`crate::Window`].
#[derive(Debug)]
#[must_use = "dropping it ends the peer's access"]
pub struct Window<'m> {
    inner: device::Window<'m>,
    domain: Domain,
    /// The endpoint that posted the last change.
    poster: Option<Poster>,
}

impl<'m> Window<'m> {
    /// Creates a window, which is free.
    pub fn new(domain: &Domain) -> Result<Self, ChangeError> {
        Self::of(domain, true)
    }

    /// As [`Self::new`], for endpoints of `xrc_mlx5` and `dc_mlx5`: the first bind takes no
    /// command.
    pub fn new_shared(domain: &Domain) -> Result<Self, ChangeError> {
        Self::of(domain, false)
    }

    fn of(domain: &Domain, is_own: bool) -> Result<Self, ChangeError> {
        let inner = create(domain, is_own)?;
        domain.revoked().add(inner.index());
        Ok(Self { inner, domain: domain.clone(), poster: None })
    }

    /// Changes the mkey by `renew`.
    fn renew(
        &mut self,
        renew: impl FnOnce(&mut device::Window<'m>, &Domain) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let revoked = self.domain.revoked();
        // The old index may be reused as soon as its mkey is destroyed.
        let noted = revoked.remove(self.inner.index());
        let renewed = renew(&mut self.inner, &self.domain);
        revoked.add(self.inner.index());
        if let (Err(_), Some(key)) = (&renewed, noted) {
            revoked.note(key);
        }
        renewed
    }

    /// Replaces a free key by one that the endpoint can bind.
    fn become_bindable(&mut self, is_own: bool) -> Result<(), ChangeError> {
        if self.inner.is_shared() != is_own {
            return Ok(());
        }
        if self.inner.remote().is_some() {
            return Err(ChangeError::Bound);
        }
        self.renew(|inner, domain| {
            *inner = create(domain, is_own)?;
            Ok(())
        })
    }

    /// Returns whether the endpoint of the last change has ended.
    fn is_abandoned(&self) -> bool {
        self.poster.as_ref().is_some_and(Poster::has_ended)
    }

    /// Returns whether the window was bound, and neither this process nor the peer invalidated it
    /// since.
    fn is_bound(&self) -> bool {
        let is_open = |remote: mlx5::RemoteMemory| !self.domain.revoked().contains(remote.key);
        self.inner.remote().is_some_and(is_open)
    }

    /// Frees the window if the peer invalidated it, or if the endpoint of the last change has
    /// ended: the device may not have carried out that change.
    fn settle(&mut self) -> Result<(), ChangeError> {
        if self.is_abandoned() {
            self.renew(|inner, _| inner.renew().map_err(refused))?;
            self.poster = None;
        }
        if let Some(remote) = self.inner.remote()
            && self.domain.revoked().contains(remote.key)
        {
            self.inner.invalidated(remote.key);
        }
        Ok(())
    }

    /// As [`crate::Window::bind`].
    pub fn bind<E: ChangesKeys>(
        &mut self,
        endpoint: &E,
        memory: &'m Memory,
        range: Range<usize>,
        access: Access,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        self.settle()?;
        let is_own = endpoint.has_own_windows();
        self.become_bindable(is_own)?;
        let (region, access) = (region(memory)?, device_access(access));
        let inner = &mut self.inner;
        let posted = endpoint.change_key(self.domain.tag(), completion, |queue, flags| {
            if is_own {
                inner.bind(queue, region, range, access, flags)
            } else {
                inner.bind_shared(queue, region, range, access, flags)
            }
        })?;
        self.domain.revoked().forget(self.inner.index());
        self.poster = Some(endpoint.poster());
        Ok(posted)
    }

    /// As [`crate::Window::invalidate`].
    pub fn invalidate<E: ChangesKeys>(
        &mut self,
        endpoint: &E,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let (is_abandoned, was_bound) = (self.is_abandoned(), self.is_bound());
        self.settle()?;
        if !was_bound {
            return Err(ChangeError::Free);
        }
        if is_abandoned {
            return Ok(Posted::Done);
        }
        // The bind may wait in the queue of the endpoint that posted it.
        let poster = endpoint.poster();
        if self.poster.as_ref().is_some_and(|binder| !binder.is(&poster)) {
            return Err(ChangeError::OtherEndpoint);
        }
        let inner = &mut self.inner;
        endpoint.change_key(self.domain.tag(), completion, |queue, flags| {
            inner.invalidate(queue, flags)
        })
    }

    fn remote(&self) -> Option<mlx5::RemoteMemory> {
        self.inner.remote().filter(|_| !self.is_abandoned() && self.is_bound())
    }

    /// As [`crate::Window::address`].
    pub fn address(&self) -> Option<u64> {
        self.remote().map(|remote| remote.address)
    }

    /// As [`crate::Window::pack_key`].
    pub fn pack_key(&self) -> Option<Vec<u8>> {
        self.remote().map(|remote| packed(remote.key))
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let _ = self.domain.revoked().remove(self.inner.index());
    }
}

/// Ranges of memory under one key. As [`crate::View`].
#[derive(Debug)]
#[must_use = "dropping it destroys the key"]
pub struct View<'m> {
    inner: device::View<'m>,
    /// The range of addresses, without memory: transports that copy slices refuse those of views.
    range: SharedBytes,
    tag: u32,
}

impl<'m> View<'m> {
    /// As [`crate::View::new`].
    pub fn new(domain: &Domain, entries: usize) -> Result<Self, ChangeError> {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let inner = device::View::create(domain.protection(), entries).map_err(refused)?;
        let range = SharedBytes::at(NonNull::dangling(), 0, 0);
        Ok(Self { inner, range, tag: domain.tag() })
    }

    /// As [`crate::View::join`].
    pub fn join(
        &mut self,
        endpoint: &impl ChangesKeys,
        access: Access,
        ranges: impl IntoIterator<Item = (&'m Memory, Range<usize>)>,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let of = |(memory, range)| Ok((region(memory)?, range));
        let ranges = ranges.into_iter().map(of).collect::<Result<Vec<_>, ChangeError>>()?;
        endpoint.change_key(self.tag, completion, |queue, flags| {
            self.inner.join(queue, device_access(access), &ranges, flags)
        })
    }

    /// As [`crate::View::interleave`].
    pub fn interleave(
        &mut self,
        endpoint: &impl ChangesKeys,
        access: Access,
        ranges: impl IntoIterator<Item = Interleaved<'m, Memory>>,
        repeat: u32,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let of = |Interleaved { memory, offset, bytes, stride }| {
            Ok(device::Interleaved { memory: region(memory)?, offset, bytes, stride })
        };
        let ranges = ranges.into_iter().map(of).collect::<Result<Vec<_>, ChangeError>>()?;
        endpoint.change_key(self.tag, completion, |queue, flags| {
            self.inner.interleave(queue, device_access(access), &ranges, repeat, flags)
        })
    }

    /// As [`crate::View::len`].
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// As [`crate::View::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// As [`crate::View::slice`].
    pub fn slice(&self, offset: usize, length: usize) -> Result<Slice<'_>, MemoryError> {
        let region = usize::try_from(self.inner.len()).unwrap_or(usize::MAX);
        if offset.checked_add(length).is_none_or(|end| end > region) {
            return Err(MemoryError::OutOfRange { offset, length, region });
        }
        let key = self.inner.to_remote().key;
        let (address, domain, memory) = (offset as u64, self.tag, &self.range);
        Ok(Slice { address, length, key, domain, memory })
    }

    /// As [`crate::View::pack_key`].
    pub fn pack_key(&self) -> Vec<u8> {
        packed(self.inner.to_remote().key)
    }
}
