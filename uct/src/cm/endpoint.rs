//! Endpoints of connection management, and the callbacks for what happens to their connections.

use std::ffi::{c_uint, c_void};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null, null_mut};
use std::time::Instant;

use barewire::TransportId;
use barewire::address::DeviceAddress;
use barewire_tcp::HostAddress;
use barewire_tcp::connector::Connector;
use barewire_tcp::frames::Stream;
use barewire_tcp::listener::Limits;

use super::connection::{Connection, Event, Phase};
use super::frame::{Frame, Kind, MOST_DATA};
use super::listener::{Request, read_address, refuse, to_storage};
use super::{CLAIM, Cm, Core, OPS, TIMEOUT, of_cm};
use crate::abi::client_server::{
    ClientConnectArgs, ClientConnectCallback, DisconnectCallback, EpAttr, EpConnectParams,
    PrivDataPackArgs, PrivDataPackCallback, RemoteData, ResolveArgs, ResolveCallback,
    ServerNotifyArgs, ServerNotifyCallback,
};
use crate::abi::{Completion, EpParams, IfaceOps, PurgeCallback};
use crate::endpoint::Ep;
use crate::status::{
    BUFFER_TOO_SMALL, EXCEEDS_LIMIT, INVALID_PARAM, IO_ERROR, NOT_CONNECTED, OK, Status,
    UNREACHABLE, UNSUPPORTED, guard,
};
use crate::text;

/// `uct_ep_t`: the connection manager comes first, because programs call operations through it.
#[repr(C)]
pub(super) struct CmEp {
    cm: *const Cm,
    id: u64,
}

/// The callbacks of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    user_data: *mut c_void,
    resolve: Option<ResolveCallback>,
    pack: Option<PrivDataPackCallback>,
    client: Option<ClientConnectCallback>,
    server: Option<ServerNotifyCallback>,
    disconnect: Option<DisconnectCallback>,
    /// The device of this side.
    pub(super) device: Option<DeviceAddress>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            user_data: null_mut(),
            resolve: None,
            pack: None,
            client: None,
            server: None,
            disconnect: None,
            device: None,
        }
    }
}

/// Returns a callback of the parameters, which is not null if it is given.
fn checked<F>(is_given: bool, callback: Option<F>) -> Result<Option<F>, Status> {
    if is_given { callback.map(Some).ok_or(INVALID_PARAM) } else { Ok(None) }
}

impl Calls {
    /// Returns the callbacks that the mask of the parameters names.
    ///
    /// # Errors
    /// One of them is null, or they may not be called from another thread.
    fn new(params: &EpParams) -> Result<Self, Status> {
        let given = |field| params.field_mask & field != 0;
        if !given(EpParams::SOCKADDR_CB_FLAGS) || params.sockaddr_cb_flags & EpParams::CB_ASYNC == 0
        {
            return Err(UNSUPPORTED);
        }
        let user_data = params.user_data;
        Ok(Self {
            user_data: if given(EpParams::USER_DATA) { user_data } else { null_mut() },
            resolve: checked(given(EpParams::CM_RESOLVE_CB), params.cm_resolve_cb)?,
            pack: checked(given(EpParams::SOCKADDR_PACK_CB), params.sockaddr_pack_cb)?,
            client: checked(given(EpParams::CONNECT_CB_CLIENT), params.sockaddr_cb_client)?,
            server: checked(given(EpParams::NOTIFY_CB_SERVER), params.sockaddr_cb_server)?,
            disconnect: checked(given(EpParams::DISCONNECT_CB), params.disconnect_cb)?,
            device: None,
        })
    }
}

/// Returns the addresses of both ends.
pub(super) fn addresses(stream: &Stream) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let own = rustix::net::getsockname(stream.as_fd()).ok();
    let peer = rustix::net::getpeername(stream.as_fd()).ok().flatten();
    let ip = |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).ok();
    (own.and_then(ip), peer.and_then(ip))
}

/// Bytes of the longest address of a device.
const LONGEST: usize = 64;

const _: () = {
    let mut at = 0;
    while at < TransportId::ALL.len() {
        assert!(DeviceAddress::body_length(TransportId::ALL[at]) <= LONGEST);
        at += 1;
    }
};

