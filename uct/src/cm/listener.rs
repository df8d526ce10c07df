//! Listeners, and the connections of their clients until the program accepts or refuses.

use std::ffi::{c_int, c_void};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::Verdict;
use barewire_tcp::listener::{Authenticated, Limits, Listener};

use super::connection::{Connection, Event, Phase};
use super::frame::{Frame, Kind, LONGEST};
use super::{CLAIM, Cm, Core, endpoint, of_cm};
use crate::abi::client_server::{
    ConnRequestArgs, ConnRequestCallback, ListenerAttr, ListenerParams, SockAddr,
};
use crate::status::{BUSY, INVALID_ADDR, INVALID_PARAM, IO_ERROR, NOT_CONNECTED, Status, guard};
use crate::text;

/// Clients that may wait for the program unless it says how many.
const BACKLOG: usize = 1024;

/// After so long, a client that has requested nothing gives way to another one, if as many wait as
/// the program allows.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// `uct_listener_t`
#[repr(C)]
pub(crate) struct CmListener {
    cm: *const Cm,
    id: u64,
}

/// `uct_conn_request_t`: libucp accepts with the connection manager of another worker than the
/// listener's.
pub(super) struct Request {
    cm: *const Cm,
    id: u64,
}

impl Request {
    /// Takes the connection out of the connection manager of its listener.
    ///
    /// # Safety
    /// `request` is null, or one that a callback passed, and was not taken before. The connection
    /// manager of its listener is open.
    pub(super) unsafe fn take(request: *mut c_void) -> Result<Connection, Status> {
        if request.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: contract of this function.
        let request = unsafe { Box::from_raw(request.cast::<Self>()) };
        // SAFETY: as above.
        let cm = unsafe { of_cm(request.cm) }?;
        cm.with_core(|core| {
            let taken = core.connections.borrow_mut().remove(&request.id).ok_or(INVALID_PARAM)?;
            if let Some(stream) = &taken.stream {
                core.unwatch(stream);
            }
            Ok(taken)
        })
    }
}

/// A listener, as its connection manager knows it.
pub(super) struct Listening {
    pub(super) listener: Listener,
    handle: *mut CmListener,
    callback: ConnRequestCallback,
    user_data: *mut c_void,
    backlog: usize,
    is_watched: bool,
}

/// Returns the address of the caller, which is one of IPv4 or IPv6.
///
/// # Safety
/// `address` is null, or valid for reads of `length` bytes.
pub(super) unsafe fn read_address(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Result<SocketAddr, Status> {
    let has = |needed: usize| !address.is_null() && length as usize >= needed;
    if !has(size_of::<libc::sa_family_t>()) {
        return Err(INVALID_PARAM);
    }
    // SAFETY: the address has room for its family, and then for the structure of it.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET if has(size_of::<libc::sockaddr_in>()) => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(found.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 if has(size_of::<libc::sockaddr_in6>()) => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let (ip, port) = (Ipv6Addr::from(found.sin6_addr.s6_addr), found.sin6_port);
                Ok(SocketAddrV6::new(ip, u16::from_be(port), 0, found.sin6_scope_id).into())
            }
            _ => Err(INVALID_ADDR),
        }
    }
}

