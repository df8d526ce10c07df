//! Windows of `self`: keys to parts of memory, for a time.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::Endpoint;
use super::domain::{Domain, Memory, Region};
use crate::completion::Completion;
use crate::error::{ChangeError, MemoryError, PostError};
use crate::memory::Access;
use crate::status::Posted;

/// A memory window. As [`crate::Window`].
#[derive(Debug)]
#[must_use = "dropping it ends the peer's access"]
pub struct Window<'m> {
    domain: Domain,
    bound: Option<Bound>,
    memory: PhantomData<&'m Memory>,
}

#[derive(Debug)]
struct Bound {
    id: u64,
    region: Arc<Region>,
    address: u64,
}

impl<'m> Window<'m> {
    /// Creates a window, which is free.
    pub fn new(domain: &Domain) -> Self {
        Self { domain: domain.clone(), bound: None, memory: PhantomData }
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
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        endpoint.0.posting.check()?;
        if self.bound.is_some() {
            return Err(ChangeError::Bound);
        }
        let (tag, length) = (self.domain.tag(), range.end.wrapping_sub(range.start));
        if [endpoint.tag(), memory.domain()] != [tag; 2] {
            return Err(PostError::ForeignMemory.into());
        }
        if range.start > range.end || range.end > memory.len() {
            let (offset, region) = (range.start, memory.len());
            return Err(MemoryError::OutOfRange { offset, length, region }.into());
        }
        if length == 0 || length > i32::MAX as usize {
            return Err(ChangeError::Length(length as u64));
        }
        // As on devices, the rights of a window are its own, but writes need memory that may be
        // written.
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !memory.access().intersects(writes | Access::LOCAL_WRITE) {
            return Err(ChangeError::Rights(Access::LOCAL_WRITE));
        }
        let address = memory.address() + range.start as u64;
        let (id, region) = memory.open(range, access);
        self.bound = Some(Bound { id, region, address });
        Ok(Posted::Done)
    }

    /// As [`crate::Window::invalidate`].
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn invalidate(
        &mut self,
        endpoint: &Endpoint,
        _completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        endpoint.0.posting.check()?;
        let Bound { id, region, .. } = self.bound.take().ok_or(ChangeError::Free)?;
        self.domain.close(id, &region);
        Ok(Posted::Done)
    }

    /// As [`crate::Window::address`].
    pub fn address(&self) -> Option<u64> {
        self.bound.as_ref().map(|bound| bound.address)
    }

    /// As [`crate::Window::pack_key`].
    pub fn pack_key(&self) -> Option<Vec<u8>> {
        self.bound.as_ref().map(|bound| self.domain.pack(bound.id))
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if let Some(Bound { id, region, .. }) = self.bound.take() {
            self.domain.close(id, &region);
        }
    }
}
