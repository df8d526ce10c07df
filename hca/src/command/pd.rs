//! ALLOC_PD, DEALLOC_PD.

use barewire_layouts::command::pd::{AllocPdOut, DeallocPdIn};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::object::Pd;

/// PRM: ALLOC_PD.
pub(super) fn alloc(objects: &mut Objects, mut output: ViewMut<'_, AllocPdOut>) -> Outcome {
    let (number, _) = objects.pds.insert_with(|_| Pd::default()).ok_or(CommandSyndrome::NoPds)?;
    output.set(AllocPdOut::PD, number);
    Ok(())
}

/// PRM: DEALLOC_PD.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocPdIn>) -> Outcome {
    let number = input.get(DeallocPdIn::PD);
    let pd = objects.pds.get(number).ok_or(CommandSyndrome::UnknownPd)?;
    if pd.users > 0 {
        return Err(CommandSyndrome::PdInUse);
    }
    objects.pds.remove(number);
    Ok(())
}
