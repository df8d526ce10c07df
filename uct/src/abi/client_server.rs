//! The structures and callbacks of connection management: clients and servers by socket address.

use std::ffi::{c_char, c_int, c_void};

use super::DeviceAddr;
use crate::cm::CmListener;
use crate::endpoint::Ep;
use crate::status::Status;

/// `UCT_DEVICE_NAME_MAX` bytes.
pub(crate) type DeviceName = [c_char; 32];

/// `ucs_sock_addr_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    pub(crate) addr: *const libc::sockaddr,
    pub(crate) length: libc::socklen_t,
}

/// `uct_cm_attr_t`
#[repr(C)]
pub(crate) struct CmAttr {
    pub(crate) field_mask: u64,
    pub(crate) max_conn_priv: usize,
}

impl CmAttr {
    pub(crate) const MAX_CONN_PRIV: u64 = 1 << 0;
}

/// `uct_listener_attr_t`
#[repr(C)]
pub(crate) struct ListenerAttr {
    pub(crate) field_mask: u64,
    pub(crate) sockaddr: libc::sockaddr_storage,
}

impl ListenerAttr {
    pub(crate) const SOCKADDR: u64 = 1 << 0;
}

/// `uct_listener_params_t`
#[repr(C)]
pub(crate) struct ListenerParams {
    pub(crate) field_mask: u64,
    pub(crate) backlog: c_int,
    pub(crate) conn_request_cb: Option<ConnRequestCallback>,
    pub(crate) user_data: *mut c_void,
}

impl ListenerParams {
    pub(crate) const BACKLOG: u64 = 1 << 0;
    pub(crate) const CONN_REQUEST_CB: u64 = 1 << 1;
    pub(crate) const USER_DATA: u64 = 1 << 2;
}

/// `uct_ep_connect_params_t`
#[repr(C)]
pub(crate) struct EpConnectParams {
    pub(crate) field_mask: u64,
    pub(crate) private_data: *const u8,
    pub(crate) private_data_length: usize,
}

impl EpConnectParams {
    pub(crate) const PRIVATE_DATA: u64 = 1 << 0;
    pub(crate) const PRIVATE_DATA_LENGTH: u64 = 1 << 1;
}

/// `uct_ep_attr_t`, which `v2/uct_v2.h` has. Later versions have more fields.
#[repr(C)]
pub(crate) struct EpAttr {
    pub(crate) field_mask: u64,
    pub(crate) local_address: libc::sockaddr_storage,
    pub(crate) remote_address: libc::sockaddr_storage,
}

impl EpAttr {
    pub(crate) const LOCAL_SOCKADDR: u64 = 1 << 0;
    pub(crate) const REMOTE_SOCKADDR: u64 = 1 << 1;
}

/// `uct_cm_remote_data_t`
#[repr(C)]
pub(crate) struct RemoteData {
    pub(crate) field_mask: u64,
    pub(crate) dev_addr: *const DeviceAddr,
    pub(crate) dev_addr_length: usize,
    pub(crate) conn_priv_data: *const c_void,
    pub(crate) conn_priv_data_length: usize,
}

impl RemoteData {
    pub(crate) const ALL: u64 = 0b1111;
}

/// `uct_cm_listener_conn_request_args_t`
#[repr(C)]
pub(crate) struct ConnRequestArgs {
    pub(crate) field_mask: u64,
    pub(crate) dev_name: DeviceName,
    pub(crate) conn_request: *mut c_void,
    pub(crate) remote_data: *const RemoteData,
    pub(crate) client_address: SockAddr,
}

impl ConnRequestArgs {
    pub(crate) const ALL: u64 = 0b1111;
}

/// `uct_cm_ep_client_connect_args_t`
#[repr(C)]
pub(crate) struct ClientConnectArgs {
    pub(crate) field_mask: u64,
    pub(crate) remote_data: *const RemoteData,
    pub(crate) status: Status,
}

impl ClientConnectArgs {
    pub(crate) const ALL: u64 = 0b11;
}

/// `uct_cm_ep_server_conn_notify_args_t`
#[repr(C)]
pub(crate) struct ServerNotifyArgs {
    pub(crate) field_mask: u64,
    pub(crate) status: Status,
}

impl ServerNotifyArgs {
    pub(crate) const STATUS: u64 = 1 << 0;
}

/// `uct_cm_ep_priv_data_pack_args_t`
#[repr(C)]
pub(crate) struct PrivDataPackArgs {
    pub(crate) field_mask: u64,
    pub(crate) dev_name: DeviceName,
}

impl PrivDataPackArgs {
    pub(crate) const DEV_NAME: u64 = 1 << 0;
}

/// `uct_cm_ep_resolve_args_t`
#[repr(C)]
pub(crate) struct ResolveArgs {
    pub(crate) field_mask: u64,
    pub(crate) dev_name: DeviceName,
    pub(crate) status: Status,
}

impl ResolveArgs {
    pub(crate) const ALL: u64 = 0b11;
}

/// `uct_cm_listener_conn_request_callback_t`
pub(crate) type ConnRequestCallback =
    unsafe extern "C" fn(*mut CmListener, *mut c_void, *const ConnRequestArgs);
/// `uct_cm_ep_client_connect_callback_t`
pub(crate) type ClientConnectCallback =
    unsafe extern "C" fn(*mut Ep, *mut c_void, *const ClientConnectArgs);
/// `uct_cm_ep_server_conn_notify_callback_t`
pub(crate) type ServerNotifyCallback =
    unsafe extern "C" fn(*mut Ep, *mut c_void, *const ServerNotifyArgs);
/// `uct_ep_disconnect_cb_t`
pub(crate) type DisconnectCallback = unsafe extern "C" fn(*mut Ep, *mut c_void);
/// `uct_cm_ep_priv_data_pack_callback_t`: returns the number of bytes, or a status.
pub(crate) type PrivDataPackCallback =
    unsafe extern "C" fn(*mut c_void, *const PrivDataPackArgs, *mut u8) -> isize;
/// `uct_cm_ep_resolve_callback_t`
pub(crate) type ResolveCallback = unsafe extern "C" fn(*mut c_void, *const ResolveArgs) -> Status;
