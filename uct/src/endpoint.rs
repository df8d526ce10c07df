//! Endpoints: connecting, pending requests, synchronization.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use barewire::address::{AddressError, DeviceAddress, EndpointAddress, InterfaceAddress};
use barewire::transport::tcp::Routes;
use barewire::{
    ConnectError, Endpoint, FlushMode, PeerAddress, PendingRequest, PendingResult, Posted,
    TransportId,
};
use barewire_tcp::time::after;

use crate::abi::head::EpParamsWithLengths;
use crate::abi::{Completion, DeviceAddr, EpAddr, EpParams, IfaceAddr, PendingReq, PurgeCallback};
use crate::bootstrap::{self, Contact};
use crate::iface::{Iface, copy_out, of_iface};
use crate::log::Level;
use crate::post::with_completion;
use crate::query::ep_address_length;
use crate::status::{
    BUSY, INVALID_ADDR, INVALID_PARAM, NO_RESOURCE, OK, Status, UNREACHABLE, UNSUPPORTED, guard,
    of_connect, of_open, of_posted, of_result,
};

/// `uct_ep_t`: the interface comes first, because programs call operations through it.
#[repr(C)]
pub(crate) struct Ep {
    iface: *mut Iface,
    pub(crate) endpoint: Endpoint,
    is_reported: Cell<bool>,
    /// The number of the link that connects it to an interface.
    link: Cell<Option<u64>>,
    /// Requests that were added before the endpoint was connected.
    waiting: RefCell<VecDeque<NonNull<PendingReq>>>,
    is_connected: Cell<bool>,
    /// The other end of an endpoint that a program connects to itself.
    twin: OnceCell<Endpoint>,
    /// What the program connected it to.
    pub(crate) remote: Cell<Option<Remote>>,
}

/// The peer of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: PeerAddress,
    /// Where the peer's interface listens, which is a part of its address.
    pub(crate) contact: Option<Contact>,
}

impl Ep {
    #[inline(always)]
    pub(crate) fn interface(&self) -> &Iface {
        // SAFETY: the interface is open until its endpoints are destroyed (uct.h).
        unsafe { &*self.iface }
    }

    /// Returns whether the endpoint failed and this was not called since.
    pub(crate) fn is_news(&self) -> bool {
        self.endpoint.error().is_some() && !self.is_reported.replace(true)
    }

    /// Ends the link that connects the endpoint to an interface, if there is one.
    pub(crate) fn end_link(&self) {
        if let Some(link) = self.link.take()
            && let Some(bootstrap) = self.interface().bootstrap.get()
        {
            bootstrap.hang_up(link);
        }
    }

    /// Returns whether a flush of the interface waits for the endpoint to connect: if requests wait
    /// for that, or if UCX's own transport would wait. Otherwise a flush, and with it the end of a
    /// program, would need progress of a peer that has nothing to receive.
    pub(crate) fn delays_flush(&self) -> bool {
        let is_dialing = !self.is_connected.get() && self.link.get().is_some();
        let is_connecting = self.endpoint.is_connecting();
        let waits = self.endpoint.transport() != TransportId::Shm;
        is_dialing && !self.waiting.borrow().is_empty()
            || is_connecting && (waits || !self.is_unused())
    }

    /// Returns whether nothing was posted, because the endpoint connects, and no request waits for
    /// that.
    fn is_unused(&self) -> bool {
        let is_connecting = !self.is_connected.get() || self.endpoint.is_connecting();
        is_connecting && self.waiting.borrow().is_empty() && self.endpoint.counters().waited == 0
    }

    /// The endpoint is connected: progress runs the requests that wait for that.
    pub(crate) fn run_waiting(&self) {
        self.is_connected.set(true);
        while let Some(request) = self.pop_waiting() {
            // SAFETY: the request was added and is not purged.
            let deferred = unsafe { PendingRequest::from_raw(request.cast(), run) };
            if self.endpoint.pending_defer(deferred).is_err() {
                // The endpoint has failed already. The program purges its requests.
                return self.waiting.borrow_mut().push_front(request);
            }
        }
    }

    fn pop_waiting(&self) -> Option<NonNull<PendingReq>> {
        self.waiting.borrow_mut().pop_front()
    }
}

