//! CREATE_MKEY, QUERY_MKEY, DESTROY_MKEY.

use barewire_layouts::command::klm::Klm;
use barewire_layouts::command::mkey::{
    AccessMode, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc, QueryMkeyIn, QueryMkeyOut,
};
use barewire_layouts::prm::{Field, View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::limits;
use crate::memory::{Access, Backing, Memory, Mkey, Ranges, Refused};

/// Returns the access rights of the context.
const RIGHTS: [(Field<Mkc, bool>, Access); 5] = [
    (Mkc::LR, Access::LOCAL_READ),
    (Mkc::LW, Access::LOCAL_WRITE),
    (Mkc::RR, Access::REMOTE_READ),
    (Mkc::RW, Access::REMOTE_WRITE),
    (Mkc::A, Access::REMOTE_ATOMIC),
];

/// Bytes of the unit of translations.
const OCTWORD: usize = size_of::<Klm>();

/// PRM: CREATE_MKEY. A key of memory on the device (MEMIC) covers what ALLOC_MEMIC allocated. A
/// direct key (MTT) covers a umem (`mkey_umem_id`; the valid bit is for the kernel and ignored). An
/// indirect key (KLM, KSM) has its list in a umem or, without one, in `list`, which follows the
/// request; the list is read once, here.
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateMkeyIn>,
    list: &[u8],
    mut output: ViewMut<'_, CreateMkeyOut>,
) -> Outcome {
    let context = input.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let mode = AccessMode::try_from(
        context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0),
    )
    .map_err(|_| CommandSyndrome::MkeyMode)?;
    let whole = context.get(Mkc::LENGTH64);
    if whole && matches!(mode, AccessMode::Mtt | AccessMode::Memic) {
        return Err(CommandSyndrome::MkeyWhole);
    }
    if objects.requirements.relaxed_keys && !context.get(Mkc::RELAXED_ORDERING_WRITE) {
        return Err(CommandSyndrome::MkeyOrder);
    }
    let (start, length) = (context.get(Mkc::START_ADDR), context.get(Mkc::LEN));
    // The length does not matter to a key over all addresses.
    let length = if whole { 0 } else { length };
    // One past the last byte may be 2^64.
    if length > 0 && start.checked_add(length - 1).is_none() {
        return Err(CommandSyndrome::MkeyAddress);
    }
    let granted = RIGHTS.iter().filter(|(bit, _)| context.get(*bit)).map(|(_, right)| *right);
    let access = granted.fold(Access::empty(), Access::union);
    let backing = match mode {
        AccessMode::Memic => {
            let found = objects.memory.allocated_on_device(start, length);
            let (id, offset) = found.ok_or(CommandSyndrome::MkeyDeviceMemory)?;
            Backing::Umem { id, offset }
        }
        AccessMode::Mtt => direct(&objects.memory, input, length, access)?,
        AccessMode::Klm | AccessMode::Ksm => indirect(&objects.memory, input, list, mode, length)?,
        _ => return Err(CommandSyndrome::MkeyMode),
    };
    let umem = if let Backing::Umem { id, .. } = backing { Some(id) } else { None };
    let on_device = mode == AccessMode::Memic;
    let pd_number = context.get(Mkc::PD);
    let pd = objects.pds.get_mut(pd_number).ok_or(CommandSyndrome::UnknownPd)?;
    let (index, _) = objects
        .memory
        .mkeys
        .insert_with(|index| Mkey {
            index,
            variant: context.get(Mkc::MKEY_7_0),
            free: context.get(Mkc::FREE),
            pd: pd_number,
            qpn: context.get(Mkc::QPN),
            // WQEs name bytes of memory on the device by their offsets.
            start: if on_device { 0 } else { start },
            length,
            whole,
            access,
            // A WQE must not extend the key to other memory of the device.
            updatable: context.get(Mkc::UMR_EN) && !on_device,
            remote_invalidate: context.get(Mkc::EN_RINVAL),
            relaxed: (
                context.get(Mkc::RELAXED_ORDERING_READ),
                context.get(Mkc::RELAXED_ORDERING_WRITE),
            ),
            backing,
        })
        .ok_or(CommandSyndrome::NoMkeys)?;
    pd.users += 1;
    if let Some(umem) = umem {
        objects.memory.hold(umem);
    }
    output.set(CreateMkeyOut::MKEY_INDEX, index);
    Ok(())
}

/// Returns the umem of a direct key. A key to be filled by WQEs, or a free one, may have none.
fn direct(
    memory: &Memory,
    input: View<'_, CreateMkeyIn>,
    length: u64,
    access: Access,
) -> Result<Backing, CommandSyndrome> {
    let context = input.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let (id, offset) =
        (input.get(CreateMkeyIn::MKEY_UMEM_ID), input.get(CreateMkeyIn::MKEY_UMEM_OFFSET));
    if id == 0 && (context.get(Mkc::FREE) || context.get(Mkc::UMR_EN)) {
        return Ok(Backing::Nothing);
    }
    match memory.umem_window(id, offset, length, access.intersects(Access::WRITES)) {
        Ok(_) if !memory.is_congruent(id, offset, context.get(Mkc::START_ADDR)) => {
            Err(CommandSyndrome::MkeyPageOffset)
        }
        Ok(_) => Ok(Backing::Umem { id, offset }),
        Err(Refused::Unknown) => Err(CommandSyndrome::MkeyUnknownUmem),
        Err(Refused::Bounds) => Err(CommandSyndrome::MkeyBounds),
        Err(Refused::ReadOnly) => Err(CommandSyndrome::MkeyRights),
    }
}

