//! Why a WQE failed, as its completion says.

use barewire_layouts::cqe::Syndrome;

use crate::memory::TranslationError;

/// The reason of a failed WQE: the bytes 52, 54 and 55 of its error CQE.
///
/// Drivers print them, and users search for what others found behind the same values. They are
/// those of published completions of adapters: see `barewire_layouts::cqe::KnownCause`. A code of 0
/// means that none is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) syndrome: Syndrome,
    pub(super) vendor: u8,
    pub(super) hardware: u8,
}

impl Failure {
    /// A send WQE names an opcode or segments that the device does not execute.
    pub(super) const BAD_WQE: Self = Self::new(Syndrome::LocalQpOperation, 0x68, 0x01);
    /// A UMR is malformed.
    pub(super) const BAD_UMR: Self = Self::new(Syndrome::LocalQpOperation, 0x68, 0x86);
    /// The memory of a send WQE is registered, but cannot be read.
    pub(super) const UNREADABLE: Self = Self::new(Syndrome::LocalProtection, 0x51, 0x02);
    /// The memory of a receive WQE, or of a read, is registered, but cannot be written.
    pub(super) const UNWRITABLE: Self = Self::new(Syndrome::LocalProtection, 0x56, 0xa9);
    /// The list of a UMR is longer than the memory key has room for.
    pub(super) const LONG_LIST: Self = Self::new(Syndrome::MemoryWindowBind, 0x78, 0x0f);
    /// A UMR changes a memory key that is free.
    pub(super) const FREE_KEY: Self = Self::new(Syndrome::MemoryWindowBind, 0x78, 0x08);
    /// The first WQE that is flushed after a command moved its queue pair to the error state.
    pub(super) const FLUSHED_BY_COMMAND: Self = Self::new(Syndrome::WorkRequestFlushed, 0xf5, 0);

    const fn new(syndrome: Syndrome, vendor: u8, hardware: u8) -> Self {
        Self { syndrome, vendor, hardware }
    }

    /// The local memory of a send WQE is not accessible.
    pub(super) fn gathering(error: TranslationError) -> Self {
        match Access::of(error) {
            Access::Key(hardware) => Self::new(Syndrome::LocalProtection, 0x52, hardware),
            Access::Range => Self::new(Syndrome::LocalProtection, 0x53, OUTSIDE),
            Access::Memory => Self::UNREADABLE,
        }
    }

    /// The local memory of a receive WQE, or that of a read or atomic, is not accessible.
    pub(super) fn scattering(error: TranslationError) -> Self {
        match Access::of(error) {
            Access::Key(hardware) => Self::new(Syndrome::LocalProtection, 0x32, hardware),
            Access::Range => Self::new(Syndrome::LocalProtection, 0x33, OUTSIDE),
            Access::Memory => Self::UNWRITABLE,
        }
    }

    /// A WQE behind one that failed with `hardware` is flushed.
    pub(super) fn flushed(hardware: u8) -> Self {
        Self { hardware, ..Syndrome::WorkRequestFlushed.into() }
    }

    /// Returns whether the WQE was flushed.
    pub(super) fn is_flush(self) -> bool {
        self.syndrome == Syndrome::WorkRequestFlushed
    }
}

impl From<Syndrome> for Failure {
    fn from(syndrome: Syndrome) -> Self {
        let vendor = match syndrome {
            Syndrome::LocalLength | Syndrome::LocalQpOperation => 0x68,
            Syndrome::WorkRequestFlushed => 0xf9,
            Syndrome::MemoryWindowBind => 0x78,
            Syndrome::TransportRetryExceeded => 0x81,
            Syndrome::RnrRetryExceeded => 0x87,
            Syndrome::RemoteAccess => 0x88,
            Syndrome::RemoteOperation => 0x89,
            Syndrome::RemoteInvalidRequest => 0x8a,
            _ => 0,
        };
        Self::new(syndrome, vendor, 0)
    }
}

/// Beyond the range of a key, or without the right.
const OUTSIDE: u8 = 0x9d;

/// What is wrong with a local access.
enum Access {
    /// The key does not exist, or is of another protection domain.
    Key(u8),
    /// The key does not grant the access.
    Range,
    /// The memory behind the key cannot be accessed.
    Memory,
}

impl Access {
    fn of(error: TranslationError) -> Self {
        use TranslationError as Error;
        match error {
            Error::UnknownKey { .. } | Error::Free { .. } => Self::Key(0x92),
            Error::ProtectionDomain { .. } | Error::QueuePair { .. } => Self::Key(0x93),
            Error::Rights { .. } | Error::Range { .. } => Self::Range,
            Error::Unmapped { .. } | Error::Absent { .. } | Error::Indirection { .. } => {
                Self::Memory
            }
        }
    }
}