/// Returns the endpoint behind a handle.
///
/// # Safety
/// `ep` is null or an open handle, which stays open for `'a`.
pub(crate) unsafe fn of_ep<'a>(ep: *const Ep) -> Result<&'a Ep, Status> {
    // SAFETY: contract of this function.
    unsafe { ep.as_ref() }.ok_or(INVALID_PARAM)
}

/// Returns the bytes of an address of the caller, whose pointer may be null if it has none.
///
/// # Safety
/// `start` is null or valid for reads of `length` bytes during `'a`.
pub(crate) unsafe fn address_bytes<'a>(
    start: *const u8,
    length: usize,
) -> Result<&'a [u8], Status> {
    if length == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(start, length) })
}

fn wrong(error: AddressError) -> Status {
    crate::log::diag(&error);
    INVALID_ADDR
}

/// Returns the address of an interface.
///
/// # Safety
/// The pointers are null, or valid for reads of the lengths of such addresses.
pub(crate) unsafe fn interface_address(
    transport: TransportId,
    device: *const DeviceAddr,
    interface: *const IfaceAddr,
) -> Result<PeerAddress, Status> {
    // SAFETY: contract of this function.
    let (device, interface) = unsafe {
        (
            address_bytes(device.cast(), DeviceAddress::body_length(transport))?,
            address_bytes(interface.cast(), InterfaceAddress::body_length(transport))?,
        )
    };
    let device = DeviceAddress::from_body(transport, device).map_err(wrong)?;
    let interface = InterfaceAddress::from_body(transport, interface).map_err(wrong)?;
    PeerAddress::new(device, interface, None).map_err(wrong)
}

/// Returns the address of an endpoint: that of its device, and those of its interface and itself in
/// one.
pub(crate) fn endpoint_address(
    transport: TransportId,
    device: &[u8],
    end: &[u8],
) -> Result<PeerAddress, Status> {
    let (interface, end) =
        end.split_at_checked(InterfaceAddress::body_length(transport)).ok_or(INVALID_ADDR)?;
    let device = DeviceAddress::from_body(transport, device).map_err(wrong)?;
    let interface = InterfaceAddress::from_body(transport, interface).map_err(wrong)?;
    let end = EndpointAddress::from_body(transport, end).map_err(wrong)?;
    PeerAddress::new(device, interface, Some(end)).map_err(wrong)
}

/// Returns where the interface with this address listens, for transports that do not connect to
/// interfaces themselves.
///
/// # Safety
/// `interface` is null, or valid for reads of the length of such an address.
pub(crate) unsafe fn contact(
    transport: TransportId,
    interface: *const IfaceAddr,
) -> Result<Contact, Status> {
    let before = InterfaceAddress::body_length(transport);
    // SAFETY: contract of this function.
    let bytes = unsafe { address_bytes(interface.cast(), before + Contact::BYTES) }?;
    Contact::parse(&bytes[before..]).ok_or(UNREACHABLE)
}

/// Checks whether an interface leads to a peer. The program takes any interface that does, so one
/// from which only a detour leads there does not.
pub(crate) fn reaches(iface: &Iface, peer: &PeerAddress) -> Result<(), ConnectError> {
    if iface.interface.reaches_by(peer, &Routes::default())? {
        return Ok(());
    }
    let (transport, peer) = (peer.transport(), peer.device().to_string());
    let reason = "the route to it leaves through another interface".to_owned();
    Err(ConnectError::Unreachable { transport, peer, reason })
}

pub(crate) unsafe extern "C" fn is_reachable(
    iface: *mut Iface,
    device: *const DeviceAddr,
    interface: *const IfaceAddr,
) -> c_int {
    let status = guard(|| {
        // SAFETY: an open handle, and addresses of an interface of the same transport.
        let (iface, peer) = unsafe {
            let iface = of_iface(iface)?;
            (iface, interface_address(iface.interface.transport(), device, interface)?)
        };
        reaches(iface, &peer).map_err(|error| {
            // libucp asks for each pair of devices, and most lead to few of the others.
            let usual = matches!(error, ConnectError::Unreachable { .. });
            crate::log::report(if usual { Level::DEBUG } else { Level::DIAG }, &error);
            of_connect(&error)
        })
    });
    (status == OK).into()
}

