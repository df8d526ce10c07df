//! Memory keys: the memory that a WQE or packet may access, and its rights.

use std::fmt;

use barewire_layouts::command::mkey;
use bitflags::bitflags;

use super::indirect::Backing;

bitflags! {
    /// Rights of a memory key (mkc.lr, lw, rr, rw, a).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Access: u8 {
        /// Local reads: gather.
        const LOCAL_READ = 1 << 0;
        /// Local writes: scatter.
        const LOCAL_WRITE = 1 << 1;
        /// Remote reads.
        const REMOTE_READ = 1 << 2;
        /// Remote writes.
        const REMOTE_WRITE = 1 << 3;
        /// Remote atomics.
        const REMOTE_ATOMIC = 1 << 4;
    }
}

impl Access {
    /// The rights that change memory.
    pub(crate) const WRITES: Self =
        Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);

    /// The rights required of the keys below an indirect one. A peer's rights come from the key
    /// that it names: so a memory window opens a region that peers cannot access directly (IBTA
    /// 10.6.7.2.4).
    pub(super) fn behind(self) -> Self {
        let mut need = Self::empty();
        need.set(Self::LOCAL_READ, self.intersects(Self::LOCAL_READ.union(Self::REMOTE_READ)));
        need.set(Self::LOCAL_WRITE, self.intersects(Self::WRITES));
        need
    }
}

/// The user of a memory key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// Protection domain.
    pub(crate) pd: u32,
    /// The queue pair.
    pub(crate) qpn: u32,
}

/// A memory key.
#[derive(Clone, Debug)]
pub(crate) struct Mkey {
    /// The device's part of the key: its index.
    pub(crate) index: u32,
    /// The driver's byte of the key.
    pub(crate) variant: u8,
    /// The key is allocated but gives no access.
    pub(crate) free: bool,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The only queue pair that may use it, or [`mkey::ANY_QPN`].
    pub(crate) qpn: u32,
    /// Address of the first byte in WQEs and packets.
    pub(crate) start: u64,
    /// Bytes covered.
    pub(crate) length: u64,
    /// The key covers every address, whatever `length` is.
    pub(crate) whole: bool,
    /// Rights.
    pub(crate) access: Access,
    /// Whether WQEs may change it.
    pub(crate) updatable: bool,
    /// Whether a peer's send may invalidate it.
    pub(crate) remote_invalidate: bool,
    /// Relaxed ordering is allowed. The device keeps the order anyway.
    pub(crate) relaxed: (bool, bool),
    /// The memory that it maps to.
    pub(crate) backing: Backing,
}

impl Mkey {
    /// Returns the lkey and rkey.
    pub(crate) fn key(&self) -> u32 {
        mkey::key(self.index, self.variant)
    }

    /// Checks an access and returns its offset in the key.
    pub(crate) fn check(
        &self,
        key: u32,
        user: User,
        address: u64,
        length: u64,
        need: Access,
    ) -> Result<u64, TranslationError> {
        self.admit(key, user, need)?;
        self.offset(key, address, length)
    }

    /// Checks an access, wherever it is in the key.
    pub(super) fn admit(
        &self,
        key: u32,
        User { pd, qpn }: User,
        need: Access,
    ) -> Result<(), TranslationError> {
        if self.key() != key {
            return Err(TranslationError::UnknownKey { key });
        }
        if self.free {
            return Err(TranslationError::Free { key });
        }
        if self.pd != pd {
            return Err(TranslationError::ProtectionDomain { key, pd, of_key: self.pd });
        }
        if self.qpn != mkey::ANY_QPN && self.qpn != qpn {
            return Err(TranslationError::QueuePair { key, qpn, of_key: self.qpn });
        }
        let missing = need - self.access;
        if !missing.is_empty() {
            return Err(TranslationError::Rights { key, missing });
        }
        Ok(())
    }

    /// Returns the offset of a range in the key.
    fn offset(&self, key: u32, address: u64, length: u64) -> Result<u64, TranslationError> {
        let outside = TranslationError::Range {
            key,
            address,
            length,
            start: self.start,
            covered: self.length,
        };
        if self.whole {
            // Every address, but the access does not go on at 0 behind the last one.
            let last = address.checked_add(length.saturating_sub(1));
            return last.map(|_| address.wrapping_sub(self.start)).ok_or(outside);
        }
        let offset = address.checked_sub(self.start).ok_or(outside)?;
        let end = offset.checked_add(length).ok_or(outside)?;
        if end > self.length {
            return Err(outside);
        }
        Ok(offset)
    }
}

