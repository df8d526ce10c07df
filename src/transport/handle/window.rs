//! Windows of transports whose keys are entries of a table in this process.

#![expect(
    private_bounds,
    private_interfaces,
    reason = "sealed: the transports are this crate's own"
)]

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

use super::poster::Poster;
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, MemoryError, PostError};
use crate::base::memory::Access;
use crate::base::status::Posted;
use crate::transport;
use crate::transport::handle::{Endpoint, EndpointState as _, States};

/// A domain whose keys are entries of a table in this process, which end at any time.
pub(crate) trait KeyTable: transport::Domain {
    type Transport: States;
    /// An entry, which has a key.
    type Entry: Debug;

    /// Returns the tag of the domain, of an endpoint's domain and of a region's.
    fn tag(&self) -> u32;
    fn tag_of_endpoint(endpoint: &Endpoint<Self::Transport>) -> u32;
    fn tag_of_memory(memory: &Self::Memory) -> u32;

    /// Returns the rights with which memory was registered.
    fn access(memory: &Self::Memory) -> Access;

    /// Ends every access by the entry's key.
    fn close(&self, entry: &Self::Entry);

    /// Returns whether the entry's key gives access: a message of a peer may have ended it.
    fn is_open(_entry: &Self::Entry) -> bool {
        true
    }

    /// Returns the bytes of the entry's key.
    fn pack(&self, entry: &Self::Entry) -> Vec<u8>;
}

/// A domain whose keys can be those of parts of regions.
pub(crate) trait PartTable: KeyTable {
    /// Opens `range` of `memory`, which lies inside.
    fn open_part(
        &self,
        memory: &Self::Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Self::Entry, ChangeError>;
}

/// Checks that `range` is inside `memory`, which is of the domain with `tag` and has the rights
/// `needs`. Returns its length.
pub(super) fn checked<D: KeyTable>(
    tag: u32,
    memory: &D::Memory,
    range: &Range<usize>,
    needs: Access,
) -> Result<usize, ChangeError> {
    if D::tag_of_memory(memory) != tag {
        return Err(PostError::ForeignMemory.into());
    }
    let region = transport::Memory::len(memory);
    let length = range.end.wrapping_sub(range.start);
    if range.start > range.end || range.end > region {
        return Err(MemoryError::OutOfRange { offset: range.start, length, region }.into());
    }
    if length == 0 || length > i32::MAX as usize {
        return Err(ChangeError::Length(length as u64));
    }
    let lacks = needs - D::access(memory);
    if lacks.is_empty() { Ok(length) } else { Err(ChangeError::Rights(lacks)) }
}

/// A memory window. As [`crate::Window`].
#[derive(Debug)]
#[must_use = "dropping it ends the peer's access"]
pub struct Window<'m, D: PartTable> {
    domain: D,
    bound: Option<Bound<D::Entry>>,
    memory: PhantomData<&'m D::Memory>,
}

#[derive(Debug)]
struct Bound<E> {
    entry: E,
    address: u64,
    poster: Poster,
}

impl<'m, D: PartTable> Window<'m, D> {
    /// Creates a window, which is free.
    pub fn new(domain: &D) -> Self {
        Self { domain: domain.clone(), bound: None, memory: PhantomData }
    }

    /// As [`crate::Window::bind`].
    pub fn bind(
        &mut self,
        endpoint: &Endpoint<D::Transport>,
        memory: &'m D::Memory,
        range: Range<usize>,
        access: Access,
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        endpoint.0.posting().check()?;
        if self.bound().is_some() {
            return Err(ChangeError::Bound);
        }
        self.end();
        let tag = self.domain.tag();
        if D::tag_of_endpoint(endpoint) != tag {
            return Err(PostError::ForeignMemory.into());
        }
        // As on devices, the rights of a window are its own, but writes need memory that may be
        // written: by this process or by all peers.
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let is_writable = D::access(memory).intersects(writes);
        let needs = if access.intersects(writes) && !is_writable {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        checked::<D>(tag, memory, &range, needs)?;
        let address = transport::Memory::address(memory).wrapping_add(range.start as u64);
        let entry = self.domain.open_part(memory, range, access & Access::all())?;
        self.bound = Some(Bound { entry, address, poster: Poster::of(endpoint) });
        Ok(Posted::Done)
    }

    /// As [`crate::Window::invalidate`].
    pub fn invalidate(
        &mut self,
        endpoint: &Endpoint<D::Transport>,
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let bound = self.bound.as_ref().filter(|bound| D::is_open(&bound.entry));
        let bound = bound.ok_or(ChangeError::Free)?;
        if !bound.poster.has_ended() {
            if !bound.poster.is(&Poster::of(endpoint)) {
                return Err(ChangeError::OtherEndpoint);
            }
            endpoint.0.posting().check()?;
        }
        self.end();
        Ok(Posted::Done)
    }

    /// Returns the binding, unless the peer or the end of the endpoint that bound it has ended it.
    fn bound(&self) -> Option<&Bound<D::Entry>> {
        self.bound.as_ref().filter(|bound| D::is_open(&bound.entry) && !bound.poster.has_ended())
    }

    fn end(&mut self) {
        if let Some(Bound { entry, .. }) = self.bound.take() {
            self.domain.close(&entry);
        }
    }

    /// As [`crate::Window::address`].
    pub fn address(&self) -> Option<u64> {
        self.bound().map(|bound| bound.address)
    }

    /// As [`crate::Window::pack_key`].
    pub fn pack_key(&self) -> Option<Vec<u8>> {
        self.bound().map(|bound| self.domain.pack(&bound.entry))
    }
}

impl<D: PartTable> Drop for Window<'_, D> {
    fn drop(&mut self) {
        self.end();
    }
}
