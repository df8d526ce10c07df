//! The attributes of interfaces, as UCT describes them.

use std::ffi::c_uint;

use barewire::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use barewire::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, SHORT_HEADER, TransportId,
};

use crate::abi::{
    AmCaps, AtomicCaps, Bandwidth, IfaceAttr, IfaceCaps, LinearFunction, PerfAttr,
    PerfAttrWithFlags, PerfStart, RmaCaps, UNKNOWN_SYS_DEVICE, atomic_op, head, iface_flag,
};
use crate::bootstrap::{self, Contact};
use crate::iface::{Iface, of_iface};
use crate::status::{INVALID_PARAM, Status, guard};
use crate::stub;
use crate::ucs::{self, Version};

/// `UCT_DEVICE_TYPE_NET`
const NET: c_uint = 0;

/// `uct_device_type_t`
pub(crate) fn device_type(transport: TransportId) -> c_uint {
    const SHM: c_uint = 1;
    const SELF: c_uint = 3;
    match transport {
        TransportId::Self_ => SELF,
        TransportId::Shm | TransportId::Cma => SHM,
        _ => NET,
    }
}

/// Buffers that start at a multiple of this are not slower than others.
const ALIGNMENT: usize = 64;
/// Lengths of short operations are `unsigned`.
const MAX_SHORT: usize = c_uint::MAX as usize;

/// Returns whether memory of the program can be used without a copy: in shared memory it cannot be
/// registered.
fn has_zcopy(transport: TransportId) -> bool {
    transport != TransportId::Shm
}

/// Returns whether the CPU reads the peer's memory, so that a get is done when its post returns.
pub(crate) fn has_get_short(transport: TransportId) -> bool {
    matches!(transport, TransportId::Self_ | TransportId::Shm)
}

/// Bytes of the address of an endpoint: that of its interface, which UCT does not pass to
/// `uct_ep_connect_to_ep`, and its own.
pub(crate) fn ep_address_length(transport: TransportId) -> usize {
    InterfaceAddress::body_length(transport) + EndpointAddress::body_length(transport)
}

fn rma(limits: &RmaLimits, zcopy: bool, segment: usize) -> RmaCaps {
    RmaCaps {
        max_short: limits.max_short.min(MAX_SHORT),
        max_bcopy: limits.max_bcopy.min(segment),
        min_zcopy: limits.min_zcopy,
        max_zcopy: if zcopy { limits.max_zcopy } else { 0 },
        opt_zcopy_align: ALIGNMENT,
        align_mtu: ALIGNMENT,
        max_iov: limits.max_iov.max(1),
    }
}

fn am(limits: &AmLimits, flags: Flags, zcopy: bool, segment: usize) -> AmCaps {
    let header = if flags.contains(Flags::AM_SHORT) { SHORT_HEADER } else { 0 };
    AmCaps {
        max_short: limits.max_short.saturating_add(header).min(MAX_SHORT),
        max_bcopy: limits.max_bcopy.min(segment),
        min_zcopy: limits.min_zcopy,
        max_zcopy: if zcopy { limits.max_zcopy } else { 0 },
        opt_zcopy_align: ALIGNMENT,
        align_mtu: ALIGNMENT,
        max_hdr: if zcopy { limits.max_header } else { 0 },
        max_iov: limits.max_iov.max(1),
    }
}

fn atomics(operations: AtomicOperations) -> AtomicCaps {
    use AtomicOperations as Op;
    let bits = |all: &[(AtomicOperations, u32)]| {
        let can = all.iter().filter(|(operation, _)| operations.contains(*operation));
        can.fold(0, |bits, (_, bit)| bits | 1 << bit)
    };
    AtomicCaps {
        op_flags: bits(&[
            (Op::ADD, atomic_op::ADD),
            (Op::AND, atomic_op::AND),
            (Op::OR, atomic_op::OR),
            (Op::XOR, atomic_op::XOR),
        ]),
        fop_flags: bits(&[
            (Op::FETCH_ADD, atomic_op::ADD),
            (Op::FETCH_AND, atomic_op::AND),
            (Op::FETCH_OR, atomic_op::OR),
            (Op::FETCH_XOR, atomic_op::XOR),
            (Op::SWAP, atomic_op::SWAP),
            (Op::COMPARE_SWAP, atomic_op::CSWAP),
        ]),
    }
}

