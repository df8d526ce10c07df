//! Queries of the port and the card: QUERY_VPORT_STATE, QUERY_NIC_VPORT_CONTEXT,
//! QUERY_HCA_VPORT_CONTEXT, QUERY_HCA_VPORT_GID, QUERY_HCA_VPORT_PKEY, QUERY_ADAPTER. (QUERY_LAG
//! returns zeros: there is no bonding.)

use std::net::IpAddr;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::port::{
    ALL_ENTRIES, HcaVportContext, NicVportContext, PhysicalState, PortState, QueryAdapterOut,
    QueryAdapterParamBlock, QueryHcaVportContextIn, QueryHcaVportContextOut, QueryHcaVportGidIn,
    QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, QueryNicVportContextIn,
    QueryNicVportContextOut, QueryVportStateIn, QueryVportStateOut, VportState,
};
use barewire_layouts::prm::{Layout, View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Context;
use crate::limits;

/// Mellanox, as IEEE OUI and PCI vendor id.
const IEEE_VENDOR: u32 = 0x02c9;
const PCI_VENDOR: u16 = 0x15b3;
/// The board's name.
const BOARD: [u8; 16] = *b"BAREWIRE_SOFT\0\0\0";

/// Returns the index of a port of the function. Commands without a port number mean the first.
fn own(device: &Context<'_>, other: bool, number: u8) -> Result<usize, CommandSyndrome> {
    device.port_index(number).filter(|_| !other).ok_or(CommandSyndrome::VportPort)
}

/// Returns the address of a port, and whether its link is up.
fn look(device: &Context<'_>, other: bool, number: u8) -> Result<(IpAddr, bool), CommandSyndrome> {
    let port = device.ports.get(own(device, other, number)?).ok_or(CommandSyndrome::VportPort)?;
    Ok((port.address, port.wire.is_link_up()))
}

/// Returns the EUI-64 of the Ethernet address (IBTA 4.1.1).
fn guid(address: IpAddr) -> u64 {
    let mac = crate::address::mac(address)
        .into_iter()
        .fold(0, |number, byte| number << 8 | u64::from(byte));
    let (company, card) = (mac >> 24, mac & 0x00ff_ffff);
    (company ^ 0x02_0000) << 40 | 0xff_fe00_0000 | card
}

/// Returns the LID of a device at `address`: the last 16 bits.
fn lid(address: IpAddr) -> u16 {
    let [.., high, low] = crate::address::gid(address);
    u16::from_be_bytes([high, low])
}

/// PRM: QUERY_VPORT_STATE.
pub(super) fn state(
    device: &Context<'_>,
    input: View<'_, QueryVportStateIn>,
    mut output: ViewMut<'_, QueryVportStateOut>,
) -> Outcome {
    let (_, up) = look(device, input.get(QueryVportStateIn::OTHER_VPORT), 0)?;
    output
        .set(QueryVportStateOut::ADMIN_STATE, VportState::Up)
        .set(QueryVportStateOut::STATE, if up { VportState::Up } else { VportState::Down });
    Ok(())
}

/// PRM: QUERY_NIC_VPORT_CONTEXT.
pub(super) fn nic(
    device: &Context<'_>,
    input: View<'_, QueryNicVportContextIn>,
    mut output: ViewMut<'_, QueryNicVportContextOut>,
) -> Outcome {
    let (address, _) = look(device, input.get(QueryNicVportContextIn::OTHER_VPORT), 0)?;
    output
        .nested(QueryNicVportContextOut::NIC_VPORT_CONTEXT)
        .set(NicVportContext::ROCE_EN, true)
        .set(NicVportContext::MTU, device.objects.requirements.mtu)
        .set(NicVportContext::SYSTEM_IMAGE_GUID, guid(address))
        .set(NicVportContext::PORT_GUID, guid(address))
        .set(NicVportContext::NODE_GUID, guid(address))
        .set_array(NicVportContext::PERMANENT_ADDRESS, crate::address::mac(address));
    Ok(())
}

/// PRM: QUERY_HCA_VPORT_CONTEXT.
pub(super) fn hca(
    device: &Context<'_>,
    input: View<'_, QueryHcaVportContextIn>,
    mut output: ViewMut<'_, QueryHcaVportContextOut>,
) -> Outcome {
    let number = input.get(QueryHcaVportContextIn::PORT_NUM);
    let (address, up) = look(device, input.get(QueryHcaVportContextIn::OTHER_VPORT), number)?;
    // The node GUID is that of the first port.
    let (card, _) = look(device, false, 0)?;
    let infiniband = device.objects.port_type == PortType::InfiniBand;
    let (physical, logical) = if up {
        (PhysicalState::LinkUp, PortState::Active)
    } else {
        (PhysicalState::Polling, PortState::Down)
    };
    output
        .nested(QueryHcaVportContextOut::HCA_VPORT_CONTEXT)
        .set(HcaVportContext::GRH_REQUIRED, !infiniband || device.objects.requirements.global_route)
        .set(HcaVportContext::LID, if infiniband { lid(address) } else { 0 })
        .set(HcaVportContext::PORT_PHYSICAL_STATE, physical)
        .set(HcaVportContext::PORT_STATE, logical)
        .set(HcaVportContext::VPORT_STATE, logical)
        .set(HcaVportContext::SYSTEM_IMAGE_GUID, guid(card))
        .set(HcaVportContext::PORT_GUID, guid(address))
        .set(HcaVportContext::NODE_GUID, guid(card));
    Ok(())
}

/// PRM: QUERY_HCA_VPORT_GID. Returns as many entries as there is room for.
pub(super) fn gids(
    device: &Context<'_>,
    input: View<'_, QueryHcaVportGidIn>,
    output: &mut [u8],
) -> Outcome {
    const FIXED: usize = QueryHcaVportGidOut::BYTES - size_of::<[u8; 16]>();
    let number = input.get(QueryHcaVportGidIn::PORT_NUM);
    let at = own(device, input.get(QueryHcaVportGidIn::OTHER_VPORT), number)?;
    let gids = device.objects.gids.get(at).ok_or(CommandSyndrome::VportPort)?;
    let index = input.get(QueryHcaVportGidIn::GID_INDEX);
    if index != ALL_ENTRIES && index >= limits::GIDS {
        return Err(CommandSyndrome::GidIndex);
    }
    let (first, count) =
        if index == ALL_ENTRIES { (0, limits::GIDS.into()) } else { (usize::from(index), 1) };
    let mut told = 0;
    let list = output.get_mut(FIXED..).unwrap_or_default();
    for (to, gid) in list.chunks_exact_mut(16).zip(gids.all().skip(first).take(count)) {
        to.copy_from_slice(&gid);
        told += 1;
    }
    let mut answer =
        ViewMut::<QueryHcaVportGidOut>::new(output).ok_or(CommandSyndrome::OutputLength)?;
    answer.set(QueryHcaVportGidOut::GIDS_NUM, told);
    Ok(())
}

/// PRM: QUERY_HCA_VPORT_PKEY. Returns as many entries as there is room for.
pub(super) fn pkeys(
    device: &Context<'_>,
    input: View<'_, QueryHcaVportPkeyIn>,
    output: &mut [u8],
) -> Outcome {
    const ENTRY: usize = 4;
    const FIXED: usize = QueryHcaVportPkeyOut::BYTES - ENTRY;
    let number = input.get(QueryHcaVportPkeyIn::PORT_NUM);
    own(device, input.get(QueryHcaVportPkeyIn::OTHER_VPORT), number)?;
    let (index, requirements) =
        (input.get(QueryHcaVportPkeyIn::PKEY_INDEX), device.objects.requirements);
    let wanted = if index == ALL_ENTRIES { 0..requirements.partitions() } else { index..index + 1 };
    let list = output.get_mut(FIXED..).unwrap_or_default();
    for (to, index) in list.chunks_exact_mut(ENTRY).zip(wanted) {
        let key = requirements.partition_key(index).ok_or(CommandSyndrome::VportPkey)?;
        to.copy_from_slice(&u32::from(key).to_be_bytes());
    }
    Ok(())
}

/// PRM: QUERY_ADAPTER.
pub(super) fn adapter(output: &mut ViewMut<'_, QueryAdapterOut>) {
    output
        .nested(QueryAdapterOut::QUERY_ADAPTER_STRUCT)
        .set(QueryAdapterParamBlock::IEEE_VENDOR_ID, IEEE_VENDOR)
        .set(QueryAdapterParamBlock::VSD_VENDOR_ID, PCI_VENDOR)
        .set_array(QueryAdapterParamBlock::VSD_CONTD_PSID, BOARD);
}
