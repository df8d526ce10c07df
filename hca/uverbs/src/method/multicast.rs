//! Multicast groups: ATTACH_MCAST, DETACH_MCAST. Checks and errors are those of linux uverbs_cmd.c
//! (`ib_uverbs_attach_mcast`) and verbs.c (`ib_attach_mcast`).

use std::net::IpAddr;

use barewire_layouts::command::mcg::{AttachToMcgIn, DetachFromMcgIn};

use crate::abi::Multicast;
use crate::attributes::Attributes;
use crate::config::Link;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Qp;
use crate::qp_type::QpType;

use super::legacy::CORE_IN;

/// Multicast LIDs, on InfiniBand ports.
const LIDS: std::ops::Range<u16> = 0xc000..0xffff;

/// ATTACH_MCAST.
pub(super) fn attach(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let Multicast { gid, qp_handle, mlid, .. } = call.structure(CORE_IN)?;
    let mut state = context.state();
    let qp = state.objects.get_mut::<Box<Qp>>(qp_handle)?;
    if qp.groups.contains(&(gid, mlid)) {
        return Ok(());
    }
    let has_lid = context.adapter.link == Link::Roce || LIDS.contains(&mlid);
    let is_group = IpAddr::from(gid).to_canonical().is_multicast();
    for (holds, reason) in [
        (qp.kind == QpType::Ud, "qp: only queue pairs of type UD receive from groups"),
        (is_group, "gid: it is that of no multicast group"),
        (has_lid, "lid: multicast LIDs are from 0xc000 to 0xfffe"),
    ] {
        if !holds {
            return Err(Errno::INVALID.because(reason));
        }
    }
    context.adapter.command::<AttachToMcgIn>(|input| {
        input.set(AttachToMcgIn::QPN, qp.number).set_array(AttachToMcgIn::MULTICAST_GID, gid);
    })?;
    qp.groups.push((gid, mlid));
    Ok(())
}

/// DETACH_MCAST.
pub(super) fn detach(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let Multicast { gid, qp_handle, mlid, .. } = call.structure(CORE_IN)?;
    let mut state = context.state();
    let qp = state.objects.get_mut::<Box<Qp>>(qp_handle)?;
    let at = qp.groups.iter().position(|&group| group == (gid, mlid));
    let unknown =
        || Errno::INVALID.because("gid, lid: the queue pair is not attached to this group");
    let at = at.ok_or_else(unknown)?;
    qp.groups.remove(at);
    // The device knows groups by their GID only.
    if qp.groups.iter().any(|&(other, _)| other == gid) {
        return Ok(());
    }
    let detached = context.adapter.command::<DetachFromMcgIn>(|input| {
        input.set(DetachFromMcgIn::QPN, qp.number).set_array(DetachFromMcgIn::MULTICAST_GID, gid);
    });
    detached.map(drop)
}