/// Removes what UCX's own `tcp` lacks: all operations on the peer's memory but zero-copy puts.
/// Programs that select lanes by capabilities, as libucp does, would otherwise select `tcp` also
/// between processes of one host: as the second lane of bulk transfers, or for puts, gets and
/// atomics. That is slower than shared memory, and another connection.
fn without_what_ucx_lacks(caps: IfaceCaps) -> IfaceCaps {
    const LACKING: u64 = iface_flag::PUT_SHORT
        | iface_flag::PUT_BCOPY
        | iface_flag::GET_SHORT
        | iface_flag::GET_BCOPY
        | iface_flag::GET_ZCOPY
        | iface_flag::ATOMIC_CPU;
    IfaceCaps {
        put: RmaCaps { max_short: 0, max_bcopy: 0, ..caps.put },
        get: RmaCaps { max_short: 0, max_bcopy: 0, max_zcopy: 0, ..caps.get },
        atomic32: AtomicCaps { op_flags: 0, fop_flags: 0 },
        atomic64: AtomicCaps { op_flags: 0, fop_flags: 0 },
        flags: caps.flags & !LACKING,
        ..caps
    }
}

fn capability_flags(flags: Flags, zcopy: bool) -> u64 {
    let pairs = [
        (Flags::AM_SHORT, iface_flag::AM_SHORT),
        (Flags::AM_BCOPY, iface_flag::AM_BCOPY),
        (Flags::PENDING, iface_flag::PENDING),
        (Flags::PUT_SHORT, iface_flag::PUT_SHORT),
        (Flags::PUT_BCOPY, iface_flag::PUT_BCOPY),
        (Flags::GET_BCOPY, iface_flag::GET_BCOPY),
        (Flags::ATOMIC_CPU, iface_flag::ATOMIC_CPU),
        (Flags::ATOMIC_DEVICE, iface_flag::ATOMIC_DEVICE),
        (Flags::ERRHANDLE_PEER_FAILURE, iface_flag::ERRHANDLE_PEER_FAILURE),
        (Flags::ERRHANDLE_REMOTE_MEM, iface_flag::ERRHANDLE_REMOTE_MEM),
        (Flags::EP_CHECK, iface_flag::EP_CHECK),
    ];
    let of_zcopy = [
        (Flags::AM_ZCOPY, iface_flag::AM_ZCOPY),
        (Flags::PUT_ZCOPY, iface_flag::PUT_ZCOPY),
        (Flags::GET_ZCOPY, iface_flag::GET_ZCOPY),
    ];
    let of_zcopy = of_zcopy.iter().filter(|_| zcopy);
    pairs
        .iter()
        .chain(of_zcopy)
        .filter(|(flag, _)| flags.contains(*flag))
        .fold(iface_flag::CB_SYNC | iface_flag::ERRHANDLE_AM_ID, |all, (_, one)| all | one)
}

/// Programs of UCX before 1.18 do not know the flag.
fn inter_node(transport: TransportId) -> u64 {
    let is_newer = ucs::version() >= Version::V1_18;
    if is_newer && device_type(transport) == NET { iface_flag::INTER_NODE } else { 0 }
}

fn event_flags(flags: Flags) -> u64 {
    const SEND_COMP: u64 = 1 << 0;
    const RECV: u64 = 1 << 1;
    const FD: u64 = 1 << 3;
    if flags.contains(Flags::EVENT_FD) { SEND_COMP | RECV | FD } else { 0 }
}

fn bandwidth(attributes: &Attributes) -> Bandwidth {
    match attributes.place {
        Place::Process | Place::Node => Bandwidth { dedicated: attributes.bandwidth, shared: 0.0 },
        _ => Bandwidth { dedicated: 0.0, shared: attributes.bandwidth },
    }
}

fn latency(attributes: &Attributes) -> LinearFunction {
    LinearFunction {
        constant: attributes.latency_ns * 1e-9,
        factor: attributes.latency_per_endpoint_ns * 1e-9,
    }
}

fn endpoints(attributes: &Attributes) -> usize {
    match attributes.max_endpoints {
        u32::MAX => usize::MAX,
        limit => limit as usize,
    }
}

