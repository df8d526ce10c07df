//! The objects that commands make: each kind in a table of its own, and who uses whom counted.

use crate::limits;
use crate::memory::Memory;

mod cq;
mod pd;
mod qp;
mod table;
mod uar;

pub(crate) use cq::Cq;
pub(crate) use pd::Pd;
pub(crate) use qp::{Attributes, DoorbellRecord, Qp, Ring};
pub(crate) use table::Table;
pub(crate) use uar::Uar;
pub use uar::UarPage;

/// Numbers of queue pairs start here: 0 and 1 are the management ones.
const FIRST_QP: u32 = 0x40;
/// Numbers of all objects have 24 bits.
const LAST: u32 = 0x00ff_ffff;

/// Every object of a device.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pds: Table<Pd>,
    pub(crate) uars: Table<Uar>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) memory: Memory,
}

impl Objects {
    pub(crate) fn new() -> Self {
        Self {
            pds: Table::new(1, LAST, limits::PDS),
            uars: Table::new(1, LAST, limits::UARS),
            cqs: Table::new(1, LAST, limits::CQS),
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

    /// How many there are of each kind.
    pub(crate) fn count(&self) -> ObjectCounts {
        ObjectCounts {
            protection_domains: self.pds.len(),
            uar_pages: self.uars.len(),
            completion_queues: self.cqs.len(),
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
    /// Completion queues.
    pub completion_queues: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Memory keys.
    pub memory_keys: usize,
    /// User memory registrations.
    pub umems: usize,
}
