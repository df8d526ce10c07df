//! ATTACH_TO_MCG, DETACH_FROM_MCG.

use std::net::IpAddr;

use barewire_layouts::command::mcg::{AttachToMcgIn, DetachFromMcgIn};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::prm::View;

use super::{CommandSyndrome, Outcome};
use crate::address::group_on_wire;
use crate::engine::Context;
use crate::object::FullGroup;

/// PRM: ATTACH_TO_MCG. A port whose address is of the other IP version does not receive the group's
/// datagrams.
pub(super) fn attach(device: &mut Context<'_>, input: View<'_, AttachToMcgIn>) -> Outcome {
    let qpn = input.get(AttachToMcgIn::QPN);
    let qp = device.objects.qps.get(qpn).ok_or(CommandSyndrome::UnknownQp)?;
    if qp.service != ServiceType::Ud {
        return Err(CommandSyndrome::GroupService);
    }
    let gid = input.array(AttachToMcgIn::MULTICAST_GID);
    let group = group(device, gid).ok_or(CommandSyndrome::GroupGid)?;
    let groups = &device.objects.groups;
    if groups.is_attached(group, qpn) {
        return Ok(());
    }
    groups.room(group).map_err(|full| match full {
        FullGroup::Groups => CommandSyndrome::GroupLimit,
        FullGroup::Members => CommandSyndrome::GroupMembers,
    })?;
    if !groups.has(group) {
        let family = group.is_ipv4();
        let mut ports = device.ports.iter_mut().filter(|port| port.address.is_ipv4() == family);
        if ports.try_for_each(|port| port.wire.join(group)).is_err() {
            leave(device, group);
            return Err(CommandSyndrome::GroupWire);
        }
    }
    device.objects.groups.attach(group, qpn);
    Ok(())
}

/// PRM: DETACH_FROM_MCG.
pub(super) fn detach(device: &mut Context<'_>, input: View<'_, DetachFromMcgIn>) -> Outcome {
    let qpn = input.get(DetachFromMcgIn::QPN);
    let group = group(device, input.array(DetachFromMcgIn::MULTICAST_GID));
    let group = group.filter(|&group| device.objects.groups.is_attached(group, qpn));
    end(device, group.ok_or(CommandSyndrome::NotAttached)?, qpn);
    Ok(())
}

/// Detaches a queue pair from all its groups.
pub(super) fn detach_all(device: &mut Context<'_>, qpn: u32) {
    while let Some(group) = device.objects.groups.group_of(qpn) {
        end(device, group, qpn);
    }
}

/// Returns the address of a group on the wire.
fn group(device: &Context<'_>, gid: [u8; 16]) -> Option<IpAddr> {
    // All ports have addresses of one version.
    let own = device.ports.first()?.address;
    group_on_wire(gid, device.objects.port_type, own)
}

fn end(device: &mut Context<'_>, group: IpAddr, qpn: u32) {
    device.objects.groups.detach(group, qpn);
    if !device.objects.groups.has(group) {
        leave(device, group);
    }
}

fn leave(device: &mut Context<'_>, group: IpAddr) {
    for port in &mut *device.ports {
        port.wire.leave(group);
    }
}
