//! Memory on the device (ALLOC_MEMIC), and keys to it.

use barewire_layouts::command::capability::{CapabilityPage, DeviceMemCap, QueryHcaCapOut};
use barewire_layouts::command::memic::{AllocMemicIn, AllocMemicOut};
use barewire_layouts::command::mkey::AccessMode;

use super::capability_page;
use super::memory::{Wanted, create_mkey_of};
use crate::channel::{Command, CommandChannel, Object};
use crate::error::Error;

/// The most bytes that a program can allocate, of a device with the page on such memory.
pub(super) fn device_memory(channel: &dyn CommandChannel) -> Result<u64, Error> {
    let answer = capability_page(channel, CapabilityPage::DeviceMemory)?;
    let page = answer.fields().nested(QueryHcaCapOut::DEVICE_MEM);
    let most = page.get(DeviceMemCap::MAX_MEMIC_SIZE);
    Ok(if page.get(DeviceMemCap::MEMIC) { most.into() } else { 0 })
}

/// Allocates `length` bytes, a multiple of the unit and at most the device's limit. Returns the
/// address.
pub(crate) fn allocate_device_memory(
    channel: &dyn CommandChannel,
    length: usize,
) -> Result<(u64, Box<dyn Object>), Error> {
    let answer = capability_page(channel, CapabilityPage::DeviceMemory)?;
    let page = answer.fields().nested(QueryHcaCapOut::DEVICE_MEM);
    let mut allocate = Command::<AllocMemicIn>::new();
    allocate
        .fields()
        .set(AllocMemicIn::RANGE_START_ADDR, page.get(DeviceMemCap::MEMIC_BAR_START_ADDR))
        .set(AllocMemicIn::RANGE_SIZE, page.get(DeviceMemCap::MEMIC_BAR_SIZE))
        .set(AllocMemicIn::MEMIC_SIZE, length as u32);
    let (object, answer) = allocate.create(channel)?;
    Ok((answer.fields().get(AllocMemicOut::MEMIC_START_ADDR), object))
}

/// Creates an mkey for `length` bytes at `wanted.address`, which [`allocate_device_memory`]
/// returned. WQEs name bytes by their offsets.
pub(crate) fn create_device_key(
    channel: &dyn CommandChannel,
    length: usize,
    wanted: Wanted,
) -> Result<(Box<dyn Object>, u32), Error> {
    create_mkey_of(channel, AccessMode::Memic, length, wanted, |_| {})
}
