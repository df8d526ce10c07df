//! Every exported function with null pointers and zeros for all of its arguments.

use crate::status::{INVALID_PARAM, Status, UNSUPPORTED};

/// The C calling convention passes pointers and integers alike, and a function may ignore
/// arguments.
type AnyFunction = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> Status;

/// A function's name, itself, and its result.
type Row = (&'static str, AnyFunction, Option<Status>);

/// `RESULT: names`, for functions of which the result is a status, a truth value or nothing.
macro_rules! exported {
    ($($result:expr => $($name:ident)+;)+) => {
        mod symbols {
            unsafe extern "C" {
                $($(pub(super) fn $name(_: usize, _: usize, _: usize, _: usize, _: usize, _: usize)
                    -> i8;)+)+
            }
        }

        pub(super) const EXPORTED: &[Row] =
            &[$($((stringify!($name), symbols::$name, $result)),+),+];
    };
}

exported! {
    Some(INVALID_PARAM) =>
        uct_query_components uct_component_query
        uct_md_open uct_md_query uct_md_query_tl_resources uct_md_config_read
        uct_md_iface_config_read uct_md_mem_reg uct_md_mem_dereg uct_md_mem_dereg_v2
        uct_md_mkey_pack uct_md_mkey_pack_v2 uct_rkey_unpack uct_rkey_release uct_rkey_ptr
        uct_mem_alloc uct_mem_free uct_iface_mem_alloc
        uct_config_get uct_config_modify
        uct_worker_create
        uct_iface_open uct_iface_query uct_iface_estimate_perf uct_iface_set_am_handler
        uct_iface_set_am_tracer uct_iface_event_fd_get uct_iface_event_arm
        uct_iface_get_device_address uct_iface_get_address uct_iface_accept uct_iface_reject
        uct_ep_create uct_ep_get_address uct_ep_connect_to_ep uct_ep_check uct_ep_connect
        uct_ep_disconnect uct_cm_client_ep_conn_notify
        uct_cm_open uct_cm_query uct_cm_config_read uct_ep_query
        uct_listener_create uct_listener_query uct_listener_reject;
    Some(UNSUPPORTED) =>
        uct_md_mem_advise uct_md_mem_query uct_md_detect_memory_type;
    Some(0) => uct_md_is_sockaddr_accessible uct_iface_is_reachable;
    None =>
        uct_release_component_list uct_release_tl_resource_list uct_md_close uct_config_release
        uct_worker_destroy uct_worker_progress_register_safe uct_worker_progress_unregister_safe
        uct_iface_close uct_iface_mem_free uct_ep_destroy uct_cm_close uct_listener_destroy;
}

#[cfg(feature = "ucx-head")]
mod v2 {
    use super::*;

    exported! {
        Some(INVALID_PARAM) =>
            uct_md_query_v2 uct_md_mem_reg_v2 uct_rkey_unpack_v2 uct_rkey_compare
            uct_iface_query_v2 uct_ep_connect_to_ep_v2;
        Some(UNSUPPORTED) =>
            uct_md_mem_attach uct_md_mem_query_v2 uct_md_mem_elem_pack uct_ep_get_device_ep
            uct_ep_put_sgl_zcopy uct_ep_get_sgl_zcopy uct_ep_invalidate uct_ep_outstanding_purge;
        Some(0) => uct_iface_is_reachable_v2 uct_ep_is_connected;
        None => uct_md_mem_elem_release;
    }
}

#[cfg(feature = "ucx-head")]
use v2::EXPORTED as NEWER;

#[cfg(not(feature = "ucx-head"))]
const NEWER: &[Row] = &[];

#[test]
fn null_arguments_return_a_status() {
    for &(name, function, expected) in EXPORTED.iter().chain(NEWER) {
        // SAFETY: the functions check all pointers, which is what this tests. They are declared by
        // the calling convention of C, as above.
        let returned = unsafe { function(0, 0, 0, 0, 0, 0) };
        if let Some(expected) = expected {
            assert_eq!(returned, expected, "{name}");
        }
    }
}

/// Without the feature, the sources have functions that are not exported.
#[cfg(feature = "ucx-head")]
mod listed {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{EXPORTED, NEWER};

    /// Adds the names of functions that a source file exports.
    fn read(file: &Path, names: &mut BTreeSet<String>) {
        let text = std::fs::read_to_string(file).unwrap();
        for line in text.lines() {
            // The macros of `dispatch.rs` and `unsupported.rs` export what begins a line of their
            // input.
            if line.contains("extern \"C\" fn uct_") || line.trim_start().starts_with("uct_") {
                let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                names.extend(words.filter(|word| word.starts_with("uct_")).map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_table_has_every_exported_function() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    read(&path, &mut found);
                }
            }
        }
        let rows = EXPORTED.iter().chain(NEWER);
        let listed: BTreeSet<String> = rows.map(|row| row.0.to_owned()).collect();
        assert_eq!(listed, found);
    }
}
