//! Error numbers of calls, as the C library stores them in `errno`.

use barewire_hca::{CommandSyndrome, UmemError};
use barewire_layouts::command::{CommandError, CommandStatus};

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// A value is out of its range or contradicts another.
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    /// No object has this handle.
    pub(crate) const NO_ENTRY: Self = Self(libc::ENOENT);
    /// Something still uses the object.
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// The method does not exist or does not support an attribute.
    pub(crate) const UNKNOWN: Self = Self(libc::EPROTONOSUPPORT);
    /// The device does not support the operation.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// The memory is not mapped, or not with the required rights.
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    /// The descriptor is of the wrong kind.
    pub(crate) const BAD_DESCRIPTOR: Self = Self(libc::EBADF);
    /// The buffer is too small.
    pub(crate) const NO_SPACE: Self = Self(libc::ENOSPC);
    /// Out of resources.
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// The device was removed or has failed.
    pub(crate) const IO: Self = Self(libc::EIO);
    /// The device was removed.
    pub(crate) const NO_DEVICE: Self = Self(libc::ENODEV);
    /// A DEVX command failed; its output has the syndrome.
    pub(crate) const REMOTE: Self = Self(libc::EREMOTEIO);

    /// Returns the calling thread's `errno`.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<CommandError> for Errno {
    /// Converts a command's status as mlx5_core does (linux cmd.c: `cmd_status_to_err`).
    fn from(error: CommandError) -> Self {
        let errno = match error.status {
            Ok(CommandStatus::ResourceBusy) => Self::BUSY,
            Ok(CommandStatus::LimitExceeded) => Self::NO_MEMORY,
            Ok(CommandStatus::NoResources | CommandStatus::NotReady) => Self(libc::EAGAIN),
            Ok(
                CommandStatus::BadOperation
                | CommandStatus::BadParameter
                | CommandStatus::BadResource
                | CommandStatus::BadResourceState
                | CommandStatus::BadIndex
                | CommandStatus::BadQpState
                | CommandStatus::BadPacket
                | CommandStatus::BadSize,
            ) => Self::INVALID,
            _ => Self::IO,
        };
        match CommandSyndrome::from_bits(error.syndrome) {
            Some(syndrome) => errno.because(format_args!("{}: {syndrome}", error.opcode)),
            None => errno.because(error),
        }
    }
}

impl From<UmemError> for Errno {
    fn from(error: UmemError) -> Self {
        let errno = match error {
            UmemError::BadRange { .. } | UmemError::Unknown { .. } => Self::INVALID,
            UmemError::NoResources { .. } => Self::NO_MEMORY,
            UmemError::Busy { .. } => Self::BUSY,
            UmemError::Stopped => Self::IO,
        };
        errno.because(error)
    }
}
