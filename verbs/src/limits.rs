//! Limits and capabilities of a device.

use rdma_sys::ibv_atomic_cap;

use crate::{Context, Error};

/// Limits and capabilities of a device. verbs.h: `struct ibv_device_attr`, `struct ibv_odp_caps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of outstanding requests of a queue.
    pub requests: u32,
    /// The maximum number of scatter/gather elements of a request.
    pub elements: u32,
    /// The maximum number of scatter elements of an RDMA read.
    pub read_elements: u32,
    /// The maximum number of entries of a completion queue.
    pub completions: u32,
    /// The maximum number of outstanding requests of a shared receive queue; 0 if the device does
    /// not support them.
    pub shared_receives: u32,
    /// The maximum number of reads and atomics that a queue pair executes at a time for its peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics of a queue pair.
    pub initiator_depth: u8,
    /// The scope of atomics.
    pub atomics: AtomicScope,
    /// The maximum size of a memory region in bytes.
    pub region: u64,
    /// The operations of reliable connections on memory that is paged on demand, as
    /// `IBV_ODP_SUPPORT_*` bits; 0 is none.
    pub on_demand: u32,
    /// One region may cover the whole address space, paged on demand (implicit on-demand paging).
    pub implicit_paging: bool,
    /// Bytes of memory on the device.
    pub device_memory: u64,
}

/// The operations with respect to which atomics are atomic. verbs.h: `enum ibv_atomic_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// Atomics are not supported.
    None,
    /// Atomic with respect to other atomics of the same device.
    Device,
    /// Atomic also with respect to processors and other devices.
    Global,
}

impl Context {
    /// Queries the limits and capabilities of the device.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn limits(&self) -> Result<Limits, Error> {
        /// `IBV_ODP_SUPPORT_IMPLICIT`.
        const IMPLICIT: u64 = 1 << 1;
        let attributes = self.open_context().extended_attributes();
        let attributes = attributes
            .map_err(|source| Error::new(self.name(), "query the limits of the device", source))?;
        let plain = attributes.orig_attr;
        let count = |count| u32::try_from(count).unwrap_or(0);
        let depth = |count| u8::try_from(count).unwrap_or(if count < 0 { 0 } else { u8::MAX });
        Ok(Limits {
            requests: count(plain.max_qp_wr),
            elements: count(plain.max_sge),
            read_elements: count(plain.max_sge_rd),
            completions: count(plain.max_cqe),
            shared_receives: count(plain.max_srq_wr),
            responder_resources: depth(plain.max_qp_rd_atom),
            initiator_depth: depth(plain.max_qp_init_rd_atom),
            atomics: match plain.atomic_cap {
                ibv_atomic_cap::IBV_ATOMIC_HCA => AtomicScope::Device,
                ibv_atomic_cap::IBV_ATOMIC_GLOB => AtomicScope::Global,
                _ => AtomicScope::None,
            },
            region: plain.max_mr_size,
            on_demand: attributes.odp_caps.per_transport_caps.rc_odp_caps,
            implicit_paging: attributes.odp_caps.general_caps & IMPLICIT != 0,
            device_memory: attributes.max_dm_size,
        })
    }
}