/// Bytes of the address of an interface.
pub(crate) fn interface_length(transport: TransportId) -> usize {
    let contact = if bootstrap::is_needed(transport) { Contact::BYTES } else { 0 };
    InterfaceAddress::body_length(transport) + contact
}

/// What libucp says of the length of a device address that it has from connection management.
pub(crate) const UNKNOWN_LENGTH: usize = 0;

/// Checks the lengths of addresses, which programs of later versions than 1.13 may pass.
///
/// # Safety
/// `params` has the fields that its mask names.
unsafe fn check_lengths(transport: TransportId, params: *const EpParams) -> Result<(), Status> {
    let params = params.cast::<EpParamsWithLengths>();
    // SAFETY: contract of this function.
    unsafe {
        let mask = (*params).params.field_mask;
        let is_short = |field, length: *const usize, needed| mask & field != 0 && *length < needed;
        let device = DeviceAddress::body_length(transport);
        let (to_device, to) =
            (&raw const (*params).dev_addr_length, &raw const (*params).iface_addr_length);
        if *to_device != UNKNOWN_LENGTH
            && is_short(EpParamsWithLengths::DEV_ADDR_LENGTH, to_device, device)
            || is_short(EpParamsWithLengths::IFACE_ADDR_LENGTH, to, interface_length(transport))
        {
            return Err(INVALID_ADDR);
        }
    }
    Ok(())
}

/// Returns the peer that parameters of an endpoint name.
///
/// # Safety
/// `params` has the fields that its mask names. The addresses are null, or valid for reads of the
/// lengths of addresses of the same transport.
unsafe fn remote_of(transport: TransportId, params: *const EpParams) -> Result<Remote, Status> {
    // SAFETY: contract of this function.
    unsafe {
        check_lengths(transport, params)?;
        let params = &*params;
        let address = interface_address(transport, params.dev_addr, params.iface_addr)?;
        let contact = if bootstrap::is_needed(transport) {
            contact(transport, params.iface_addr).ok()
        } else {
            None
        };
        Ok(Remote { address, contact })
    }
}

pub(crate) unsafe extern "C" fn create(params: *const EpParams, ep: *mut *mut Ep) -> Status {
    guard(|| {
        let pointer = params;
        // SAFETY: null or valid for this call.
        let params = unsafe { params.as_ref() }.ok_or(INVALID_PARAM)?;
        let given = |fields| params.field_mask & fields == fields;
        if ep.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        let iface = unsafe { of_iface(params.iface) }?;
        let interface = &iface.interface;
        let has_address = given(EpParams::DEV_ADDR | EpParams::IFACE_ADDR);
        let is_direct =
            iface.connects_to_interfaces() && (has_address || !iface.connects_to_endpoints());
        let remote = if has_address {
            // SAFETY: addresses of an interface of the same transport.
            Some(unsafe { remote_of(interface.transport(), pointer) }?)
        } else {
            None
        };
        let endpoint = if is_direct {
            let mut peer = remote.ok_or(INVALID_PARAM)?.address;
            if interface.transport() == TransportId::Self_ {
                // Programs of UCX use any interface of `self` to access memory of the process.
                peer = interface.address();
            }
            interface.connect(&peer).map_err(|error| {
                crate::log::error(&error);
                of_connect(&error)
            })?
        } else {
            Endpoint::new(interface).map_err(|error| {
                crate::log::error(&error);
                of_open(&error)
            })?
        };
        let opened = NonNull::from(Box::leak(Box::new(Ep {
            iface: params.iface,
            endpoint,
            is_reported: Cell::new(false),
            link: Cell::new(None),
            waiting: RefCell::default(),
            is_connected: Cell::new(is_direct),
            twin: OnceCell::new(),
            remote: Cell::new(remote),
        })));
        if !is_direct && has_address {
            let dial = || {
                let bootstrap = iface.bootstrap.get().ok_or(UNSUPPORTED)?;
                let peer = remote.and_then(|remote| remote.contact).ok_or(UNREACHABLE)?;
                bootstrap.dial(opened, peer).map_err(|error| {
                    crate::log::error(&error);
                    UNREACHABLE
                })
            };
            match dial() {
                // SAFETY: the endpoint was leaked above, and nothing else refers to it yet.
                Ok(link) => unsafe { opened.as_ref() }.link.set(Some(link)),
                Err(status) => {
                    // SAFETY: as above; without a link it is dropped here alone.
                    drop(unsafe { Box::from_raw(opened.as_ptr()) });
                    return Err(status);
                }
            }
        }
        iface.endpoints.borrow_mut().push(opened);
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *ep = opened.as_ptr() };
        Ok(())
    })
}