/// Returns the address of the peer's device. libucp uses it for the transports that the peer's
/// worker names, which may be others than the device's: zeros follow, so that each finds as many
/// bytes as it reads.
pub(super) fn padded(frame: &Frame) -> [u8; LONGEST] {
    let mut address = [0; LONGEST];
    let device = frame.device.as_ref().map(DeviceAddress::body).unwrap_or_default();
    for (place, byte) in address.iter_mut().zip(device) {
        *place = *byte;
    }
    address
}

/// Returns what a message tells the program. The pointers are to parts of the message, and to the
/// address.
pub(super) fn remote_data(frame: &Frame, address: &[u8; LONGEST]) -> RemoteData {
    RemoteData {
        field_mask: RemoteData::ALL,
        dev_addr: address.as_ptr().cast(),
        dev_addr_length: address.len(),
        conn_priv_data: frame.data.as_ptr().cast(),
        conn_priv_data_length: frame.data.len(),
    }
}

/// Returns private data of the program.
///
/// # Safety
/// `data` is null, or valid for reads of `length` bytes.
unsafe fn read_data(data: *const u8, length: usize) -> Result<Vec<u8>, Status> {
    if length > MOST_DATA {
        return Err(BUFFER_TOO_SMALL);
    }
    if length == 0 {
        return Ok(Vec::new());
    }
    if data.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(data, length) }.to_vec())
}

/// Creates an endpoint of a client that connects to a socket address, or of a server for a request.
///
/// # Safety
/// The parameters are the caller's, and have a connection manager.
pub(crate) unsafe fn create(params: &EpParams, ep: *mut *mut Ep) -> Status {
    guard(|| {
        let given = |field| params.field_mask & field != 0;
        if ep.is_null() {
            return Err(INVALID_PARAM);
        }
        // The request ends even if the other parameters are not valid (uct.h).
        let offered = if given(EpParams::CONN_REQUEST) {
            // SAFETY: the program has the request from the callback of a listener.
            Some(unsafe { Request::take(params.conn_request) }?)
        } else {
            None
        };
        // SAFETY: an open handle.
        let cm = unsafe { of_cm(params.cm) }?;
        let calls = Calls::new(params)?;
        let opened = match (given(EpParams::SOCKADDR), offered) {
            // SAFETY: the addresses are null or the caller's.
            (true, None) => unsafe { dial(cm, params, calls) }?,
            // SAFETY: the private data is the caller's.
            (false, Some(offered)) => unsafe { accept(cm, params, calls, offered) }?,
            _ => return Err(INVALID_PARAM),
        };
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *ep = opened.as_ptr().cast() };
        Ok(())
    })
}

/// Begins to connect a client.
///
/// # Safety
/// The addresses of the parameters are null, or valid for reads of their lengths.
unsafe fn dial(cm: &Cm, params: &EpParams, calls: Calls) -> Result<NonNull<CmEp>, Status> {
    if calls.resolve.is_some() == calls.pack.is_some() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function.
    let (peer, source) = unsafe {
        let peer = params.sockaddr.as_ref().ok_or(INVALID_PARAM)?;
        let peer = read_address(peer.addr, peer.length)?;
        let source = if params.field_mask & EpParams::LOCAL_SOCKADDR != 0 {
            let source = params.local_sockaddr.as_ref().ok_or(INVALID_PARAM)?;
            Some(read_address(source.addr, source.length)?)
        } else {
            None
        };
        (peer, source)
    };
    if source.is_some_and(|source| source.port() != 0) {
        crate::log::error(&"a client cannot choose its own port: pass a local address with port 0");
        return Err(UNSUPPORTED);
    }
    let source = source.map(HostAddress::from).filter(|source| !source.ip().is_unspecified());
    cm.with_core(|core| {
        let limits = Limits::toward(peer.ip());
        let connector = Connector::start(peer, source, &core.key, CLAIM, TIMEOUT, limits);
        let connector = connector.map_err(|error| {
            crate::log::error(&format_args!("cannot connect to {peer}: {error}"));
            UNREACHABLE
        })?;
        let id = core.number();
        let ep = NonNull::from(Box::leak(Box::new(CmEp { cm, id })));
        let connection = Connection::client(connector, ep, calls, Instant::now());
        core.connections.borrow_mut().insert(id, connection);
        Ok(ep)
    })
}