/// Why an access was refused. The engine chooses the CQE or NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TranslationError {
    /// The key does not exist, or its low byte differs.
    UnknownKey { key: u32 },
    /// The key is free.
    Free { key: u32 },
    /// The key belongs to another protection domain.
    ProtectionDomain { key: u32, pd: u32, of_key: u32 },
    /// The key belongs to another queue pair.
    QueuePair { key: u32, qpn: u32, of_key: u32 },
    /// The key does not grant this.
    Rights { key: u32, missing: Access },
    /// The key has no translation for the range.
    Unmapped { key: u32 },
    /// Pages are absent, which the kernel can bring in.
    Absent { key: u32 },
    /// Indirect keys are nested too deeply, or map to too many ranges.
    Indirection { key: u32 },
    /// The range is not within the key's.
    Range { key: u32, address: u64, length: u64, start: u64, covered: u64 },
}

impl fmt::Display for TranslationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownKey { key } => write!(f, "there is no memory key {key:#010x}"),
            Self::Free { key } => write!(f, "memory key {key:#010x} is free"),
            Self::ProtectionDomain { key, pd, of_key } => {
                write!(
                    f,
                    "memory key {key:#010x} is of protection domain {of_key}, the queue pair of {pd}"
                )
            }
            Self::QueuePair { key, qpn, of_key } => {
                write!(f, "memory key {key:#010x} is of queue pair {of_key:#x}, not of {qpn:#x}")
            }
            Self::Rights { key, missing } => write!(f, "memory key {key:#010x} lacks {missing:?}"),
            Self::Unmapped { key } => {
                write!(f, "memory key {key:#010x} has no translation for the range")
            }
            Self::Absent { key } => {
                write!(f, "pages of memory key {key:#010x} are absent")
            }
            Self::Indirection { key } => {
                write!(
                    f,
                    "memory key {key:#010x} is too many indirect keys deep, or in too many ranges"
                )
            }
            Self::Range { key, address, length, start, covered } => write!(
                f,
                "{length} bytes at {address:#x} are not inside memory key {key:#010x}, {covered} bytes at {start:#x}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u32 = 0x0012_3456;
    const USER: User = User { pd: 2, qpn: 7 };

    fn mkey() -> Mkey {
        Mkey {
            index: KEY >> 8,
            variant: KEY as u8,
            free: false,
            pd: 2,
            qpn: mkey::ANY_QPN,
            start: 0x1000,
            length: 0x100,
            whole: false,
            access: Access::LOCAL_READ | Access::REMOTE_READ,
            updatable: false,
            remote_invalidate: false,
            relaxed: (false, false),
            backing: Backing::Nothing,
        }
    }

    #[test]
    fn the_range_is_exact() {
        let check = |address, length| mkey().check(KEY, USER, address, length, Access::LOCAL_READ);
        assert_eq!(check(0x1000, 0x100), Ok(0));
        assert_eq!(check(0x10ff, 1), Ok(0xff));
        assert_eq!(check(0x1100, 0), Ok(0x100));
        for (address, length) in
            [(0xfff, 1), (0x10ff, 2), (0x1100, 1), (0, u64::MAX), (0x1001, u64::MAX), (u64::MAX, 1)]
        {
            assert!(
                matches!(check(address, length), Err(TranslationError::Range { .. })),
                "{address:#x}+{length:#x}"
            );
        }
    }

    #[test]
    fn key_byte_domain_and_rights_are_checked() {
        let check = |key, pd, need| mkey().check(key, User { pd, qpn: 0 }, 0x1000, 1, need);
        assert_eq!(
            check(KEY ^ 1, 2, Access::LOCAL_READ),
            Err(TranslationError::UnknownKey { key: KEY ^ 1 })
        );
        assert!(matches!(
            check(KEY, 3, Access::LOCAL_READ),
            Err(TranslationError::ProtectionDomain { .. })
        ));
        let wanted = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(
            check(KEY, 2, wanted),
            Err(TranslationError::Rights { key: KEY, missing: Access::REMOTE_WRITE })
        );
        let free = Mkey { free: true, ..mkey() };
        assert_eq!(
            free.check(KEY, USER, 0x1000, 1, Access::LOCAL_READ),
            Err(TranslationError::Free { key: KEY })
        );
    }

    #[test]
    fn a_key_may_be_of_one_queue_pair() {
        let bound = |qpn| Mkey { qpn, ..mkey() }.check(KEY, USER, 0x1000, 1, Access::LOCAL_READ);
        assert_eq!(bound(7), Ok(0));
        assert_eq!(bound(8), Err(TranslationError::QueuePair { key: KEY, qpn: 7, of_key: 8 }));
    }

    #[test]
    fn keys_behind_a_key_answer_to_the_device() {
        assert_eq!(Access::REMOTE_READ.behind(), Access::LOCAL_READ);
        for right in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::LOCAL_WRITE] {
            assert_eq!(right.behind(), Access::LOCAL_WRITE);
        }
    }
}
