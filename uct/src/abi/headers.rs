//! Compares the bindings with the headers of an installed UCX 1.13, and with those of every UCX in the
//! target folder, by a C program.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::client_server::{
    ClientConnectArgs, CmAttr, ConnRequestArgs, ListenerAttr, ListenerParams, PrivDataPackArgs,
    RemoteData, ResolveArgs, ServerNotifyArgs, SockAddr,
};
use super::head::{AllocatedMemoryOnDevice, EpParamsWithLengths, MemRegParams};
use super::*;

/// The expressions in C with the values here, in version 1.`minor`.
fn expected(minor: i32) -> Vec<(String, usize)> {
    let mut all = vec![];
    macro_rules! layout {
        ($c:literal $rust:ident: $($fields:tt)*) => {
            all.push((format!("sizeof({})", $c), size_of::<$rust>()));
            offsets!($c $rust: $($fields)*);
        };
    }
    macro_rules! offsets {
        ($c:literal $rust:ident: $($field:ident $(= $other:literal)?),* $(,)?) => {
            $(
                #[allow(unused_mut, unused_assignments)]
                let mut name = stringify!($field);
                $(name = $other;)?
                all.push((format!("offsetof({}, {name})", $c), offset_of!($rust, $field)));
            )*
        };
    }
    layout!("uct_iov_t" Iov: buffer, length, memh, stride, count);
    layout!("uct_completion_t" Completion: func, count, status);
    layout!("uct_pending_req_t" PendingReq: func, private = "priv");
    layout!("uct_rkey_bundle_t" RkeyBundle: rkey, handle, kind = "type");
    offsets!("uct_allocated_memory_t" AllocatedMemory: address, length, method, mem_type, md, memh);
    layout!("uct_iface_t" IfaceOps:);
    layout!("uct_md_attr_t" MdAttr: cap, reg_cost, component_name, rkey_packed_size, local_cpus);
    layout!("uct_iface_attr_t" IfaceAttr: cap, device_addr_len, iface_addr_len, ep_addr_len,
        max_conn_priv, listen_sockaddr, overhead, bandwidth, latency, priority, max_num_eps,
        dev_num_paths);
    let caps = [
        ("get", offset_of!(IfaceCaps, get)),
        ("am", offset_of!(IfaceCaps, am)),
        ("am.max_hdr", offset_of!(IfaceCaps, am) + offset_of!(AmCaps, max_hdr)),
        ("am.max_iov", offset_of!(IfaceCaps, am) + offset_of!(AmCaps, max_iov)),
        ("put.max_iov", offset_of!(IfaceCaps, put) + offset_of!(RmaCaps, max_iov)),
        ("tag", offset_of!(IfaceCaps, tag)),
        ("atomic32", offset_of!(IfaceCaps, atomic32)),
        ("atomic64", offset_of!(IfaceCaps, atomic64)),
        ("flags", offset_of!(IfaceCaps, flags)),
        ("event_flags", offset_of!(IfaceCaps, event_flags)),
    ];
    for (field, offset) in caps {
        all.push((format!("offsetof(uct_iface_attr_t, cap.{field})"), offset));
    }
    for (field, offset) in [
        ("flags", offset_of!(MdCaps, flags)),
        ("access_mem_types", offset_of!(MdCaps, access_mem_types)),
    ] {
        all.push((format!("offsetof(uct_md_attr_t, cap.{field})"), offset));
    }
    layout!("uct_md_resource_desc_t" MdResourceDesc: md_name);
    layout!("uct_component_attr_t" ComponentAttr: field_mask, name, md_resource_count,
        md_resources, flags);
    layout!("uct_tl_resource_desc_t" TlResourceDesc: tl_name, dev_name, dev_type, sys_device);
    layout!("uct_iface_params_t" IfaceParams: field_mask, cpu_mask, open_mode,
        tl_name = "mode.device.tl_name", dev_name = "mode.device.dev_name", stats_root,
        rx_headroom, err_handler_arg, err_handler, err_handler_flags, before = "eager_arg",
        am_alignment, am_align_offset, features);
    offsets!("uct_ep_params_t" EpParams: field_mask, iface, user_data, dev_addr, iface_addr,
        sockaddr, sockaddr_cb_flags, sockaddr_pack_cb, cm, conn_request, sockaddr_cb_client,
        sockaddr_cb_server, disconnect_cb, path_index, cm_resolve_cb, private_data,
        private_data_length, local_sockaddr);
    layout!("ucs_sock_addr_t" SockAddr: addr, length = "addrlen");
    layout!("uct_cm_attr_t" CmAttr: field_mask, max_conn_priv);
    layout!("uct_listener_attr_t" ListenerAttr: field_mask, sockaddr);
    layout!("uct_listener_params_t" ListenerParams: field_mask, backlog, conn_request_cb, user_data);
    layout!("uct_ep_connect_params_t" EpConnectParams: field_mask, private_data,
        private_data_length);
    layout!("uct_cm_remote_data_t" RemoteData: field_mask, dev_addr, dev_addr_length,
        conn_priv_data, conn_priv_data_length);
    layout!("uct_cm_listener_conn_request_args_t" ConnRequestArgs: field_mask, dev_name,
        conn_request, remote_data, client_address);
    layout!("uct_cm_ep_client_connect_args_t" ClientConnectArgs: field_mask, remote_data, status);
    layout!("uct_cm_ep_server_conn_notify_args_t" ServerNotifyArgs: field_mask, status);
    layout!("uct_cm_ep_priv_data_pack_args_t" PrivDataPackArgs: field_mask, dev_name);
    layout!("uct_cm_ep_resolve_args_t" ResolveArgs: field_mask, dev_name, status);
    offsets!("uct_mem_alloc_params_t" MemAllocParams: field_mask, flags, address, mem_type,
        mds = "mds.mds", md_count = "mds.count", name);
    for (at, name) in IfaceOps::NAMES.iter().enumerate() {
        all.push((format!("offsetof(uct_iface_ops_t, {name})"), at * size_of::<usize>()));
    }
    for (name, value) in [
        ("UCT_MD_FLAG_NEED_RKEY", md_flag::NEED_RKEY as usize),
        ("UCT_MD_FLAG_RKEY_PTR", md_flag::RKEY_PTR as usize),
        ("UCT_IFACE_FLAG_GET_ZCOPY", iface_flag::GET_ZCOPY as usize),
        ("UCT_IFACE_FLAG_ATOMIC_DEVICE", iface_flag::ATOMIC_DEVICE as usize),
        ("UCT_IFACE_FLAG_ERRHANDLE_AM_ID", iface_flag::ERRHANDLE_AM_ID as usize),
        ("UCT_IFACE_FLAG_EP_CHECK", iface_flag::EP_CHECK as usize),
        ("UCT_IFACE_FLAG_CB_SYNC", iface_flag::CB_SYNC as usize),
        ("UCT_ATOMIC_OP_XOR", atomic_op::XOR as usize),
        ("UCT_ATOMIC_OP_CSWAP", atomic_op::CSWAP as usize),
        ("UCS_MEMORY_TYPE_HOST", HOST_MEMORY as usize),
        ("UCS_SYS_DEVICE_ID_UNKNOWN", UNKNOWN_SYS_DEVICE as usize),
        ("UCT_INVALID_RKEY", INVALID_RKEY),
        ("UCT_IFACE_PARAM_FIELD_ERR_HANDLER", IfaceParams::ERR_HANDLER as usize),
        ("UCT_IFACE_PARAM_FIELD_RX_HEADROOM", IfaceParams::RX_HEADROOM as usize),
        ("UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET", IfaceParams::AM_ALIGN_OFFSET as usize),
        ("UCT_EP_PARAM_FIELD_IFACE_ADDR", EpParams::IFACE_ADDR as usize),
        ("UCT_EP_PARAM_FIELD_CM", EpParams::CM as usize),
        ("UCT_EP_PARAM_FIELD_CONN_REQUEST", EpParams::CONN_REQUEST as usize),
        ("UCT_EP_PARAM_FIELD_SOCKADDR_DISCONNECT_CB", EpParams::DISCONNECT_CB as usize),
        ("UCT_EP_PARAM_FIELD_CM_RESOLVE_CB", EpParams::CM_RESOLVE_CB as usize),
        ("UCT_EP_PARAM_FIELD_LOCAL_SOCKADDR", EpParams::LOCAL_SOCKADDR as usize),
        ("UCT_CB_FLAG_ASYNC", EpParams::CB_ASYNC as usize),
        ("UCT_COMPONENT_FLAG_CM", ComponentAttr::CM as usize),
        ("(size_t)-UCS_ERR_NOT_CONNECTED", -crate::status::NOT_CONNECTED as usize),
        ("UCT_MEM_ALLOC_PARAM_FIELD_MDS", MemAllocParams::MDS as usize),
        ("(size_t)-UCS_ERR_NO_RESOURCE", -crate::status::NO_RESOURCE as usize),
        ("(size_t)-UCS_ERR_ENDPOINT_TIMEOUT", -crate::status::ENDPOINT_TIMEOUT as usize),
        ("sizeof(ucs_status_t)", size_of::<Status>()),
    ] {
        all.push((name.to_owned(), value));
    }
    if minor >= 22 {
        offsets!("uct_iface_attr_t" IfaceAttr: ctl_device);
        all.push(("UCT_IFACE_OPEN_MODE_STUB".to_owned(), IfaceParams::MODE_STUB as usize));
    }
    if minor >= 19 {
        layout!("uct_allocated_memory_t" AllocatedMemoryOnDevice: sys_device);
    } else {
        layout!("uct_allocated_memory_t" AllocatedMemory:);
        layout!("uct_mem_alloc_params_t" MemAllocParams:);
    }
    if minor >= 18 {
        layout!("uct_ep_params_t" EpParamsWithLengths: dev_addr_length, iface_addr_length);
        for (name, value) in [
            ("UCT_IFACE_FLAG_INTER_NODE", iface_flag::INTER_NODE),
            ("UCT_EP_PARAM_FIELD_DEV_ADDR_LENGTH", EpParamsWithLengths::DEV_ADDR_LENGTH),
            ("UCT_EP_PARAM_FIELD_IFACE_ADDR_LENGTH", EpParamsWithLengths::IFACE_ADDR_LENGTH),
        ] {
            all.push((name.to_owned(), value as usize));
        }
    } else {
        layout!("uct_ep_params_t" EpParams:);
    }
    if minor >= 16 {
        all.push(("sizeof(ucs_callbackq_t) <= 264".to_owned(), 1));
        all.push(("sizeof(uct_worker_t) == sizeof(ucs_callbackq_t)".to_owned(), 1));
    } else {
        layout!("ucs_callbackq_t" CallbackQueue:);
        layout!("uct_worker_t" CallbackQueue:);
    }
    if minor >= 14 {
        let none = -MemRegParams::NO_DMABUF as usize;
        all.push(("(size_t)-UCT_DMABUF_FD_INVALID".to_owned(), none));
        all.push(("UCT_COMPONENT_FLAG_RKEY_PTR".to_owned(), ComponentAttr::RKEY_PTR as usize));
    }
    all
}