/// Returns the list of an indirect key. The keys of the ranges are looked up on use.
fn indirect(
    memory: &Memory,
    input: View<'_, CreateMkeyIn>,
    list: &[u8],
    mode: AccessMode,
    length: u64,
) -> Result<Backing, CommandSyndrome> {
    let context = input.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let count = input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize;
    // The capacity for lists of WQEs.
    let capacity = context.get(Mkc::TRANSLATIONS_OCTWORD_SIZE) as usize;
    if count.max(capacity) > limits::RANGES {
        return Err(CommandSyndrome::MkeyListSize);
    }
    if capacity == 0 {
        return Err(CommandSyndrome::MkeyNoList);
    }
    let (id, offset) =
        (input.get(CreateMkeyIn::MKEY_UMEM_ID), input.get(CreateMkeyIn::MKEY_UMEM_OFFSET));
    let mut copy = Vec::new();
    let list = if id == 0 {
        list.get(..count * OCTWORD).ok_or(CommandSyndrome::MkeyListLength)?
    } else {
        let window = memory.umem_window(id, offset, (count * OCTWORD) as u64, false);
        let window = window.map_err(|refused| match refused {
            Refused::Unknown => CommandSyndrome::MkeyUnknownUmem,
            Refused::Bounds | Refused::ReadOnly => CommandSyndrome::MkeyBounds,
        })?;
        copy.resize(count * OCTWORD, 0);
        window.read(&mut copy);
        &copy
    };
    let ranges = if mode == AccessMode::Ksm {
        let log_size = context.get(Mkc::LOG_PAGE_SIZE);
        let log_bytes = u32::from(log_size) + count.next_power_of_two().ilog2();
        if !limits::LOG_KSM_BYTES.contains(&log_size) || log_bytes > u64::BITS {
            return Err(CommandSyndrome::MkeyEntrySize);
        }
        Ranges::equal(list, log_size, capacity)
    } else {
        Ranges::sized(list, capacity).ok_or(CommandSyndrome::MkeyList)?
    };
    // A key to be filled by WQEs may be longer than its current list.
    if length > ranges.bytes() && !context.get(Mkc::UMR_EN) && !context.get(Mkc::FREE) {
        return Err(CommandSyndrome::MkeyListBytes);
    }
    Ok(Backing::Ranges(ranges))
}

/// PRM: QUERY_MKEY.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryMkeyIn>,
    mut output: ViewMut<'_, QueryMkeyOut>,
) -> Outcome {
    let mkey = objects
        .memory
        .mkeys
        .get(input.get(QueryMkeyIn::MKEY_INDEX))
        .ok_or(CommandSyndrome::UnknownMkey)?;
    let mut context = output.nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    for (bit, right) in RIGHTS {
        context.set(bit, mkey.access.contains(right));
    }
    context
        .set(Mkc::FREE, mkey.free)
        .set(Mkc::UMR_EN, mkey.updatable)
        .set(Mkc::RELAXED_ORDERING_READ, mkey.relaxed.0)
        .set(Mkc::RELAXED_ORDERING_WRITE, mkey.relaxed.1)
        .set(Mkc::EN_RINVAL, mkey.remote_invalidate)
        .set(Mkc::QPN, mkey.qpn)
        .set(Mkc::MKEY_7_0, mkey.variant)
        .set(Mkc::PD, mkey.pd)
        .set(Mkc::LEN, mkey.length)
        .set(Mkc::LENGTH64, mkey.whole);
    let mut start = mkey.start;
    let (mode, log_page) = match &mkey.backing {
        &Backing::Umem { id, offset } if objects.memory.is_device_memory(id) => {
            start = limits::DEVICE_MEMORY_START + offset;
            (AccessMode::Memic, 0)
        }
        Backing::Nothing | Backing::Umem { .. } => (AccessMode::Mtt, limits::LOG_PAGE_BYTES),
        Backing::Ranges(ranges) => {
            context.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, ranges.capacity() as u32);
            match ranges.log_size() {
                Some(log_size) => (AccessMode::Ksm, log_size),
                None => (AccessMode::Klm, 0),
            }
        }
    };
    context
        .set(Mkc::START_ADDR, start)
        .set(Mkc::ACCESS_MODE_4_2, mode as u8 >> 2)
        .set(Mkc::ACCESS_MODE_1_0, mode as u8 & 3)
        .set(Mkc::LOG_PAGE_SIZE, log_page);
    Ok(())
}

/// PRM: DESTROY_MKEY. WQEs that name the key fail from here on.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyMkeyIn>) -> Outcome {
    let mkey = objects
        .memory
        .mkeys
        .remove(input.get(DestroyMkeyIn::MKEY_INDEX))
        .ok_or(CommandSyndrome::UnknownMkey)?;
    if let Backing::Umem { id, .. } = mkey.backing {
        objects.memory.release(id);
    }
    objects.release_pd(mkey.pd);
    Ok(())
}
