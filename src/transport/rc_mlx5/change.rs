//! Windows and views: keys that posts of an endpoint change.

use std::ops::Range;
use std::ptr::NonNull;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::memory::{self as device, ChangeError as Refused};
use barewire_mlx5::queue::send::MAX_WQE_BLOCKS;
use barewire_mlx5::{self as mlx5, ControlFlags, MemoryRegion, WqeIndex};
use barewire_shared_bytes::SharedBytes;

use super::post::NO_FLAGS;
use super::{Domain, Endpoint, ID, Memory};
use crate::address::{Kind, Packed};
use crate::completion::Completion;
use crate::error::{ChangeError, MemoryError, PostError};
use crate::memory::{Access, Slice};
use crate::status::Posted;
use crate::transport::common::operation::Done;
use crate::transport::common::registered::{Domain as _, device_access};
use crate::view::Interleaved;

impl Endpoint {
    /// Posts a change of a key of the domain with `tag`, for which later posts of this endpoint
    /// wait.
    fn change_key(
        &self,
        tag: u32,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut mlx5::SendQueue<Adaptive>, ControlFlags) -> Result<WqeIndex, Refused>,
    ) -> Result<Posted, ChangeError> {
        self.0.posting.check()?;
        if tag != self.0.shared.tag {
            return Err(PostError::ForeignMemory.into());
        }
        let flags = if completion.is_some() { ControlFlags::COMPLETION } else { NO_FLAGS };
        let posted = self.0.with_queue(|pair| {
            let posted = run(&mut pair.send, flags);
            if posted.is_ok() {
                pair.send.fence();
            }
            posted
        });
        let WqeIndex(index) = match posted {
            Ok(index) => index,
            Err(Refused::Post(_)) => return Err(self.0.refuse_full(MAX_WQE_BLOCKS).into()),
            Err(error) => return Err(reason(&error)),
        };
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }
}

/// Returns the error of the driver as one of this library.
fn reason(error: &Refused) -> ChangeError {
    match *error {
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
        // The caller handles refused posts.
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

fn packed(key: u32) -> Vec<u8> {
    Packed::new(Kind::Key, ID, &key.to_be_bytes()).bytes().to_vec()
}

/// A memory window of the device (type 2). As [`crate::Window`].
#[derive(Debug)]
#[must_use = "dropping it ends the peer's access"]
pub struct Window<'m> {
    inner: device::Window<'m>,
    tag: u32,
}

impl<'m> Window<'m> {
    /// Creates a window, which is free.
    ///
    /// # Errors
    /// [`ChangeError::Key`]
    pub fn new(domain: &Domain) -> Result<Self, ChangeError> {
        let inner = device::Window::create(domain.protection()).map_err(refused)?;
        Ok(Self { inner, tag: domain.tag() })
    }

    /// As [`crate::Window::bind`].
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn bind(
        &mut self,
        endpoint: &Endpoint,
        memory: &'m Memory,
        range: Range<usize>,
        access: Access,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let (region, access) = (region(memory)?, device_access(access));
        endpoint.change_key(self.tag, completion, |queue, flags| {
            self.inner.bind(queue, region, range, access, flags)
        })
    }

    /// As [`crate::Window::invalidate`].
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn invalidate(
        &mut self,
        endpoint: &Endpoint,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        endpoint
            .change_key(self.tag, completion, |queue, flags| self.inner.invalidate(queue, flags))
    }

    /// As [`crate::Window::address`].
    pub fn address(&self) -> Option<u64> {
        self.inner.remote().map(|remote| remote.address)
    }

    /// As [`crate::Window::pack_key`].
    pub fn pack_key(&self) -> Option<Vec<u8>> {
        self.inner.remote().map(|remote| packed(remote.key))
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
    ///
    /// # Errors
    /// [`ChangeError::Key`]
    pub fn new(domain: &Domain, entries: usize) -> Result<Self, ChangeError> {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let inner = device::View::create(domain.protection(), entries).map_err(refused)?;
        let range = SharedBytes::at(NonNull::dangling(), 0, 0);
        Ok(Self { inner, range, tag: domain.tag() })
    }

    /// As [`crate::View::join`].
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn join(
        &mut self,
        endpoint: &Endpoint,
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
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn interleave(
        &mut self,
        endpoint: &Endpoint,
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
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]
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
