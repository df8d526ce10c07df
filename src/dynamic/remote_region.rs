//! A peer's memory with its bounds.

use crate::base::address::AddressError;
use crate::base::error::{KeyError, MemoryError};
use crate::dynamic::domain::Domain;
use crate::dynamic::memory::{Memory, RemoteKey};

/// A key and the range of the peer's addresses that it covers.
///
/// Operations take an address and a key. [`at`](Self::at) computes the address from an offset, and
/// checks that the range is inside the region: the peer would reject it as well, but only after the
/// post, and with the end of the connection. A program that checks its offsets itself can keep the
/// address and the key instead; posts cost the same.
///
/// ```
/// use barewire::prelude::*;
///
/// let mut worker = Worker::new();
/// let domain = Domain::open(&"self/memory".parse()?)?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let endpoint = interface.connect(&interface.address())?;
///
/// let memory = domain.allocate(4096, Access::all())?;
/// // Send these bytes to the peer, which unpacks them.
/// let packed = memory.pack_region();
///
/// let region = domain.unpack_region(&packed)?;
/// endpoint.put_short(b"hello", region.at(16, 5)?, region.key())?;
/// assert!(region.at(4092, 5).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RemoteRegion<K = RemoteKey> {
    key: K,
    address: u64,
    length: usize,
}

impl<K> RemoteRegion<K> {
    /// Creates a region of `length` bytes at `address` of the peer's memory, which `key` covers.
    /// `None` if it would end beyond the address space.
    pub fn new(key: K, address: u64, length: usize) -> Option<Self> {
        address.checked_add(length as u64)?;
        Some(Self { key, address, length })
    }

    /// Returns the address of the first byte in the peer's process.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the region has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the key, for posts.
    #[inline]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the address of `length` bytes at `offset`, for posts.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] if they are not all inside the region.
    #[inline]
    pub fn at(&self, offset: usize, length: usize) -> Result<u64, MemoryError> {
        if offset > self.length || length > self.length - offset {
            return Err(MemoryError::OutOfRange { offset, length, region: self.length });
        }
        // It does not overflow: the end of the region does not (`new`).
        Ok(self.address + offset as u64)
    }

    /// Returns the part of `length` bytes at `offset`, with the same key.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] if it is not inside the region.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, MemoryError>
    where
        K: Clone,
    {
        Ok(Self { key: self.key.clone(), address: self.at(offset, length)?, length })
    }
}

impl Memory {
    /// Returns the bytes from which a peer creates its [`RemoteRegion`]: address and length in 8
    /// bytes each, least significant byte first, then [`pack_key`](Self::pack_key).
    pub fn pack_region(&self) -> Vec<u8> {
        let range = [self.address(), self.len() as u64].map(u64::to_le_bytes);
        [&range.concat()[..], &self.pack_key()].concat()
    }
}

impl Domain {
    /// Creates a region from the bytes of the peer's [`Memory::pack_region`]. See
    /// [`unpack_key`](Self::unpack_key) for its key.
    pub fn unpack_region(&self, bytes: &[u8]) -> Result<RemoteRegion, KeyError> {
        let truncated = || AddressError::Truncated { got: bytes.len(), need: 16 };
        let (address, rest) = bytes.split_first_chunk().ok_or_else(truncated)?;
        let (length, key) = rest.split_first_chunk().ok_or_else(truncated)?;
        let (address, length) = (u64::from_le_bytes(*address), u64::from_le_bytes(*length));
        let key = self.unpack_key(key)?;
        usize::try_from(length)
            .ok()
            .and_then(|length| RemoteRegion::new(key, address, length))
            .ok_or(KeyError::Range { address, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::memory::Access;

    #[test]
    fn the_bounds_are_those_of_the_region() {
        let region = RemoteRegion::new((), 0x1000, 64).unwrap();
        for (offset, length) in [(0, 0), (0, 64), (63, 1), (64, 0)] {
            assert_eq!(region.at(offset, length).ok(), Some(0x1000 + offset as u64));
        }
        for (offset, length) in
            [(0, 65), (64, 1), (65, 0), (usize::MAX, 2), (2, usize::MAX), (usize::MAX, usize::MAX)]
        {
            let error = region.at(offset, length).unwrap_err().to_string();
            let expected = MemoryError::OutOfRange { offset, length, region: 64 }.to_string();
            assert_eq!(error, expected);
        }
        let part = region.slice(16, 32).unwrap();
        assert_eq!((part.address(), part.len()), (0x1010, 32));
        assert_eq!(part.at(32, 0).ok(), Some(0x1030));
        assert!(part.at(32, 1).is_err() && region.slice(33, 32).is_err());
    }

    #[test]
    fn the_last_address_is_no_overflow() {
        let region = RemoteRegion::new((), u64::MAX - 64, 64).unwrap();
        assert_eq!(region.at(64, 0).ok(), Some(u64::MAX));
        assert!(RemoteRegion::new((), u64::MAX - 63, 64).is_none());
    }

    #[test]
    fn bytes_of_a_peer_are_checked() {
        let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
        let memory = domain.allocate(100, Access::all()).unwrap();
        let packed = memory.pack_region();
        let region = domain.unpack_region(&packed).unwrap();
        assert_eq!((region.address(), region.len()), (memory.address(), memory.len()));
        for length in 0..packed.len() {
            assert!(domain.unpack_region(&packed[..length]).is_err(), "{length} bytes");
        }
        let mut far = packed;
        far[..8].fill(0xff);
        let length = memory.len() as u64;
        assert_eq!(
            domain.unpack_region(&far).unwrap_err(),
            KeyError::Range { address: u64::MAX, length }
        );
    }
}
