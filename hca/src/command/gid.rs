//! QUERY_ROCE_ADDRESS, SET_ROCE_ADDRESS.

use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, SetRoceAddressIn,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Context;
use crate::object::InvalidGid;

/// Returns the index of a port's table.
fn table(device: &Context<'_>, number: u8) -> Result<usize, CommandSyndrome> {
    device.port_index(number).ok_or(CommandSyndrome::GidPort)
}

/// PRM: QUERY_ROCE_ADDRESS.
pub(super) fn query(
    device: &Context<'_>,
    input: View<'_, QueryRoceAddressIn>,
    mut output: ViewMut<'_, QueryRoceAddressOut>,
) -> Outcome {
    let at = table(device, input.get(QueryRoceAddressIn::VHCA_PORT_NUM))?;
    let gids = device.objects.gids.get(at).ok_or(CommandSyndrome::GidPort)?;
    let entry = gids.entry(input.get(QueryRoceAddressIn::ROCE_ADDRESS_INDEX));
    let entry = entry.ok_or(CommandSyndrome::GidIndex)?;
    output.nested(QueryRoceAddressOut::ROCE_ADDRESS).bytes().copy_from_slice(&entry);
    Ok(())
}

/// PRM: SET_ROCE_ADDRESS. Connected queue pairs keep their address.
pub(super) fn set(device: &mut Context<'_>, input: View<'_, SetRoceAddressIn>) -> Outcome {
    let at = table(device, input.get(SetRoceAddressIn::VHCA_PORT_NUM))?;
    let gids = device.objects.gids.get_mut(at).ok_or(CommandSyndrome::GidPort)?;
    let index = input.get(SetRoceAddressIn::ROCE_ADDRESS_INDEX);
    gids.entry(index).ok_or(CommandSyndrome::GidIndex)?;
    let entry: View<'_, RoceAddress> = input.nested(SetRoceAddressIn::ROCE_ADDRESS);
    let entry = entry.bytes().try_into().map_err(|_| CommandSyndrome::InputLength)?;
    gids.set(index, entry).map_err(|invalid| match invalid {
        InvalidGid::Address => CommandSyndrome::GidAddress,
        InvalidGid::Mac => CommandSyndrome::GidMac,
        InvalidGid::Version => CommandSyndrome::GidVersion,
    })
}
