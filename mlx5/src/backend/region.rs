//! Memory that the kernel registers (ibv_reg_mr), for both backends of devices of this machine.
//!
//! UMEMs are for rings: the kernel chooses the page size of a UMEM by its DMA addresses, and a
//! device refuses an mkey whose addresses have another offset in such a page.

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use barewire_verbs::{DeviceMemory, MemoryRegion, ProtectionDomain};

use crate::error::{Error, system};
use crate::values::Access;

/// Registers memory that WQEs name by `address`. Returns the region and its key.
///
/// # Safety
/// The contract of [`crate::channel::CommandChannel::register_umem`] holds until the region is
/// deregistered.
pub(crate) unsafe fn register(
    domain: &ProtectionDomain,
    start: NonNull<u8>,
    length: usize,
    address: u64,
    (access, on_demand, relaxed): (Access, bool, bool),
) -> Result<(MemoryRegion, u32), Error> {
    let mut rights = rights(access);
    rights.set(barewire_verbs::Access::ON_DEMAND, on_demand);
    rights.set(barewire_verbs::Access::RELAXED_ORDERING, relaxed);
    // SAFETY: this function has the contract of `register_umem`, which covers that of
    // `register_at`.
    let region = unsafe { MemoryRegion::register_at(domain, start, length, address, rights) };
    with_key(region)
}

/// Registers the whole address space. Returns the region and its key.
///
/// # Safety
/// The contract of [`MemoryRegion::register_address_space`].
pub(crate) unsafe fn register_address_space(
    domain: &ProtectionDomain,
    access: Access,
) -> Result<(MemoryRegion, u32), Error> {
    // SAFETY: this function has the same contract.
    with_key(unsafe { MemoryRegion::register_address_space(domain, rights(access)) })
}

/// Registers `length` bytes at `offset` of a dma-buf, which WQEs name by `address`. Returns the
/// region and its key.
///
/// # Safety
/// The contract of [`MemoryRegion::register_dmabuf`].
pub(crate) unsafe fn register_dma_buf(
    domain: &ProtectionDomain,
    buffer: BorrowedFd<'_>,
    (offset, length): (u64, usize),
    address: u64,
    access: Access,
) -> Result<(MemoryRegion, u32), Error> {
    let rights = rights(access);
    // SAFETY: this function has the same contract.
    with_key(unsafe {
        MemoryRegion::register_dmabuf(domain, buffer, offset, length, address, rights)
    })
}

/// Registers memory on the device. Returns the region and its key.
pub(crate) fn register_on_device(
    domain: &ProtectionDomain,
    memory: &DeviceMemory,
    access: Access,
) -> Result<(MemoryRegion, u32), Error> {
    with_key(memory.register(domain, rights(access)))
}

fn with_key(
    region: Result<MemoryRegion, barewire_verbs::Error>,
) -> Result<(MemoryRegion, u32), Error> {
    let region = region.map_err(|error| system("registering memory", error))?;
    let key = region.local_key();
    // The crate uses one key as lkey and rkey; on mlx5 devices they are equal.
    if key == region.remote_key() {
        return Ok((region, key));
    }
    Err(system("registering memory", "the local and the remote key differ"))
}

/// Deregisters memory. On an error the device may still use it.
pub(crate) fn deregister(mut region: MemoryRegion) -> Result<(), Error> {
    region.deregister().map_err(|error| system("deregistering memory", error))
}

/// The rights as verbs name them.
pub(super) fn rights(access: Access) -> barewire_verbs::Access {
    let mut rights = barewire_verbs::Access::empty();
    for (ours, theirs) in [
        (Access::LOCAL_WRITE, barewire_verbs::Access::LOCAL_WRITE),
        (Access::REMOTE_WRITE, barewire_verbs::Access::REMOTE_WRITE),
        (Access::REMOTE_READ, barewire_verbs::Access::REMOTE_READ),
        (Access::REMOTE_ATOMIC, barewire_verbs::Access::REMOTE_ATOMIC),
    ] {
        rights.set(theirs, access.contains(ours));
    }
    rights
}
