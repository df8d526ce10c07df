//! librdmacm: identifiers, each with its own event channel.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;

use rdma_sys::{
    ibv_get_device_name, ibv_qp_attr, ibv_query_device, rdma_accept, rdma_ack_cm_event,
    rdma_bind_addr, rdma_cm_event, rdma_cm_event_type as kind, rdma_cm_id, rdma_conn_param,
    rdma_connect, rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel,
    rdma_destroy_id, rdma_disconnect, rdma_establish, rdma_event_channel, rdma_get_cm_event,
    rdma_init_qp_attr, rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route,
};

use super::event::{nonblocking, none_yet};
use super::{Plain, status};

/// The bytes of a `struct sockaddr_in` or `sockaddr_in6`, aligned as either.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct SocketBytes(pub(crate) [u8; 32]);

/// An event channel whose descriptor does not block.
struct EventChannel(NonNull<rdma_event_channel>);

// SAFETY: a channel is a descriptor in allocated memory, which any thread may use and free.
unsafe impl Send for EventChannel {}
// SAFETY: librdmacm reads the descriptor only, and the kernel serialises reads of events.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    fn create() -> io::Result<Self> {
        // SAFETY: the function takes no arguments and may be called at any time.
        let channel = unsafe { rdma_create_event_channel() };
        let channel = Self(NonNull::new(channel).ok_or_else(io::Error::last_os_error)?);
        nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which exists as long as `self` is
        // borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.0.as_ptr()).fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: rdma_create_event_channel returned the channel, and `drop` is the only place that
        // destroys it. The identifier that used it was destroyed before: see `CmId`.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// An identifier of librdmacm (`struct rdma_cm_id`) of the port space TCP, and its events.
pub(crate) struct CmId {
    id: NonNull<rdma_cm_id>,
    /// The process that created it. The kernel would also let a forked child destroy it.
    process: u32,
    /// Dropped, and so destroyed, after the identifier.
    channel: EventChannel,
}

// SAFETY: librdmacm is thread-safe: any thread may use an identifier and may destroy it.
unsafe impl Send for CmId {}
// SAFETY: methods with `&self` read fields that only calls by methods with `&mut self` modify.
unsafe impl Sync for CmId {}

/// An event, copied and acknowledged.
pub(crate) struct CmEvent {
    /// A value of `enum rdma_cm_event_type`.
    pub(crate) kind: u32,
    /// A negative errno value; for rejections the reason.
    pub(crate) status: i32,
    /// The peer's private data, with the padding of the message.
    pub(crate) private_data: Vec<u8>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// The identifier of a request for a connection.
    pub(crate) request: Option<CmId>,
}

/// The parameters of a connection. rdma_cma.h: `struct rdma_conn_param`.
pub(crate) struct ConnectionValues<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) queue_pair: u32,
}

impl ConnectionValues<'_> {
    fn to_raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: self.rnr_retries,
            srq: 0,
            qp_num: self.queue_pair,
        }
    }
}