#[test]
fn sizes_and_offsets_are_those_of_the_headers() {
    compare(None, 13, expected(13));
}

/// Packages have no `v2/uct_v2.h`; `head.rs` asserts the sizes and offsets of its types, and
/// `tests/v2.rs` those of one that depends on the version.
#[test]
fn newer_headers_have_these_sizes_and_offsets() {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(target).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let minor =
            name.strip_prefix("ucx-1.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let headers = entry.path().join("libucx/include");
        if let (Some(minor), true) = (minor, headers.exists()) {
            compare(Some(&headers), minor, expected(minor));
            count += 1;
        }
    }
    if count == 0 {
        println!("skipped: no UCX in the target folder (cargo xtask compare shm installs 1.22)");
    }
}

/// Compares values with those of the headers in a folder, of version 1.`minor`.
fn compare(headers: Option<&Path>, minor: i32, expected: Vec<(String, usize)>) {
    let mut program =
        "#include <uct/api/uct.h>\n#include <stddef.h>\nint main(void) {\n".to_owned();
    for (expression, _) in &expected {
        writeln!(program, "printf(\"%s=%zu\\n\", \"{expression}\", (size_t)({expression}));")
            .unwrap();
    }
    program.push_str("return UCT_VERNO_MINOR;\n}\n");
    let folder = std::env::temp_dir().join(format!("barewire-uct-{minor}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new("cc");
    if let Some(headers) = headers {
        compiler.arg("-I").arg(headers);
    }
    let compiled = compiler.arg("-o").arg(&binary).arg(&source).output();
    let printed = match compiled {
        Ok(compiled) if compiled.status.success() => Command::new(&binary).output().ok(),
        Ok(compiled) => {
            let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
            assert!(errors.contains("uct/api/uct.h: No such file"), "{errors}");
            None
        }
        Err(_) => None,
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let Some(printed) = printed.filter(|printed| printed.status.code() == Some(minor)) else {
        println!(
            "skipped: no C compiler with the headers of UCX 1.{minor} (Debian: gcc libucx-dev)"
        );
        return;
    };
    let printed = String::from_utf8(printed.stdout).unwrap();
    let found: HashMap<&str, &str> =
        printed.lines().filter_map(|line| line.rsplit_once('=')).collect();
    for (expression, value) in expected {
        assert_eq!(found[&*expression], value.to_string(), "{expression}");
    }
}
