//! Memory of other devices, by the descriptor of its dma-buf: the dynamic API.

use std::os::fd::BorrowedFd;

use crate::base::attributes::Flags;
use crate::base::error::MemoryError;
use crate::base::memory::{MemoryConfig, Slice};
use crate::dynamic::address_space::Kind;
use crate::dynamic::domain::{self, Domain};
use crate::transport::common::address_space::Keys;

/// Registered memory of another device, such as a GPU. Peers and slices use it like any memory; this
/// process does not map it.
///
/// It exists over the transports with [`Flags::DMA_BUF`], if the kernel (5.12 or later) and the
/// device support it.
#[derive(Debug)]
#[must_use = "dropping it deregisters the memory"]
pub struct DmaBuf {
    keys: Kind,
    address: u64,
    length: usize,
}

impl Domain {
    /// Registers `length` bytes at `offset` of a dma-buf. Peers name the first byte by the address
    /// of `config`, or by `offset`; both have the same offset in a page.
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] names the transports that register dma-bufs;
    /// [`MemoryError::Empty`]; [`MemoryError::DmaBuf`] if the descriptor is no dma-buf, the range is
    /// not inside, or the kernel or the device refused. The software HCA refuses all.
    ///
    /// # Safety
    /// Until [`DmaBuf::deregister`] has returned `Ok`, all users of the dma-buf, in this process and
    /// on its device, access the bytes only in ways that tolerate another device which reads and, as
    /// far as the rights of `config` allow, writes them.
    pub unsafe fn register_dma_buf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<DmaBuf, MemoryError> {
        let config = config.into();
        if length == 0 {
            return Err(MemoryError::Empty);
        }
        let keys = match &self.0 {
            #[cfg(feature = "mlx5")]
            domain::Kind::RcMlx5(domain)
            | domain::Kind::XrcMlx5(domain)
            | domain::Kind::DcMlx5(domain) => {
                // SAFETY: the caller's promise.
                let keys =
                    unsafe { Keys::register_dma_buf(domain, buffer, offset, length, config) };
                Kind::Mlx5(keys?)
            }
            #[cfg(feature = "verbs")]
            domain::Kind::RcVerbs(domain) => {
                // SAFETY: the caller's promise.
                let keys =
                    unsafe { Keys::register_dma_buf(domain, buffer, offset, length, config) };
                Kind::Verbs(keys?)
            }
            _ => return Err(self.lacks(Flags::DMA_BUF, "registration of dma-bufs")),
        };
        Ok(DmaBuf { keys, address: config.address_or(offset), length })
    }
}

impl DmaBuf {
    /// Returns the address of the first byte, as peers name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "regions have at least one byte")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns a range of the memory for zero-copy operations.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Slice<'_>, MemoryError> {
        if length > self.length || offset > self.length - length {
            return Err(MemoryError::OutOfRange { offset, length, region: self.length });
        }
        Ok(self.keys.slice(self.address + offset as u64, length))
    }

    /// Returns the bytes from which a peer creates its [`RemoteKey`](crate::RemoteKey).
    pub fn pack_key(&self) -> Vec<u8> {
        self.keys.pack_key()
    }

    /// Deregisters the memory. After `Ok` no key reaches it.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused, and may still access the memory.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.keys.deregister()
    }
}