/// Accepts a request.
///
/// # Safety
/// The private data of the parameters is null, or valid for reads of its length.
unsafe fn accept(
    cm: &Cm,
    params: &EpParams,
    calls: Calls,
    connection: Connection,
) -> Result<NonNull<CmEp>, Status> {
    let given = |field| params.field_mask & field != 0;
    let length = if given(EpParams::PRIV_DATA_LENGTH) { params.private_data_length } else { 0 };
    let data = if given(EpParams::PRIV_DATA) { params.private_data } else { null() };
    // SAFETY: contract of this function.
    let mut data = unsafe { read_data(data, length) };
    if connection.phase == Phase::Failed {
        return Err(NOT_CONNECTED);
    }
    if let Some(pack) = calls.pack {
        let own = connection.stream.as_ref().and_then(|stream| addresses(stream).0);
        let name = own.map(|own| cm.devices().select(own.ip(), None).name);
        // SAFETY: the caller's callback.
        data = unsafe { packed(pack, calls.user_data, &name.unwrap_or_default()) };
        if let Err(status) = data {
            // A program may refuse this way, too (uct.h).
            return refuse(cm, connection).and(Err(status));
        }
    }
    let (data, device) = (data?, connection.calls.device);
    cm.with_core(|core| {
        let (mut connection, id) = (connection, core.number());
        connection.calls = Calls { device, ..calls };
        let frame = Frame { kind: Kind::Accept, device, data };
        connection.send(&frame, Phase::Offered, Phase::Answered)?;
        let stream = connection.stream.as_ref().ok_or(NOT_CONNECTED)?;
        core.events.add(id, stream).map_err(|error| super::refused(&error))?;
        let ep = NonNull::from(Box::leak(Box::new(CmEp { cm, id })));
        connection.ep = Some(ep);
        core.connections.borrow_mut().insert(id, connection);
        Ok(ep)
    })
}

/// Calls a callback for private data.
///
/// # Safety
/// The callback and its argument are the caller's.
unsafe fn packed(
    pack: PrivDataPackCallback,
    user_data: *mut c_void,
    device: &str,
) -> Result<Vec<u8>, Status> {
    let arguments =
        PrivDataPackArgs { field_mask: PrivDataPackArgs::DEV_NAME, dev_name: text::field(device) };
    let mut data = vec![0; MOST_DATA];
    // SAFETY: contract of this function; the buffer has as many bytes as `uct_cm_query` says.
    let length = unsafe { pack(user_data, &raw const arguments, data.as_mut_ptr()) };
    match usize::try_from(length) {
        Ok(length) if length <= MOST_DATA => {
            data.truncate(length);
            Ok(data)
        }
        Ok(_) => Err(EXCEEDS_LIMIT),
        Err(_) => Err(Status::try_from(length).unwrap_or(IO_ERROR)),
    }
}

impl Core {
    /// The own address of a connection.
    fn own(&self, id: u64) -> Option<SocketAddr> {
        let connections = self.connections.borrow();
        addresses(connections.get(&id)?.stream.as_ref()?).0
    }

    /// Tells the program what happened to the connection of an endpoint.
    pub(super) fn tell(&self, cm: &Cm, id: u64, event: Event) {
        let Some((ep, calls)) = ({
            let connections = self.connections.borrow();
            connections.get(&id).and_then(|one| Some((one.ep?, one.calls)))
        }) else {
            return;
        };
        let handle = ep.as_ptr().cast::<Ep>();
        let user_data = calls.user_data;
        match event {
            Event::Resolved => self.resolved(cm, id, handle, calls),
            Event::Failed(status) if calls.server.is_some() => acknowledged(handle, calls, status),
            Event::Failed(status) => self.failed(id, handle, calls, status),
            Event::Response(frame) => {
                let address = padded(&frame);
                let remote = remote_data(&frame, &address);
                responded(handle, calls, Some(&remote), OK);
            }
            Event::Acknowledged => acknowledged(handle, calls, OK),
            Event::Disconnected => {
                if let Some(disconnected) = calls.disconnect {
                    // SAFETY: the callback and its argument are the caller's; the endpoint is open.
                    unsafe { disconnected(handle, user_data) };
                }
            }
            Event::Request(_) | Event::Over => {}
        }
    }