/// An address as C has it, and its length.
pub(super) fn to_storage(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros are a valid value.
    let mut storage = unsafe { std::mem::zeroed::<libc::sockaddr_storage>() };
    let at = &raw mut storage;
    let length = match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has room and alignment for every structure of an address.
            let place = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_port = address.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let place = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_port = address.port().to_be();
            place.sin6_addr.s6_addr = address.ip().octets();
            place.sin6_scope_id = address.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

impl Core {
    /// Accepts connections and advances their handshakes.
    pub(super) fn accept(&self, now: Instant) {
        let mut admitted = Vec::new();
        for (id, listening) in &mut *self.listeners.borrow_mut() {
            let mut authenticated = Vec::new();
            listening.listener.work(now, &mut authenticated);
            if let Some(error) = listening.listener.take_shortage() {
                crate::log::error(&error);
            }
            let is_watched = !listening.listener.is_paused();
            if is_watched != listening.is_watched {
                // The timer calls again if it fails.
                let changed = self.events.set(*id, listening.listener.as_fd(), is_watched);
                if changed.is_ok() {
                    listening.is_watched = is_watched;
                }
            }
            admitted.extend(authenticated.into_iter().map(|peer| (*id, listening.backlog, peer)));
        }
        for (listener, backlog, peer) in admitted {
            self.admit(listener, backlog, peer, now);
        }
    }

    fn admit(&self, listener: u64, backlog: usize, peer: Authenticated, now: Instant) {
        if peer.claim != CLAIM {
            return peer.refuse(Verdict::Unknown);
        }
        let (open, waiting, silent) = {
            let connections = self.connections.borrow();
            let accepted = || connections.iter().filter(|(_, one)| one.listener.is_some());
            // Also those that have failed, of which the program has a request.
            let waits = |(_, one): &(&u64, &Connection)| {
                one.listener == Some(listener) && one.ep.is_none() && one.phase != Phase::Refused
            };
            let silent = accepted()
                .filter(|(_, one)| one.listener == Some(listener) && one.phase == Phase::Greeted)
                .map(|(id, one)| (*id, now.saturating_duration_since(one.since)))
                .max_by_key(|(_, age)| *age)
                .filter(|(_, age)| *age >= SILENCE);
            (accepted().count(), accepted().filter(waits).count(), silent)
        };
        if open >= self.most {
            return peer.refuse(Verdict::Full);
        }
        if waiting >= backlog {
            let Some((oldest, _)) = silent else { return peer.refuse(Verdict::Busy) };
            self.remove(oldest);
        }
        let id = self.number();
        let welcomed = peer.welcome().and_then(|socket| {
            let stream = Stream::new(socket, LONGEST);
            self.events.add(id, &stream)?;
            Ok(stream)
        });
        match welcomed {
            Ok(stream) => {
                let connection = Connection::server(stream, listener, now);
                self.connections.borrow_mut().insert(id, connection);
            }
            Err(error) => crate::log::diag(&error),
        }
    }

    /// Tells the program that a client requests a connection.
    pub(super) fn offer(&self, cm: &Cm, id: u64, frame: &Frame) {
        let found = {
            let connections = self.connections.borrow();
            let connection = connections.get(&id);
            let stream = connection.and_then(|one| one.stream.as_ref());
            let (own, peer) = stream.map_or((None, None), endpoint::addresses);
            let listeners = self.listeners.borrow();
            let listener = connection.and_then(|one| listeners.get(&one.listener?));
            listener.map(|one| (one.handle, one.callback, one.user_data)).zip(own.zip(peer))
        };
        // The listener was destroyed.
        let Some(((handle, callback, user_data), (own, peer))) = found else {
            return self.remove(id);
        };
        let device = cm.devices().select(own.ip(), frame.device.map(|device| device.transport()));
        let request = Box::into_raw(Box::new(Request { cm, id }));
        if let Some(connection) = self.connections.borrow_mut().get_mut(&id) {
            connection.calls.device = device.address;
        }
        let (storage, length) = to_storage(peer);
        let address = endpoint::padded(frame);
        let remote = endpoint::remote_data(frame, &address);
        let arguments = ConnRequestArgs {
            field_mask: ConnRequestArgs::ALL,
            dev_name: text::field(&device.name),
            conn_request: request.cast(),
            remote_data: &raw const remote,
            client_address: SockAddr { addr: (&raw const storage).cast(), length },
        };
        // SAFETY: the callback and its argument are the caller's, and the listener is open. What
        // the arguments point to lives until the callback returns.
        unsafe { callback(handle, user_data, &raw const arguments) };
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_listener_create(
    cm: *mut Cm,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
    params: *const ListenerParams,
    listener: *mut *mut CmListener,
) -> Status {
    guard(|| {
        // SAFETY: an open handle; the others are null or valid for this call.
        let (open, params) = unsafe { (of_cm(cm)?, params.as_ref()) };
        let params = params.ok_or(INVALID_PARAM)?;
        let given = |field| params.field_mask & field != 0;
        let callback = params.conn_request_cb.filter(|_| given(ListenerParams::CONN_REQUEST_CB));
        let callback = callback.ok_or(INVALID_PARAM)?;
        if listener.is_null() || given(ListenerParams::BACKLOG) && params.backlog <= 0 {
            return Err(INVALID_PARAM);
        }
        let backlog =
            if given(ListenerParams::BACKLOG) { params.backlog as usize } else { BACKLOG };
        let user_data = params.user_data;
        let user_data =
            if given(ListenerParams::USER_DATA) { user_data } else { std::ptr::null_mut() };
        // SAFETY: the caller's address.
        let address = unsafe { read_address(address, length) }?;
        open.with_core(|core| {
            let limits = Limits::toward(address.ip());
            let opened = Listener::open_at(address, core.key.clone(), limits);
            let opened = opened.map_err(|error| {
                crate::log::diag(&format_args!("cannot listen on {address}: {error}"));
                match error.kind() {
                    ErrorKind::AddrInUse => BUSY,
                    ErrorKind::AddrNotAvailable => INVALID_ADDR,
                    _ => IO_ERROR,
                }
            })?;
            let id = core.number();
            core.events.add(id, opened.as_fd()).map_err(|error| super::refused(&error))?;
            let handle = Box::into_raw(Box::new(CmListener { cm, id }));
            let listening = Listening {
                listener: opened,
                handle,
                callback,
                user_data,
                backlog,
                is_watched: true,
            };
            core.listeners.borrow_mut().insert(id, listening);
            // SAFETY: the caller's pointer is valid for writes.
            unsafe { *listener = handle };
            Ok(())
        })
    })
}

/// Returns a listener and its connection manager.
///
/// # Safety
/// `listener` is null or an open handle, whose connection manager is open, too.
unsafe fn of_listener<'a>(listener: *const CmListener) -> Result<(&'a Cm, u64), Status> {
    // SAFETY: contract of this function.
    unsafe {
        let listener = listener.as_ref().ok_or(INVALID_PARAM)?;
        Ok((of_cm(listener.cm)?, listener.id))
    }
}

/// Clients that wait for the program remain.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_listener_destroy(listener: *mut CmListener) {
    guard(|| {
        // SAFETY: an open handle.
        let (cm, id) = unsafe { of_listener(listener) }?;
        cm.with_core(|core| {
            let closed = core.listeners.borrow_mut().remove(&id);
            if let Some(closed) = closed {
                core.unwatch(closed.listener.as_fd());
            }
            // The program does not know these.
            let is_unknown =
                |one: &Connection| one.listener == Some(id) && one.phase == Phase::Greeted;
            let unknown: Vec<u64> = {
                let connections = core.connections.borrow();
                let found = connections.iter().filter(|(_, one)| is_unknown(one));
                found.map(|(id, _)| *id).collect()
            };
            for id in unknown {
                core.remove(id);
            }
            Ok(())
        })?;
        // SAFETY: it is destroyed once. No callback with it runs: the lock was free, or this is
        // called from that callback.
        drop(unsafe { Box::from_raw(listener) });
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_listener_reject(
    listener: *mut CmListener,
    request: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: an open handle, and a request of this listener.
        let ((cm, _), connection) = unsafe { (of_listener(listener)?, Request::take(request)?) };
        refuse(cm, connection)
    })
}

/// Refuses a client. The connection stays until the client has ended it.
pub(super) fn refuse(cm: &Cm, mut connection: Connection) -> Result<(), Status> {
    cm.with_core(|core| {
        connection.send(&Frame::empty(Kind::Refuse), Phase::Offered, Phase::Refused)?;
        let id = core.number();
        let stream = connection.stream.as_ref().ok_or(NOT_CONNECTED)?;
        core.events.add(id, stream).map_err(|error| super::refused(&error))?;
        core.connections.borrow_mut().insert(id, connection);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_listener_query(
    listener: *const CmListener,
    attr: *mut ListenerAttr,
) -> Status {
    guard(|| {
        // SAFETY: an open handle; the other is null or valid for this call.
        let ((cm, id), attr) = unsafe { (of_listener(listener)?, attr.as_mut()) };
        let attr = attr.ok_or(INVALID_PARAM)?;
        cm.with_core(|core| {
            let listeners = core.listeners.borrow();
            let found = listeners.get(&id).ok_or(INVALID_PARAM)?;
            if attr.field_mask & ListenerAttr::SOCKADDR != 0 {
                attr.sockaddr = to_storage(found.listener.address()).0;
            }
            Ok(())
        })
    })
}

impl Core {
    /// Tells the program what happened to a connection.
    pub(super) fn deliver(&self, cm: &Cm, id: u64, event: Event) {
        match event {
            Event::Request(frame) => self.offer(cm, id, &frame),
            Event::Over => self.remove(id),
            event => self.tell(cm, id, event),
        }
    }
}
