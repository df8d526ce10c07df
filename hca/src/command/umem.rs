//! DESTROY_UMEM.

use barewire_layouts::command::umem::DestroyUmemIn;
use barewire_layouts::prm::View;

use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::memory::UmemError;

/// PRM: DESTROY_UMEM, the same as `Device::deregister_umem`.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyUmemIn>) -> Outcome {
    objects.memory.deregister(input.get(DestroyUmemIn::UMEM_ID)).map_err(|error| match error {
        UmemError::Busy { .. } => CommandSyndrome::UmemInUse,
        _ => CommandSyndrome::UnknownUmem,
    })
}