    /// The connection to the server is open: the program learns the device, and passes its data now
    /// or later.
    fn resolved(&self, cm: &Cm, id: u64, ep: *mut Ep, calls: Calls) {
        let Some(own) = self.own(id) else { return };
        let device = cm.devices().select(own.ip(), None);
        if let Some(connection) = self.connections.borrow_mut().get_mut(&id) {
            connection.calls.device = device.address;
            connection.is_resolved = true;
        }
        if let Some(resolve) = calls.resolve {
            return resolved(resolve, calls, &device.name, OK);
        }
        let Some(pack) = calls.pack else { return };
        // SAFETY: as above.
        let packed = unsafe { packed(pack, calls.user_data, &device.name) };
        if let Err(status) = packed.and_then(|data| self.request(id, data)) {
            if let Some(connection) = self.connections.borrow_mut().get_mut(&id) {
                connection.fail();
                self.forget(connection);
            }
            // The program knows it if its own callback has failed.
            if matches!(status, EXCEEDS_LIMIT | NOT_CONNECTED) {
                responded(ep, calls, None, status);
            }
        }
    }

    /// A client was not connected.
    fn failed(&self, id: u64, ep: *mut Ep, calls: Calls, status: Status) {
        let is_resolved = self.connections.borrow().get(&id).is_some_and(|one| one.is_resolved);
        match calls.resolve {
            Some(resolve) if !is_resolved => resolved(resolve, calls, "", status),
            _ => responded(ep, calls, None, status),
        }
    }

    /// Sends the request of a client.
    fn request(&self, id: u64, data: Vec<u8>) -> Result<(), Status> {
        let mut connections = self.connections.borrow_mut();
        let connection = connections.get_mut(&id).ok_or(NOT_CONNECTED)?;
        let frame = Frame { kind: Kind::Request, device: connection.calls.device, data };
        connection.send(&frame, Phase::Resolved, Phase::Requested)
    }
}

/// Calls the callback for the device of a client.
fn resolved(resolve: ResolveCallback, calls: Calls, device: &str, status: Status) {
    let dev_name = text::field(device);
    let arguments = ResolveArgs { field_mask: ResolveArgs::ALL, dev_name, status };
    // The program knows it if its own callback fails.
    // SAFETY: the callback and its argument are the caller's.
    unsafe { resolve(calls.user_data, &raw const arguments) };
}

/// Calls the callback for the response of the server.
fn responded(ep: *mut Ep, calls: Calls, remote: Option<&RemoteData>, status: Status) {
    let Some(callback) = calls.client else { return };
    let none = RemoteData {
        field_mask: 0,
        dev_addr: null(),
        dev_addr_length: 0,
        conn_priv_data: null(),
        conn_priv_data_length: 0,
    };
    let remote_data = &raw const *remote.unwrap_or(&none);
    let arguments = ClientConnectArgs { field_mask: ClientConnectArgs::ALL, remote_data, status };
    // SAFETY: the callback and its argument are the caller's; the endpoint is open.
    unsafe { callback(ep, calls.user_data, &raw const arguments) };
}

/// Calls the callback for the acknowledgement of the client.
fn acknowledged(ep: *mut Ep, calls: Calls, status: Status) {
    let Some(callback) = calls.server else { return };
    let arguments = ServerNotifyArgs { field_mask: ServerNotifyArgs::STATUS, status };
    // SAFETY: the callback and its argument are the caller's; the endpoint is open.
    unsafe { callback(ep, calls.user_data, &raw const arguments) };
}

/// Returns the number of an endpoint's connection, and its connection manager.
///
/// # Safety
/// `ep` is null or an open handle of [`create`], whose connection manager is open.
unsafe fn of_cm_ep<'a>(ep: *const Ep) -> Result<(&'a Cm, u64), Status> {
    // SAFETY: contract of this function.
    unsafe {
        let ep = ep.cast::<CmEp>().as_ref().ok_or(INVALID_PARAM)?;
        Ok((of_cm(ep.cm)?, ep.id))
    }
}

