//! Calls with wrong arguments.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig, or with wrong arguments, which must be safe"
)]

use std::ptr::{null, null_mut};

use super::{Rig, iface_params, iov, pack};
use crate::abi::{ComponentAttr, IfaceParams, RkeyBundle};
use crate::status::{INPROGRESS, INVALID_PARAM, NO_DEVICE, NO_ELEM, OK, UNSUPPORTED};
use crate::{component, config, dispatch, iface, md, memory, worker};

/// Every call returns a status, and none ends the process.
#[test]
fn wrong_calls_return_a_status() {
    let Some(rig) = Rig::of_self() else { return };
    let (ops, component) = (rig.ops(), rig.component);
    let (ep, iface, text) = (rig.endpoint(Some(&rig)), rig.iface, b"text".as_ptr());
    let entry = iov(b"unregistered", null_mut(), 0, 1);
    let too_many = [iov(b"", null_mut(), 0, 1); 64];
    let empty = iov(b"", null_mut(), 0, u32::MAX);
    let invalid = usize::MAX;
    let mut packed: &[u8] = b"packed";
    let packed = (&raw mut packed).cast();
    unsafe {
        let mut params = iface_params(c"self", c"memory");
        params.dev_name = c"other".as_ptr();
        let mut unaligned = iface_params(c"self", c"memory");
        unaligned.field_mask |= IfaceParams::AM_ALIGNMENT;
        unaligned.am_alignment = 3;
        let (mut opened, mut md_opened) = (null_mut(), null_mut());
        let (mut settings, mut no_worker) = (null_mut(), null_mut());
        let mut bundle = RkeyBundle { rkey: 0, handle: null_mut(), kind: null_mut() };
        assert_eq!(
            config::uct_md_iface_config_read(rig.md, null(), null(), null(), &raw mut settings),
            OK
        );
        let table = [
            ("an id of an active message", (ops.ep_am_short)(ep, 32, 0, text, 4), INVALID_PARAM),
            ("no payload", (ops.ep_am_short)(ep, 0, 0, null(), 4), INVALID_PARAM),
            ("a long payload", (ops.ep_am_short)(ep, 0, 0, text, 1 << 20), INVALID_PARAM),
            (
                "no pack callback",
                (ops.ep_am_bcopy)(ep, 0, None, null_mut(), 0) as i8,
                INVALID_PARAM,
            ),
            ("no pieces", (ops.ep_am_short_iov)(ep, 0, null(), 2), INVALID_PARAM),
            ("empty pieces", (ops.ep_am_short_iov)(ep, 0, &raw const empty, 1), OK),
            ("too many pieces", (ops.ep_am_short_iov)(ep, 0, too_many.as_ptr(), 64), INVALID_PARAM),
            (
                "no memory handle",
                (ops.ep_am_zcopy)(ep, 0, text, 4, &raw const entry, 1, 0, null_mut()),
                INVALID_PARAM,
            ),
            (
                "no header",
                (ops.ep_am_zcopy)(ep, 0, null(), 4, null(), 0, 0, null_mut()),
                INVALID_PARAM,
            ),
            ("no key", (ops.ep_put_short)(ep, text, 4, 0, 0), INVALID_PARAM),
            ("an invalid key", (ops.ep_put_short)(ep, text, 4, 0, invalid), INVALID_PARAM),
            ("no bytes to an invalid key", (ops.ep_put_short)(ep, null(), 0, 0, invalid), OK),
            (
                "an invalid key",
                (ops.ep_put_bcopy)(ep, Some(pack), packed, 0, invalid) as i8,
                INVALID_PARAM,
            ),
            (
                "an invalid key",
                (ops.ep_put_zcopy)(ep, too_many.as_ptr(), 64, 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            ("no list", (ops.ep_get_zcopy)(ep, null(), 3, 0, invalid, null_mut()), INVALID_PARAM),
            ("an invalid key", (ops.ep_atomic64_post)(ep, 0, 1, 0, invalid), INVALID_PARAM),
            ("a swap without result", (ops.ep_atomic32_post)(ep, 4, 1, 0, invalid), UNSUPPORTED),
            (
                "no unpack callback",
                (ops.ep_get_bcopy)(ep, None, null_mut(), 4, 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            ("no buffer", (ops.ep_get_short)(ep, null_mut(), 4, 0, invalid), INVALID_PARAM),
            (
                "no result",
                (ops.ep_atomic64_fetch)(ep, 0, 1, null_mut(), 0, invalid, null_mut()),
                INVALID_PARAM,
            ),
            (
                "an unknown atomic",
                (ops.ep_atomic32_fetch)(ep, 9, 1, null_mut(), 0, invalid, null_mut()),
                UNSUPPORTED,
            ),
            ("no request", (ops.ep_pending_add)(ep, null_mut(), 0), INVALID_PARAM),
            ("tag matching", (ops.ep_tag_eager_short)() as i8, UNSUPPORTED),
            (
                "a handler's id",
                iface::uct_iface_set_am_handler(iface, 32, None, null_mut(), 0),
                INVALID_PARAM,
            ),
            (
                "no interface",
                iface::uct_iface_set_am_handler(null_mut(), 0, None, null_mut(), 0),
                INVALID_PARAM,
            ),
            ("no interface", dispatch::uct_iface_query(null_mut(), null_mut()), INVALID_PARAM),
            ("no target", dispatch::uct_iface_query(iface, null_mut()), INVALID_PARAM),
            ("no descriptor", dispatch::uct_iface_event_fd_get(iface, null_mut()), INVALID_PARAM),
            ("no address", dispatch::uct_iface_get_address(iface, null_mut()), INVALID_PARAM),
            (
                "an address of an endpoint",
                dispatch::uct_ep_connect_to_ep(ep, null(), null()),
                INVALID_PARAM,
            ),
            ("no parameters", dispatch::uct_ep_create(null(), null_mut()), INVALID_PARAM),
            ("no endpoint", dispatch::uct_ep_check(null_mut(), 0, null_mut()), INVALID_PARAM),
            (
                "an unknown device",
                md::uct_md_open(component, c"none".as_ptr(), null(), &raw mut md_opened),
                NO_DEVICE,
            ),
            (
                "no name",
                md::uct_md_open(component, null(), null(), &raw mut md_opened),
                INVALID_PARAM,
            ),
            ("no domain", md::uct_md_query(null(), null_mut()), INVALID_PARAM),
            ("no memory", md::uct_md_mem_reg(rig.md, null_mut(), 8, 0, null_mut()), INVALID_PARAM),
            ("no handle", md::uct_md_mem_dereg(rig.md, null_mut()), INVALID_PARAM),
            ("no handle", md::uct_md_mkey_pack(rig.md, null(), null_mut()), INVALID_PARAM),
            (
                "no bytes of a key",
                component::uct_rkey_unpack(component, [0; 22].as_ptr(), &raw mut bundle),
                INVALID_PARAM,
            ),
            ("no key", component::uct_rkey_release(component, null()), INVALID_PARAM),
            ("no methods", memory::uct_mem_alloc(8, null(), 0, null(), null_mut()), INVALID_PARAM),
            (
                "no bytes",
                memory::uct_iface_mem_alloc(iface, 0, 0, null(), null_mut()),
                INVALID_PARAM,
            ),
            (
                "an unknown setting",
                config::uct_config_modify(settings, c"NONE".as_ptr(), c"1".as_ptr()),
                NO_ELEM,
            ),
            (
                "a wrong value",
                config::uct_config_modify(settings, c"SEND_RING".as_ptr(), c"big".as_ptr()),
                INVALID_PARAM,
            ),
            (
                "an unknown thread mode",
                worker::uct_worker_create(null_mut(), 9, &raw mut no_worker),
                INVALID_PARAM,
            ),
            (
                "another device",
                iface::uct_iface_open(
                    rig.md,
                    rig.worker,
                    &raw const params,
                    null(),
                    &raw mut opened,
                ),
                NO_DEVICE,
            ),
            (
                "an alignment",
                iface::uct_iface_open(
                    rig.md,
                    rig.worker,
                    &raw const unaligned,
                    null(),
                    &raw mut opened,
                ),
                INVALID_PARAM,
            ),
            ("a socket address", dispatch::uct_ep_connect(ep, null()), UNSUPPORTED),
        ];
        for (what, found, expected) in table {
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(dispatch::uct_iface_is_reachable(iface, null(), null()), 0);
        dispatch::uct_ep_destroy(null_mut());
        dispatch::uct_iface_close(null_mut());
        md::uct_md_close(null_mut());
        worker::uct_worker_destroy(null_mut());
        assert_eq!(config::uct_config_modify(settings, c"SEND_RING".as_ptr(), c"64".as_ptr()), OK);
        let mut value = [1; 3];
        let got = config::uct_config_get(settings, c"send_ring".as_ptr(), value.as_mut_ptr(), 3);
        assert_eq!((got, value.map(|byte| byte as u8)), (OK, *b"64\0"));
        config::uct_config_release(settings);
        // Afterwards everything works as before.
        assert_eq!((ops.ep_am_short)(ep, 0, 0, text, 4), OK);
        assert_ne!((ops.iface_flush)(iface, 0, null_mut()), INPROGRESS);
        dispatch::uct_ep_destroy(ep);
    }
}

/// A program may pass an empty array, which C++ represents by null, for the devices of a transport
/// that has none.
#[test]
fn no_devices_need_no_array() {
    unsafe {
        let (mut all, mut count) = (null_mut(), 0);
        assert_eq!(component::uct_query_components(&raw mut all, &raw mut count), OK);
        for at in 0..count as usize {
            let mut attr: ComponentAttr = std::mem::zeroed();
            attr.field_mask = ComponentAttr::MD_RESOURCE_COUNT;
            assert_eq!(component::uct_component_query(*all.add(at), &raw mut attr), OK);
            attr.field_mask = ComponentAttr::MD_RESOURCES;
            let expected = if attr.md_resource_count == 0 { OK } else { INVALID_PARAM };
            let queried = component::uct_component_query(*all.add(at), &raw mut attr);
            assert_eq!(queried, expected, "{} devices", attr.md_resource_count);
        }
        component::uct_release_component_list(all);
    }
}