/// Cancels what is outstanding before an endpoint is closed: the caller may free its completions
/// and memory after that. Inside of progress this ends with the progress.
#[cold]
fn cancel(iface: &Iface, endpoint: &Endpoint) {
    /// A device needs a fraction of it.
    const PATIENCE: Duration = Duration::from_secs(1);
    let (done, end) = (barewire::Completion::counter(), after(Instant::now(), PATIENCE));
    let posted = endpoint.flush(FlushMode::Cancel, Some(&done));
    while posted == Ok(Posted::InProgress) && done.pending() > 0 && iface.may_run() {
        if iface.run() == 0 {
            std::thread::yield_now();
        }
        if Instant::now() > end {
            return crate::log::error(&"an endpoint is closed although operations are outstanding");
        }
    }
}

pub(crate) unsafe extern "C" fn destroy(ep: *mut Ep) {
    guard(|| {
        let handle = NonNull::new(ep).ok_or(INVALID_PARAM)?;
        // SAFETY: an open handle, whose interface is open, too.
        let iface = unsafe { of_iface((*ep).iface) }?;
        iface.endpoints.borrow_mut().retain(|other| *other != handle);
        // SAFETY: an open handle.
        unsafe { &*ep }.end_link();
        // SAFETY: it is closed once, and nothing refers to it any more.
        let closed = unsafe { Box::from_raw(ep) };
        // The program purges its requests before. If it does not, they are dropped, since their
        // memory may be freed after this call.
        closed.waiting.borrow_mut().clear();
        drop(closed.endpoint.pending_take());
        if closed.endpoint.flush(FlushMode::Local, None) == Ok(Posted::InProgress) {
            cancel(iface, &closed.endpoint);
        }
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn get_address(ep: *mut Ep, address: *mut EpAddr) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let own = unsafe { of_ep(ep) }?.endpoint.address();
        let end = own.endpoint().ok_or(UNSUPPORTED)?;
        let bytes = [own.interface().body(), end.body()].concat();
        // SAFETY: the caller's buffer has `ep_addr_len` bytes, the length of every address.
        unsafe { copy_out(&bytes, address.cast()) }
    })
}

pub(crate) unsafe extern "C" fn connect_to_ep(
    ep: *mut Ep,
    device: *const DeviceAddr,
    address: *const EpAddr,
) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let ep = unsafe { of_ep(ep) }?;
        let transport = ep.endpoint.transport();
        // SAFETY: the addresses of an endpoint of the same transport.
        let (device, end) = unsafe {
            (
                address_bytes(device.cast(), DeviceAddress::body_length(transport))?,
                address_bytes(address.cast(), ep_address_length(transport))?,
            )
        };
        let mut peer = endpoint_address(transport, device, end)?;
        let remote = Remote { address: peer, contact: None };
        let own = ep.endpoint.address();
        let refused = |error: ConnectError| {
            crate::log::error(&error);
            of_connect(&error)
        };
        if transport == TransportId::Tcp && peer == own {
            // A connection has two ends.
            let twin = Endpoint::new(&ep.interface().interface).map_err(|error| of_open(&error))?;
            twin.connect(&own).map_err(refused)?;
            peer = ep.twin.get_or_init(|| twin).address();
        }
        ep.endpoint.connect(&peer).map_err(refused)?;
        ep.remote.set(Some(remote));
        ep.run_waiting();
        Ok(())
    })
}