/// Passes the private data of a client.
pub(super) unsafe extern "C" fn connect(ep: *mut Ep, params: *const EpConnectParams) -> Status {
    guard(|| {
        // SAFETY: an open handle; the other is null or valid for this call.
        let ((cm, id), params) = unsafe { (of_cm_ep(ep)?, params.as_ref()) };
        let params = params.ok_or(INVALID_PARAM)?;
        let given = |field| params.field_mask & field != 0;
        let length = params.private_data_length;
        let length = if given(EpConnectParams::PRIVATE_DATA_LENGTH) { length } else { 0 };
        let data = if given(EpConnectParams::PRIVATE_DATA) { params.private_data } else { null() };
        // SAFETY: the private data is the caller's.
        let data = unsafe { read_data(data, length) }?;
        cm.with_core(|core| core.request(id, data))
    })
}

/// The client is connected: tells the server.
pub(super) unsafe extern "C" fn acknowledge(ep: *mut Ep) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let (cm, id) = unsafe { of_cm_ep(ep) }?;
        cm.with_core(|core| {
            let mut connections = core.connections.borrow_mut();
            let connection = connections.get_mut(&id).ok_or(NOT_CONNECTED)?;
            connection.send(&Frame::empty(Kind::Acknowledge), Phase::Accepted, Phase::Connected)
        })
    })
}

pub(super) unsafe extern "C" fn disconnect(ep: *mut Ep, _flags: c_uint) -> Status {
    let mut status = OK;
    let called = guard(|| {
        // SAFETY: an open handle.
        let (cm, id) = unsafe { of_cm_ep(ep) }?;
        cm.with_core(|core| {
            let mut connections = core.connections.borrow_mut();
            status = connections.get_mut(&id).ok_or(NOT_CONNECTED)?.disconnect();
            Ok(())
        })
    });
    if called == OK { status } else { called }
}

pub(super) unsafe extern "C" fn destroy(ep: *mut Ep) {
    guard(|| {
        // SAFETY: an open handle.
        let (cm, id) = unsafe { of_cm_ep(ep) }?;
        cm.with_core(|core| {
            core.remove(id);
            Ok(())
        })?;
        // SAFETY: it is destroyed once. No callback with it runs: the lock was free, or this is
        // called from that callback.
        drop(unsafe { Box::from_raw(ep.cast::<CmEp>()) });
        Ok(())
    });
}

/// There are no pending requests.
pub(super) unsafe extern "C" fn pending_purge(
    _: *mut Ep,
    _: Option<PurgeCallback>,
    _: *mut c_void,
) {
}

/// There are no operations.
pub(super) unsafe extern "C" fn flush(_: *mut Ep, _: c_uint, _: *mut Completion) -> Status {
    OK
}

/// Returns whether an endpoint is one of connection management.
///
/// # Safety
/// `ep` is an endpoint of any table.
unsafe fn is_managed(ep: *const Ep) -> bool {
    // SAFETY: contract of this function: an endpoint begins with its interface, which begins with
    // the table. Of a program's table, this operation may be null: it is compared as a number.
    let found = unsafe {
        let table = *ep.cast::<*const IfaceOps>();
        (&raw const (*table).cm_ep_conn_notify).cast::<usize>().read()
    };
    found == OPS.cm_ep_conn_notify as usize
}

/// The socket addresses of an endpoint of connection management; others have none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ep_query(ep: *mut Ep, attr: *mut EpAttr) -> Status {
    guard(|| {
        if ep.is_null() || attr.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        if !unsafe { is_managed(ep) } {
            return Err(UNSUPPORTED);
        }
        // SAFETY: as above.
        let (cm, id) = unsafe { of_cm_ep(ep) }?;
        cm.with_core(|core| {
            let connections = core.connections.borrow();
            let stream = connections.get(&id).and_then(|one| one.stream.as_ref());
            let (own, peer) = addresses(stream.ok_or(NOT_CONNECTED)?);
            let fields = [(EpAttr::LOCAL_SOCKADDR, own), (EpAttr::REMOTE_SOCKADDR, peer)];
            // SAFETY: the caller's structure, which has these fields in every version.
            let mask = unsafe { (*attr).field_mask };
            for (field, address) in fields.into_iter().filter(|(field, _)| mask & field != 0) {
                let (storage, _) = to_storage(address.ok_or(NOT_CONNECTED)?);
                // SAFETY: as above.
                unsafe {
                    if field == EpAttr::LOCAL_SOCKADDR {
                        (*attr).local_address = storage;
                    } else {
                        (*attr).remote_address = storage;
                    }
                }
            }
            Ok(())
        })
    })
}
