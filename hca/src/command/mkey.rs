//! CREATE_MKEY, QUERY_MKEY, DESTROY_MKEY.

use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc, QueryMkeyIn, QueryMkeyOut,
};
use barewire_layouts::prm::{Field, View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::limits;
use crate::memory::{Access, Mkey, Refused};
use crate::object::Objects;

/// The context's right bits.
const RIGHTS: [(Field<Mkc, bool>, Access); 5] = [
    (Mkc::LR, Access::LOCAL_READ),
    (Mkc::LW, Access::LOCAL_WRITE),
    (Mkc::RR, Access::REMOTE_READ),
    (Mkc::RW, Access::REMOTE_WRITE),
    (Mkc::A, Access::REMOTE_ATOMIC),
];

/// PRM: CREATE_MKEY over a umem (`mkey_umem_id`; the valid bit is the kernel's business and not looked at).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateMkeyIn>,
    mut output: ViewMut<'_, CreateMkeyOut>,
) -> Outcome {
    let context = input.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    if context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0) != AccessMode::Mtt as u8 {
        return Err(CommandSyndrome::MkeyMode);
    }
    if context.get(Mkc::QPN) != ANY_QPN {
        return Err(CommandSyndrome::MkeyQpn);
    }
    if context.get(Mkc::UMR_EN) || context.get(Mkc::LENGTH64) {
        return Err(CommandSyndrome::MkeyFeature);
    }
    let (start, length) = (context.get(Mkc::START_ADDR), context.get(Mkc::LEN));
    // One past the last byte may be 2^64 itself.
    if length > 0 && start.checked_add(length - 1).is_none() {
        return Err(CommandSyndrome::MkeyAddress);
    }
    let granted = RIGHTS.iter().filter(|(bit, _)| context.get(*bit)).map(|(_, right)| *right);
    let access = granted.fold(Access::empty(), Access::union);
    let (umem, umem_offset) =
        (input.get(CreateMkeyIn::MKEY_UMEM_ID), input.get(CreateMkeyIn::MKEY_UMEM_OFFSET));
    objects.memory.umem_window(umem, umem_offset, length, access.intersects(Access::WRITES)).map_err(
        |refused| match refused {
            Refused::Unknown => CommandSyndrome::MkeyUnknownUmem,
            Refused::Bounds => CommandSyndrome::MkeyBounds,
            Refused::ReadOnly => CommandSyndrome::MkeyRights,
        },
    )?;
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
            start,
            length,
            access,
            umem,
            umem_offset,
        })
        .ok_or(CommandSyndrome::NoMkeys)?;
    pd.users += 1;
    objects.memory.hold(umem);
    output.set(CreateMkeyOut::MKEY_INDEX, index);
    Ok(())
}

/// PRM: QUERY_MKEY.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryMkeyIn>,
    mut output: ViewMut<'_, QueryMkeyOut>,
) -> Outcome {
    let mkey =
        objects.memory.mkeys.get(input.get(QueryMkeyIn::MKEY_INDEX)).ok_or(CommandSyndrome::UnknownMkey)?;
    let mut context = output.nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    for (bit, right) in RIGHTS {
        context.set(bit, mkey.access.contains(right));
    }
    context
        .set(Mkc::FREE, mkey.free)
        .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, mkey.variant)
        .set(Mkc::PD, mkey.pd)
        .set(Mkc::START_ADDR, mkey.start)
        .set(Mkc::LEN, mkey.length)
        .set(Mkc::LOG_PAGE_SIZE, limits::LOG_PAGE_BYTES);
    Ok(())
}

/// PRM: DESTROY_MKEY. Work requests that name the key fail from here on.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyMkeyIn>) -> Outcome {
    let mkey = objects
        .memory
        .mkeys
        .remove(input.get(DestroyMkeyIn::MKEY_INDEX))
        .ok_or(CommandSyndrome::UnknownMkey)?;
    objects.memory.release(mkey.umem);
    objects.release_pd(mkey.pd);
    Ok(())
}
