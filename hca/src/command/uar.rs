//! ALLOC_UAR, DEALLOC_UAR.

use std::sync::Arc;

use barewire_layouts::command::uar::{AllocUarOut, DeallocUarIn};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::{Engine, Objects};
use crate::object::Uar;

/// PRM: ALLOC_UAR.
pub(super) fn alloc(
    objects: &mut Objects,
    engine: &mut Engine,
    mut output: ViewMut<'_, AllocUarOut>,
) -> Outcome {
    let (index, uar) = objects.uars.insert_with(|_| Uar::new()).ok_or(CommandSyndrome::NoUars)?;
    engine.uar_added(index, Arc::clone(&uar.page));
    output.set(AllocUarOut::UAR, index);
    Ok(())
}

/// PRM: DEALLOC_UAR. Handles of the page stay valid, but the device no longer reads it.
pub(super) fn dealloc(
    objects: &mut Objects,
    engine: &mut Engine,
    input: View<'_, DeallocUarIn>,
) -> Outcome {
    let index = input.get(DeallocUarIn::UAR);
    let uar = objects.uars.get(index).ok_or(CommandSyndrome::UnknownUar)?;
    if uar.users > 0 {
        return Err(CommandSyndrome::UarInUse);
    }
    engine.uar_removed(index);
    objects.uars.remove(index);
    Ok(())
}
