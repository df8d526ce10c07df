//! How memory is registered.

use std::ptr::NonNull;

use barewire_shared_bytes::SharedBytes;

use crate::base::error::MemoryError;
use crate::base::memory::Access;

/// The unit in which addresses are translated. Devices translate by pages, whatever page size the
/// kernel has; the other transports follow, so that a program runs over all of them.
const PAGE: u64 = 4096;

/// How memory is registered. [`Access`] rights alone convert to it.
///
/// ```
/// use barewire::{Access, Domain, MemoryConfig};
///
/// let domain = Domain::open(&"self/memory".parse()?)?;
/// let memory = domain.allocate(4096, MemoryConfig::new(Access::all()).zero_based())?;
/// assert_eq!(memory.address(), 0, "peers name bytes by their offsets");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it describes a registration"]
pub struct MemoryConfig {
    access: Access,
    address: Option<u64>,
    on_demand: bool,
}

impl MemoryConfig {
    /// Memory whose bytes have the same addresses for peers as in this process.
    pub fn new(access: Access) -> Self {
        Self { access: access & Access::all(), address: None, on_demand: false }
    }

    /// Peers name the first byte by `address` (an I/O virtual address, IOVA), which must have the
    /// same offset in a page of 4096 bytes as the memory. [`Memory::address`](crate::Memory::address)
    /// returns it. Allocated memory starts at a page.
    pub fn at(mut self, address: u64) -> Self {
        self.address = Some(address);
        self
    }

    /// Peers name bytes by their offsets. The memory must start at a page, as allocated memory does.
    pub fn zero_based(self) -> Self {
        self.at(0)
    }

    /// The kernel need not keep the pages of the memory resident: a device requests them when it
    /// accesses them (on-demand paging). Over `rc_verbs` and `ud_verbs`, and over the mlx5
    /// transports set up by `init_obj`, the registration fails if the device cannot do that.
    /// Elsewhere it changes nothing: DEVX pins the pages, the software HCA and the transports
    /// without a device never do.
    pub fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// The rights.
    pub fn access(self) -> Access {
        self.access
    }

    /// Returns the address for peers, `own` by default.
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
    pub(crate) fn address_or(self, own: u64) -> u64 {
        self.address.unwrap_or(own)
    }

    pub(crate) fn is_on_demand(self) -> bool {
        self.on_demand
    }

    /// Returns the `len` bytes at `start`, with the addresses that peers use.
    pub(crate) fn bytes(self, start: NonNull<u8>, len: usize) -> Result<SharedBytes, MemoryError> {
        let here = start.addr().get() as u64;
        let address = self.address.unwrap_or(here);
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        if address.checked_add(len as u64).is_none() || !(address ^ here).is_multiple_of(PAGE) {
            return Err(MemoryError::Address { address, length: len, offset: here % PAGE });
        }
        Ok(SharedBytes::at(start, len, address))
    }
}

impl From<Access> for MemoryConfig {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_page_offset_of_the_memory() {
        let start = NonNull::new(std::ptr::without_provenance_mut(0x5010)).unwrap();
        let config = MemoryConfig::new(Access::REMOTE_READ);
        let address = |config: MemoryConfig| config.bytes(start, 16).map(|bytes| bytes.address());
        assert_eq!(address(config).unwrap(), 0x5010);
        assert_eq!(address(config.at(0xffff_ffff_ffff_f010)).unwrap(), 0xffff_ffff_ffff_f010);
        let refused = address(config.zero_based()).unwrap_err();
        assert!(matches!(refused, MemoryError::Address { address: 0, length: 16, offset: 0x10 }));
        assert!(matches!(config.bytes(start, 0), Err(MemoryError::Empty)));
        assert!(config.at(0xffff_ffff_ffff_f010).bytes(start, 0xff0).is_err(), "ends at 2^64");
    }
}
