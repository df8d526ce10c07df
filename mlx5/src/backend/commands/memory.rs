//! Memory keys (CREATE_MKEY).

use core::ptr::NonNull;

use barewire_layouts::command::mkey::{
    self, ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, Mkc,
};
use barewire_layouts::prm::ViewMut;

use crate::channel::{Command, CommandChannel, Object, Umem};
use crate::error::Error;
use crate::pages::PAGE;
use crate::values::Access;

/// An mkey and the UMEM that it refers to.
#[derive(Debug)]
pub(crate) struct Key {
    object: Box<dyn Object>,
    umem: Box<dyn Umem>,
}

impl Key {
    /// Destroys the mkey and deregisters the memory. On an error the device may still use the
    /// memory.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        drop(self.object);
        self.umem.deregister()
    }
}

/// The fields of a new key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The number of the protection domain.
    pub(crate) domain: u32,
    /// Of the first byte, as WQEs name it.
    pub(crate) address: u64,
    pub(crate) access: Access,
    /// Writes may be reordered on the bus.
    pub(crate) relaxed: bool,
    /// The low byte of the key.
    pub(crate) variant: u8,
}

/// Registers memory and creates an mkey for it.
///
/// # Safety
/// The contract of [`CommandChannel::register_umem`] holds until [`Key::release`] has returned
/// `Ok`.
pub(crate) unsafe fn create_key(
    channel: &dyn CommandChannel,
    start: NonNull<u8>,
    length: usize,
    wanted: Wanted,
) -> Result<(Key, u32), Error> {
    // SAFETY: this function has the contract of `register_umem`.
    let mut umem = unsafe { channel.register_umem(start, length) }?;
    match create_mkey(channel, &*umem, length, wanted) {
        Ok((object, key)) => Ok((Key { object, umem }, key)),
        Err(error) => {
            // No mkey refers to the UMEM yet, so this succeeds. If not, the first error is the one
            // to report.
            let _ = umem.deregister();
            Err(error)
        }
    }
}

/// Creates an mkey for the whole address space. The address of `wanted` is not used.
///
/// # Safety
/// The contract of [`CommandChannel::register_address_space`] holds until [`Key::release`] has
/// returned `Ok`.
pub(crate) unsafe fn create_address_space_key(
    channel: &dyn CommandChannel,
    wanted: Wanted,
) -> Result<(Key, u32), Error> {
    // SAFETY: this function has the contract of `register_address_space`.
    let (mut umem, range) = unsafe { channel.register_address_space() }?;
    let length = (range.end - range.start) as usize;
    // The translations are not entries of a list: the device requests pages by their addresses.
    let made =
        create_mkey_with(channel, &*umem, length, Wanted { address: range.start, ..wanted }, 0);
    match made {
        Ok((object, key)) => Ok((Key { object, umem }, key)),
        Err(error) => {
            // As in `create_key`.
            let _ = umem.deregister();
            Err(error)
        }
    }
}

fn create_mkey(
    channel: &dyn CommandChannel,
    umem: &dyn Umem,
    length: usize,
    wanted: Wanted,
) -> Result<(Box<dyn Object>, u32), Error> {
    // A translation entry has 8 bytes; the device counts octwords of 16.
    let first_page = wanted.address / PAGE as u64;
    let last_page = (wanted.address + length as u64 - 1) / PAGE as u64;
    let octwords = (last_page - first_page + 1).div_ceil(2) as u32;
    create_mkey_with(channel, umem, length, wanted, octwords)
}

fn create_mkey_with(
    channel: &dyn CommandChannel,
    umem: &dyn Umem,
    length: usize,
    wanted: Wanted,
    octwords: u32,
) -> Result<(Box<dyn Object>, u32), Error> {
    create_mkey_of(channel, AccessMode::Mtt, length, wanted, |mut create| {
        create
            .set(CreateMkeyIn::MKEY_UMEM_VALID, true)
            .set(CreateMkeyIn::MKEY_UMEM_ID, umem.id())
            .set(CreateMkeyIn::MKEY_UMEM_OFFSET, 0)
            .set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords)
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords)
            .set(Mkc::LOG_PAGE_SIZE, PAGE.ilog2() as u8);
    })
}

/// Creates an mkey of `length` bytes at `wanted.address`, whose other fields `fill` sets.
pub(super) fn create_mkey_of(
    channel: &dyn CommandChannel,
    mode: AccessMode,
    length: usize,
    Wanted { domain, address, access, relaxed, variant }: Wanted,
    fill: impl FnOnce(ViewMut<'_, CreateMkeyIn>),
) -> Result<(Box<dyn Object>, u32), Error> {
    let mut create = Command::<CreateMkeyIn>::new();
    fill(create.fields());
    create
        .fields()
        .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::ACCESS_MODE_4_2, mode as u8 >> 2)
        .set(Mkc::ACCESS_MODE_1_0, mode as u8 & 3)
        .set(Mkc::LR, true)
        .set(Mkc::LW, access.contains(Access::LOCAL_WRITE))
        .set(Mkc::RR, access.contains(Access::REMOTE_READ))
        .set(Mkc::RW, access.contains(Access::REMOTE_WRITE))
        .set(Mkc::A, access.contains(Access::REMOTE_ATOMIC))
        .set(Mkc::RELAXED_ORDERING_WRITE, relaxed)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, variant)
        .set(Mkc::PD, domain)
        .set(Mkc::START_ADDR, address)
        .set(Mkc::LEN, length as u64);
    let (object, answer) = create.create(channel)?;
    Ok((object, mkey::key(answer.fields().get(CreateMkeyOut::MKEY_INDEX), variant)))
}

/// Creates a free mkey with room for `entries` ranges of other keys, which WQEs fill. Sends of
/// peers may invalidate it if `ends_by_send`.
pub(crate) fn create_list_key(
    channel: &dyn CommandChannel,
    domain: u32,
    entries: u32,
    ends_by_send: bool,
    relaxed: bool,
    variant: u8,
) -> Result<(Box<dyn Object>, u32), Error> {
    let mut create = Command::<CreateMkeyIn>::new();
    create
        .fields()
        .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::FREE, true)
        .set(Mkc::UMR_EN, true)
        .set(Mkc::EN_RINVAL, ends_by_send)
        .set(Mkc::ACCESS_MODE_1_0, AccessMode::Klm as u8)
        .set(Mkc::LR, true)
        .set(Mkc::RELAXED_ORDERING_WRITE, relaxed)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, variant)
        .set(Mkc::PD, domain)
        // A range or a repetition has an octword.
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, entries);
    let (object, answer) = create.create(channel)?;
    Ok((object, mkey::key(answer.fields().get(CreateMkeyOut::MKEY_INDEX), variant)))
}