/// Runs a pending request of the caller.
///
/// # Safety
/// `request` is a `uct_pending_req_t` that was added and has not been done yet.
unsafe fn run(request: NonNull<()>, _: &Endpoint) -> PendingResult {
    let request = request.cast::<PendingReq>().as_ptr();
    // SAFETY: contract of this function. The function may free the request.
    let status = unsafe { (*request).func.map_or(OK, |run| run(request)) };
    if status == OK { PendingResult::Done } else { PendingResult::Again }
}

pub(crate) unsafe extern "C" fn pending_add(
    ep: *mut Ep,
    request: *mut PendingReq,
    _flags: c_uint,
) -> Status {
    let Some(data) = NonNull::new(request) else { return INVALID_PARAM };
    // SAFETY: an open handle.
    let ep = unsafe { &*ep };
    if !ep.is_connected.get() {
        ep.waiting.borrow_mut().push_back(data);
        return OK;
    }
    // SAFETY: the request stays valid until it is done or purged (uct.h).
    unsafe {
        let request = PendingRequest::from_raw(data.cast(), run);
        ep.endpoint.pending_add_request(request).map_or(BUSY, |()| OK)
    }
}

pub(crate) unsafe extern "C" fn pending_purge(
    ep: *mut Ep,
    purge: Option<PurgeCallback>,
    argument: *mut c_void,
) {
    // SAFETY: an open handle.
    let ep = unsafe { &*ep };
    let waiting = ep.waiting.take();
    if let Some(purge) = purge {
        for request in waiting {
            // SAFETY: the request is the caller's again.
            unsafe { purge(request.as_ptr(), argument) };
        }
    }
    for request in ep.endpoint.pending_take() {
        if let (Some(purge), Ok(request)) = (purge, request.into_raw()) {
            // SAFETY: the request is the caller's again.
            unsafe { purge(request.cast().as_ptr(), argument) };
        }
    }
}

/// A local flush waits for acknowledgements, as that of UCX's own transports does: the peer's
/// device has the data of puts, also if the peer's process ends before the flush. With
/// `UCT_FLUSH_FLAG_REMOTE`, RDMA devices read from the peer, so that the data is in its memory.
pub(crate) unsafe extern "C" fn flush(
    ep: *mut Ep,
    flags: c_uint,
    completion: *mut Completion,
) -> Status {
    const CANCEL: c_uint = 1 << 0;
    /// Since UCX 1.14.
    const REMOTE: c_uint = 1 << 1;
    let mode = if flags & CANCEL != 0 {
        FlushMode::Cancel
    } else if flags & REMOTE != 0 {
        FlushMode::Remote
    } else {
        FlushMode::Local
    };
    // SAFETY: an open handle.
    if mode == FlushMode::Cancel && !unsafe { &*ep }.is_connected.get() {
        return OK;
    }
    // SAFETY: an open handle, and a completion as the contract of the operation says.
    let status = of_posted(unsafe {
        with_completion(completion, |completion| (*ep).endpoint.flush(mode, completion))
    });
    // SAFETY: an open handle.
    if status == NO_RESOURCE && unsafe { &*ep }.is_unused() {
        return OK;
    }
    status
}

/// `UCS_OK` is the only status (uct.h). An endpoint that takes no posts now, because it connects or
/// requests wait, is fenced with the others of the interface.
pub(crate) unsafe extern "C" fn fence(ep: *mut Ep, _flags: c_uint) -> Status {
    // SAFETY: an open handle.
    let ep = unsafe { &*ep };
    if ep.endpoint.fence().is_err() {
        // It fails if the interface is closed, which has nothing to order.
        let _ = ep.interface().interface.fence();
    }
    OK
}

/// The check of the peer is not counted: its failure is reported to the error handler.
pub(crate) unsafe extern "C" fn check(
    ep: *mut Ep,
    _flags: c_uint,
    _completion: *mut Completion,
) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        let ep = unsafe { of_ep(ep) }?;
        if !ep.is_connected.get() {
            return Ok(());
        }
        match of_result(ep.endpoint.check()) {
            // The connection itself shows whether the peer is alive.
            NO_RESOURCE if ep.endpoint.is_connecting() => Ok(()),
            OK => Ok(()),
            status => Err(status),
        }
    })
}