fn attr(iface: &Iface, transport: TransportId) -> IfaceAttr {
    let attributes = iface.interface.attributes();
    let (flags, zcopy, segment) = (attributes.flags, has_zcopy(transport), iface.segment);
    let (connects, contact) = if iface.connects_to_interfaces() {
        let both = if iface.connects_to_endpoints() { iface_flag::CONNECT_TO_EP } else { 0 };
        (iface_flag::CONNECT_TO_IFACE | both, 0)
    } else if iface.bootstrap.get().is_some() {
        (iface_flag::CONNECT_TO_IFACE | iface_flag::CONNECT_TO_EP, Contact::BYTES)
    } else if bootstrap::is_needed(transport) {
        (iface_flag::CONNECT_TO_EP, Contact::BYTES)
    } else {
        (iface_flag::CONNECT_TO_EP, 0)
    };
    let to_endpoints = connects & iface_flag::CONNECT_TO_EP != 0;
    let (get_short, short) = if has_get_short(transport) {
        (attributes.get.max_bcopy, iface_flag::GET_SHORT)
    } else {
        (0, 0)
    };
    let caps = IfaceCaps {
        put: rma(&attributes.put, zcopy, segment),
        get: RmaCaps { max_short: get_short, ..rma(&attributes.get, zcopy, segment) },
        am: am(&attributes.am, flags, zcopy, segment),
        tag: [0; 11],
        atomic32: atomics(attributes.atomic32),
        atomic64: atomics(attributes.atomic64),
        flags: capability_flags(flags, zcopy) | connects | short | inter_node(transport),
        event_flags: event_flags(flags),
    };
    IfaceAttr {
        cap: if iface.selects_lanes && transport == TransportId::Tcp {
            without_what_ucx_lacks(caps)
        } else {
            caps
        },
        device_addr_len: DeviceAddress::body_length(transport),
        iface_addr_len: InterfaceAddress::body_length(transport) + contact,
        ep_addr_len: if to_endpoints { ep_address_length(transport) } else { 0 },
        max_conn_priv: 0,
        // SAFETY: zeros are a valid address: one without a family.
        listen_sockaddr: unsafe { std::mem::zeroed() },
        overhead: attributes.overhead_ns * 1e-9,
        bandwidth: bandwidth(attributes),
        latency: latency(attributes),
        priority: attributes.priority,
        max_num_eps: endpoints(attributes),
        dev_num_paths: 1,
        ctl_device: UNKNOWN_SYS_DEVICE,
    }
}

pub(crate) unsafe extern "C" fn query(iface: *mut Iface, target: *mut IfaceAttr) -> Status {
    guard(|| {
        if target.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle; the caller's pointer is valid for writes.
        unsafe {
            let iface = of_iface(iface)?;
            target.write(attr(iface, iface.interface.transport()));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_iface_estimate_perf(
    iface: *mut Iface,
    perf: *mut PerfStart,
) -> Status {
    guard(|| {
        // SAFETY: null, an interface, or a stub, which has no attributes.
        let attributes = unsafe {
            stub::refuse(iface)?;
            of_iface(iface)?.interface.attributes()
        };
        // SAFETY: null, or an attribute structure of the program's version.
        unsafe { estimate(attributes, perf, ucs::version()) }
    })
}

/// Writes the attributes that the mask asks for.
///
/// # Safety
/// `perf` is null or valid for writes of a `uct_perf_attr_t` of this version of UCX.
pub(crate) unsafe fn estimate(
    attributes: &Attributes,
    perf: *mut PerfStart,
    version: Version,
) -> Result<(), Status> {
    if perf.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: contract of this function; fields that the mask does not name may be uninitialized,
    // and are not read.
    unsafe {
        let mask = (*perf).field_mask;
        let overhead = attributes.overhead_ns * 1e-9;
        let bandwidth = bandwidth(attributes);
        if mask & PerfStart::SEND_PRE_OVERHEAD != 0 {
            (&raw mut (*perf).send_pre_overhead).write(overhead);
        }
        if mask & PerfStart::SEND_POST_OVERHEAD != 0 {
            (&raw mut (*perf).send_post_overhead).write(0.0);
        }
        if mask & PerfStart::RECV_OVERHEAD != 0 {
            (&raw mut (*perf).recv_overhead).write(overhead);
        }
        if mask & PerfStart::BANDWIDTH != 0 {
            (&raw mut (*perf).bandwidth).write(bandwidth);
        }
        if version < Version::V1_19 {
            let perf = perf.cast::<PerfAttr>();
            if version >= Version::V1_17 && mask & PerfAttrWithFlags::FLAGS != 0 {
                (&raw mut (*perf.cast::<PerfAttrWithFlags>()).flags).write(0);
            }
            if mask & PerfAttr::LATENCY != 0 {
                (&raw mut (*perf).latency).write(latency(attributes));
            }
            if mask & PerfAttr::MAX_INFLIGHT_EPS != 0 {
                (&raw mut (*perf).max_inflight_eps).write(endpoints(attributes));
            }
            return Ok(());
        }
        let perf = perf.cast::<head::PerfAttr>();
        if mask & head::PerfAttr::PATH_BANDWIDTH != 0 {
            (&raw mut (*perf).path_bandwidth).write(bandwidth);
        }
        if mask & head::PerfAttr::LATENCY != 0 {
            (&raw mut (*perf).latency).write(latency(attributes));
        }
        if mask & head::PerfAttr::MAX_INFLIGHT_EPS != 0 {
            (&raw mut (*perf).max_inflight_eps).write(endpoints(attributes));
        }
        if mask & head::PerfAttr::FLAGS != 0 {
            (&raw mut (*perf).flags).write(0);
        }
    }
    Ok(())
}
