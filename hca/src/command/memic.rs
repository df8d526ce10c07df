//! ALLOC_MEMIC, DEALLOC_MEMIC.

use barewire_layouts::command::memic::{AllocMemicIn, AllocMemicOut, DeallocMemicIn, LOG_UNIT};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::limits;

/// PRM: ALLOC_MEMIC.
pub(super) fn alloc(
    objects: &mut Objects,
    input: View<'_, AllocMemicIn>,
    mut output: ViewMut<'_, AllocMemicOut>,
) -> Outcome {
    let length = u64::from(input.get(AllocMemicIn::MEMIC_SIZE));
    if length == 0 || !length.is_multiple_of(1 << LOG_UNIT) {
        return Err(CommandSyndrome::MemicSize);
    }
    if !objects.requirements.adapter.facts().device_memory {
        return Err(CommandSyndrome::NoMemic);
    }
    let log_alignment = input.get(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT);
    if log_alignment > limits::LOG_DEVICE_MEMORY_ALIGNMENT {
        return Err(CommandSyndrome::MemicAlignment);
    }
    let range =
        (input.get(AllocMemicIn::RANGE_START_ADDR), input.get(AllocMemicIn::RANGE_SIZE).into());
    let address = objects
        .memory
        .allocate_on_device(range, length, 1 << (LOG_UNIT + log_alignment))
        .ok_or(CommandSyndrome::NoMemic)?;
    output.set(AllocMemicOut::MEMIC_START_ADDR, address);
    Ok(())
}

/// PRM: DEALLOC_MEMIC. As on devices, keys that still cover the memory keep reaching it.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocMemicIn>) -> Outcome {
    let address = input.get(DeallocMemicIn::MEMIC_START_ADDR);
    let length = input.get(DeallocMemicIn::MEMIC_SIZE).into();
    if objects.memory.free_on_device(address, length) {
        Ok(())
    } else {
        Err(CommandSyndrome::UnknownMemic)
    }
}
