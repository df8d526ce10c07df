//! What a device can do.

use rdma_sys::ibv_atomic_cap;

use crate::{Context, Error};

/// What a device can do. verbs.h: `struct ibv_device_attr`, `struct ibv_odp_caps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests outstanding on a queue.
    pub requests: u32,
    /// Scatter/gather elements of a request.
    pub elements: u32,
    /// Elements of an RDMA read.
    pub read_elements: u32,
    /// Completions that a queue has room for.
    pub completions: u32,
    /// Requests outstanding on a shared receive queue; 0 if there are none.
    pub shared_receives: u32,
    /// Reads and atomics of peers that a queue pair works on at a time.
    pub responder_resources: u8,
    /// Reads and atomics that a queue pair has outstanding.
    pub initiator_depth: u8,
    /// What atomics are atomic with.
    pub atomics: AtomicScope,
    /// Bytes of a memory region.
    pub region: u64,
    /// What reliable connections may do with memory that is paged on demand, as `IBV_ODP_SUPPORT_*`; 0 is nothing.
    pub on_demand: u32,
    /// Bytes of memory on the device.
    pub device_memory: u64,
}

/// What atomics are atomic with. verbs.h: `enum ibv_atomic_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// There are none.
    None,
    /// Those of the same device.
    Device,
    /// Processors and other devices too.
    Global,
}

impl Context {
    /// What the device can do.
    ///
    /// # Errors
    /// What the library says.
    pub fn limits(&self) -> Result<Limits, Error> {
        let attributes = self.open_context().extended_attributes();
        let attributes =
            attributes.map_err(|source| Error::new(self.name(), "query what it can do", source))?;
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
            device_memory: attributes.max_dm_size,
        })
    }
}