fn milliseconds(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

impl CmId {
    pub(crate) fn create() -> io::Result<Self> {
        let channel = EventChannel::create()?;
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel exists, and is kept together with the identifier. `id` is a valid
        // destination, and a null user pointer is valid.
        status(unsafe {
            rdma_create_id(channel.0.as_ptr(), &raw mut id, ptr::null_mut::<c_void>(), space)
        })?;
        let id = NonNull::new(id).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { id, process: std::process::id(), channel })
    }

    /// Takes the identifier of a request, and gives it its own event channel.
    ///
    /// # Safety
    /// `id` must be the identifier of an acknowledged event, which no other code destroys.
    unsafe fn take(id: NonNull<rdma_cm_id>) -> io::Result<Self> {
        let channel = EventChannel::create().inspect_err(|_| {
            // SAFETY: no other code destroys the identifier, by the contract of this function.
            unsafe { rdma_destroy_id(id.as_ptr()) };
        })?;
        let this = Self { id, process: std::process::id(), channel };
        // SAFETY: both exist, and the channel is destroyed after the identifier.
        status(unsafe { rdma_migrate_id(this.raw(), this.channel.0.as_ptr()) })?;
        Ok(this)
    }

    fn raw(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The descriptor that is readable when there are events.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    pub(crate) fn bind(&mut self, address: &SocketBytes) -> io::Result<()> {
        let mut address = *address;
        // SAFETY: the identifier exists, and the address is a complete socket address of its
        // family that is valid during the call.
        status(unsafe { rdma_bind_addr(self.raw(), (&raw mut address).cast()) })
    }

    pub(crate) fn listen(&mut self, backlog: u32) -> io::Result<()> {
        // SAFETY: the identifier exists.
        status(unsafe { rdma_listen(self.raw(), c_int::try_from(backlog).unwrap_or(c_int::MAX)) })
    }

    pub(crate) fn resolve_address(
        &mut self,
        from: Option<&SocketBytes>,
        to: &SocketBytes,
        timeout: u32,
    ) -> io::Result<()> {
        let (mut from, mut to) = (from.copied(), *to);
        let from = from.as_mut().map_or(ptr::null_mut(), |from| ptr::from_mut(from).cast());
        // SAFETY: the identifier exists, and both addresses are complete socket addresses of their
        // families that are valid during the call. A null pointer stands for any source.
        status(unsafe {
            rdma_resolve_addr(self.raw(), from, (&raw mut to).cast(), milliseconds(timeout))
        })
    }

    pub(crate) fn resolve_route(&mut self, timeout: u32) -> io::Result<()> {
        // SAFETY: the identifier exists.
        status(unsafe { rdma_resolve_route(self.raw(), milliseconds(timeout)) })
    }

    pub(crate) fn connect(&mut self, values: &ConnectionValues<'_>) -> io::Result<()> {
        let mut values = values.to_raw();
        // SAFETY: the identifier exists, and the parameters and their private data are valid during
        // the call.
        status(unsafe { rdma_connect(self.raw(), &raw mut values) })
    }

    pub(crate) fn accept(&mut self, values: &ConnectionValues<'_>) -> io::Result<()> {
        let mut values = values.to_raw();
        // SAFETY: the identifier exists, and the parameters and their private data are valid during
        // the call.
        status(unsafe { rdma_accept(self.raw(), &raw mut values) })
    }

    /// Confirms the peer's response to a request.
    pub(crate) fn establish(&mut self) -> io::Result<()> {
        // SAFETY: the identifier exists. It has no queue pair of librdmacm, as the call requires.
        status(unsafe { rdma_establish(self.raw()) })
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> io::Result<()> {
        let length = private_data.len() as u8;
        // SAFETY: the identifier exists, and the private data are valid during the call.
        status(unsafe { rdma_reject(self.raw(), private_data.as_ptr().cast(), length) })
    }

    pub(crate) fn disconnect(&mut self) -> io::Result<()> {
        // SAFETY: the identifier exists.
        status(unsafe { rdma_disconnect(self.raw()) })
    }

    /// The attributes of a queue pair of this connection in the next `state`, and which they are
    /// (`enum ibv_qp_attr_mask`).
    pub(crate) fn attributes(&mut self, state: u32) -> io::Result<(ibv_qp_attr, u32)> {
        let mut attributes = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::zeroed() };
        let mut mask: c_int = 0;
        // SAFETY: the identifier exists, and both destinations are valid.
        status(unsafe { rdma_init_qp_attr(self.raw(), &raw mut attributes, &raw mut mask) })?;
        Ok((attributes, mask as u32))
    }

    /// The name of the device, once one is known.
    pub(crate) fn device(&self) -> Option<String> {
        // SAFETY: the identifier exists. librdmacm opens its devices once and never closes them.
        unsafe {
            let context = (*self.raw()).verbs;
            if context.is_null() {
                return None;
            }
            let name = ibv_get_device_name((*context).device);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }

    /// The most outstanding reads and atomics of a queue pair of the device: as responder, as
    /// initiator.
    pub(crate) fn read_limits(&self) -> io::Result<(u8, u8)> {
        let mut limits = rdma_sys::ibv_device_attr::zeroed();
        // SAFETY: the identifier exists, and so does the context of its device, which was checked
        // not to be null. The destination is valid.
        unsafe {
            let context = (*self.raw()).verbs;
            if context.is_null() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            status(ibv_query_device(context, &raw mut limits))?;
        }
        let limit = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        Ok((limit(limits.max_qp_rd_atom), limit(limits.max_qp_init_rd_atom)))
    }

    /// The local address and that of the peer.
    pub(crate) fn addresses(&self) -> [SocketBytes; 2] {
        // SAFETY: the identifier exists, and both addresses are storage of 128 bytes, of which the
        // first 32 are read. librdmacm has initialised them.
        unsafe {
            let addresses = &raw const (*self.raw()).route.addr;
            let local = (&raw const (*addresses).src_addr_union).cast::<[u8; 32]>();
            let peer = (&raw const (*addresses).dst_addr_union).cast::<[u8; 32]>();
            [SocketBytes(local.read()), SocketBytes(peer.read())]
        }
    }

    /// Returns the next event, or `None` if there is none.
    pub(crate) fn next_event(&mut self) -> io::Result<Option<CmEvent>> {
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel exists, and `raw` is a valid destination.
        if unsafe { rdma_get_cm_event(self.channel.0.as_ptr(), &raw mut raw) } != 0 {
            return none_yet(io::Error::last_os_error());
        }
        let Some(raw) = NonNull::new(raw) else { return Ok(None) };
        // SAFETY: librdmacm returned the event, which is valid until it is acknowledged below. For
        // the kinds that `has_values` names, the union has the parameters of a connection, whose
        // private data are null or have the length that stands beside.
        let (event, id) = unsafe {
            let found = raw.as_ref();
            let mut event = CmEvent {
                kind: found.event,
                status: found.status,
                private_data: Vec::new(),
                responder_resources: 0,
                initiator_depth: 0,
                request: None,
            };
            if has_values(found.event) {
                let values = found.param.conn;
                if !values.private_data.is_null() {
                    let length = usize::from(values.private_data_len);
                    let data = slice::from_raw_parts(values.private_data.cast::<u8>(), length);
                    event.private_data = data.to_vec();
                }
                event.responder_resources = values.responder_resources;
                event.initiator_depth = values.initiator_depth;
            }
            (event, found.id)
        };
        // SAFETY: the event was returned by rdma_get_cm_event and is acknowledged only here.
        unsafe { rdma_ack_cm_event(raw.as_ptr()) };
        if event.kind != kind::RDMA_CM_EVENT_CONNECT_REQUEST {
            return Ok(Some(event));
        }
        let Some(id) = NonNull::new(id) else { return Ok(None) };
        // SAFETY: the identifier of a request belongs to the caller of rdma_get_cm_event, and its
        // event was acknowledged.
        let request = unsafe { Self::take(id) }?;
        Ok(Some(CmEvent { request: Some(request), ..event }))
    }
}

/// Whether events of this kind have the parameters of a connection.
fn has_values(event: u32) -> bool {
    matches!(
        event,
        kind::RDMA_CM_EVENT_CONNECT_REQUEST
            | kind::RDMA_CM_EVENT_CONNECT_RESPONSE
            | kind::RDMA_CM_EVENT_ESTABLISHED
            | kind::RDMA_CM_EVENT_REJECTED
    )
}

impl Drop for CmId {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: librdmacm created the identifier, and `drop` is the only place that destroys
            // it. All of its events are acknowledged, so the call does not wait. An error is
            // ignored, as there is no remedy.
            unsafe { rdma_destroy_id(self.raw()) };
        }
    }
}
