//! The objects that commands make: each kind in a table of its own, and who uses whom counted.

use std::net::IpAddr;

use crate::command::CounterSet;
use crate::limits;
use crate::memory::Memory;

mod compress;
mod cq;
mod eq;
mod event_channel;
mod events;
mod gids;
mod notify;
mod pd;
mod qp;
mod scatter;
mod srq;
mod table;
mod uar;

pub(crate) use compress::Compression;
pub(crate) use cq::Cq;
pub(crate) use eq::Eq;
pub use event_channel::EventChannel;
pub(crate) use events::Events;
pub(crate) use gids::{Gids, Invalid as InvalidGid};
pub(crate) use notify::{Notify, UNARMED};
pub(crate) use pd::Pd;
pub(crate) use qp::{Attributes, DoorbellRecord, Qp, Ring};
pub(crate) use scatter::{Inline, Scatter};
pub(crate) use srq::{Order, Srq, SrqKind};
pub(crate) use table::Table;
pub(crate) use uar::Uar;
pub use uar::UarPage;

/// Numbers of queue pairs start here: 0 and 1 are the management ones.
const FIRST_QP: u32 = 0x40;
/// Numbers of all objects have 24 bits.
const LAST: u32 = 0x00ff_ffff;

/// Numbers of counter sets have 8 bits.
const LAST_COUNTER_SET: u32 = 0xff;

/// Every object of a device.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pds: Table<Pd>,
    pub(crate) uars: Table<Uar>,
    pub(crate) events: Events,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) counter_sets: Table<CounterSet>,
    pub(crate) qps: Table<Qp>,
    pub(crate) gids: Gids,
    pub(crate) memory: Memory,
}

impl Objects {
    /// None, of a device at `address`.
    pub(crate) fn new(address: IpAddr) -> Self {
        Self {
            gids: Gids::new(address),
            pds: Table::new(1, LAST, limits::PDS),
            uars: Table::new(1, LAST, limits::UARS),
            events: Events::new(),
            cqs: Table::new(1, LAST, limits::CQS),
            counter_sets: Table::new(1, LAST_COUNTER_SET, limits::COUNTER_SETS),
            srqs: Table::new(1, LAST, limits::SRQS),
            qps: Table::new(FIRST_QP, LAST, limits::QPS),
            memory: Memory::new(),
        }
    }

    /// Counts a new queue pair with everything that it refers to.
    pub(crate) fn hold_for_qp(&mut self, pd: u32, uar: u32, cqs: [u32; 2], umems: [u32; 2]) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users += 1;
        }
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        for umem in umems {
            self.memory.hold(umem);
        }
    }

    /// Undoes [`Objects::hold_for_qp`].
    pub(crate) fn release_for_qp(&mut self, pd: u32, uar: u32, cqs: [u32; 2], umems: [u32; 2]) {
        self.release_pd(pd);
        self.release_uar(uar);
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        for umem in umems {
            self.memory.release(umem);
        }
    }

    /// One user of protection domain `pd` is gone.
    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    /// One user of UAR page `uar` is gone.
    pub(crate) fn release_uar(&mut self, uar: u32) {
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users -= 1;
        }
    }

    /// A queue pair takes from shared receive queue `srq` now, or no longer.
    pub(crate) fn share(&mut self, srq: Option<u32>, taken: bool) {
        if let Some(srq) = srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = if taken { srq.users + 1 } else { srq.users.saturating_sub(1) };
        }
    }

    /// One user of event queue `eq` is gone.
    pub(crate) fn release_eq(&mut self, eq: u32) {
        if let Some(eq) = self.events.queues.get_mut(eq) {
            eq.users -= 1;
        }
    }

    /// How many there are of each kind.
    pub(crate) fn count(&self) -> ObjectCounts {
        ObjectCounts {
            protection_domains: self.pds.len(),
            uar_pages: self.uars.len(),
            event_queues: self.events.queues.len(),
            completion_queues: self.cqs.len(),
            shared_receive_queues: self.srqs.len(),
            counter_sets: self.counter_sets.len(),
            queue_pairs: self.qps.len(),
            memory_keys: self.memory.mkeys.len(),
            umems: self.memory.umem_count(),
        }
    }
}

/// How many objects of each kind a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains.
    pub protection_domains: usize,
    /// UAR pages.
    pub uar_pages: usize,
    /// Event queues.
    pub event_queues: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Shared receive queues and receive memory pools.
    pub shared_receive_queues: usize,
    /// Counter sets.
    pub counter_sets: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Memory keys.
    pub memory_keys: usize,
    /// User memory registrations.
    pub umems: usize,
}
