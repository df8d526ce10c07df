//! The objects that commands create, in a table for each kind, with reference counts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use barewire_layouts::command::capability::PortType;

use crate::limits;
use crate::memory::Memory;
use crate::requirements::Requirements;
use crate::table::Table;

mod compress;
mod counter_set;
mod cq;
mod dct;
mod eq;
mod event_channel;
mod event_watch;
mod events;
mod gids;
mod groups;
mod management;
mod notify;
mod object_watch;
mod pd;
mod qp;
mod scatter;
mod srq;
mod tags;
mod uar;

pub(crate) use compress::Compression;
pub(crate) use counter_set::CounterSet;
pub(crate) use cq::Cq;
pub(crate) use dct::{Dct, ResponderContext};
pub(crate) use eq::Eq;
pub use event_channel::EventChannel;
pub use event_watch::EventWatch;
pub(crate) use events::Events;
pub(crate) use gids::{Gids, Invalid as InvalidGid};
pub(crate) use groups::{Full as FullGroup, Groups};
pub use management::{Management, ManagementDatagram};
pub(crate) use notify::{Notify, UNARMED};
pub use object_watch::ObjectWatch;
pub(crate) use pd::{Pd, Xrcd};
pub(crate) use qp::{Attributes, DoorbellRecord, PathService, Qp, Ring, StreamLimits};
pub(crate) use scatter::{Inline, Scatter};
pub(crate) use srq::{Order, Srq, SrqKind, Taken, Xrc};
pub(crate) use tags::{Full, TagBuffer, Tags};
pub(crate) use uar::Uar;
pub use uar::UarPage;

/// Numbers of queue pairs start here: 0 and 1 are the management queue pairs.
const FIRST_QP: u32 = 0x40;
/// Packets name queue pairs, targets of dynamic connections and their responder contexts in one
/// number space.
pub(crate) const FIRST_DCT: u32 = 0x0040_0000;
const FIRST_CONTEXT: u32 = 0x0080_0000;
/// Numbers of all objects have 24 bits.
const LAST: u32 = 0x00ff_ffff;

/// Numbers of counter sets have 8 bits.
const LAST_COUNTER_SET: u32 = 0xff;

/// Every object of a device. `E` is the state that the engine keeps with each queue pair.
#[derive(Debug)]
pub(crate) struct Objects<E> {
    pub(crate) pds: Table<Pd>,
    pub(crate) xrcds: Table<Xrcd>,
    pub(crate) uars: Table<Uar>,
    pub(crate) events: Events,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) counter_sets: Table<CounterSet>,
    pub(crate) qps: Table<Qp<E>>,
    pub(crate) groups: Groups,
    /// The reported port type.
    pub(crate) port_type: PortType,
    pub(crate) requirements: Requirements,
    /// One table for each port.
    pub(crate) gids: Vec<Gids>,
    pub(crate) dcts: Table<Dct>,
    /// The responder contexts of all targets.
    pub(crate) contexts: Table<ResponderContext<E>>,
    /// The number of the last requested connection.
    pub(crate) last_connection: u64,
    /// Queue pairs and targets that get no packet: see [`Requirements`].
    pub(crate) deaf: BTreeSet<u32>,
    /// Receives the datagrams to queue pair 1, if there is a manager.
    pub(crate) management: Option<Arc<Management>>,
    pub(crate) memory: Memory,
}

impl<E> Objects<E> {
    /// Creates the objects of a device whose ports have these addresses: at most `contexts`
    /// responder contexts. Object numbers that packets carry start at numbers from `first`.
    pub(crate) fn new(
        addresses: impl Iterator<Item = IpAddr>,
        contexts: usize,
        mut first: impl FnMut() -> u64,
    ) -> Self {
        Self {
            port_type: PortType::Ethernet,
            requirements: Requirements::default(),
            gids: addresses.map(Gids::new).collect(),
            pds: Table::new(1, LAST, limits::PDS),
            xrcds: Table::new(1, LAST, limits::XRCDS),
            uars: Table::new(1, LAST, limits::UARS),
            events: Events::new(),
            cqs: Table::new(1, LAST, limits::CQS),
            counter_sets: Table::new(1, LAST_COUNTER_SET, limits::COUNTER_SETS),
            srqs: Table::new(1, LAST, limits::SRQS).starting_at(first()),
            qps: Table::new(FIRST_QP, FIRST_DCT - 1, limits::QPS).starting_at(first()),
            groups: Groups::default(),
            dcts: Table::new(FIRST_DCT, FIRST_CONTEXT - 1, limits::DCTS).starting_at(first()),
            contexts: Table::new(FIRST_CONTEXT, LAST, contexts.min(limits::DC_CONTEXTS))
                .starting_at(first()),
            last_connection: 0,
            deaf: BTreeSet::new(),
            management: None,
            memory: Memory::new(first()),
        }
    }

    /// Reports page faults from now on if an event queue receives them. Otherwise the device pages
    /// memory in itself.
    pub(crate) fn follow_page_faults(&mut self) {
        self.memory.reports_faults =
            self.requirements.page_faults && self.events.take_page_faults();
    }

    /// Returns the queue pair or responder context of that number.
    pub(crate) fn queue_pair(&self, number: u32) -> Option<&Qp<E>> {
        if number < FIRST_DCT {
            self.qps.get(number)
        } else {
            self.contexts.get(number).map(|context| &context.qp)
        }
    }

    /// Adds the references of a new queue pair.
    pub(crate) fn hold_for_qp(&mut self, pd: u32, uar: u32, cqs: [u32; 2], umems: [u32; 2]) {
        self.hold_pd(pd);
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users += 1;
        }
        for cq in cqs {
            self.hold_cq(cq);
        }
        for umem in umems {
            self.memory.hold(umem);
        }
    }

    /// Reverts [`Objects::hold_for_qp`].
    pub(crate) fn release_for_qp(&mut self, pd: u32, uar: u32, cqs: [u32; 2], umems: [u32; 2]) {
        self.release_pd(pd);
        self.release_uar(uar);
        for cq in cqs {
            self.release_cq(cq);
        }
        for umem in umems {
            self.memory.release(umem);
        }
    }

    /// Adds a reference to protection domain `pd`.
    pub(crate) fn hold_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
    }

    /// Adds a reference to completion queue `cq`.
    pub(crate) fn hold_cq(&mut self, cq: u32) {
        if let Some(cq) = self.cqs.get_mut(cq) {
            cq.users += 1;
        }
    }

    /// Removes a reference to completion queue `cq`.
    pub(crate) fn release_cq(&mut self, cq: u32) {
        if let Some(cq) = self.cqs.get_mut(cq) {
            cq.users -= 1;
        }
    }

    /// Removes a reference to protection domain `pd`.
    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    /// Adds (`used`) or removes a reference to XRC domain `xrcd`.
    pub(crate) fn use_xrcd(&mut self, xrcd: Option<u32>, used: bool) {
        if let Some(xrcd) = xrcd.and_then(|xrcd| self.xrcds.get_mut(xrcd)) {
            xrcd.users = if used { xrcd.users + 1 } else { xrcd.users.saturating_sub(1) };
        }
    }

    /// Removes a reference to UAR page `uar`.
    pub(crate) fn release_uar(&mut self, uar: u32) {
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users -= 1;
        }
    }

    /// Adds (`taken`) or removes a reference to shared receive queue `srq`.
    pub(crate) fn share(&mut self, srq: Option<u32>, taken: bool) {
        if let Some(srq) = srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = if taken { srq.users + 1 } else { srq.users.saturating_sub(1) };
        }
    }

    /// Removes a reference to event queue `eq`.
    pub(crate) fn release_eq(&mut self, eq: u32) {
        if let Some(eq) = self.events.queues.get_mut(eq) {
            eq.users -= 1;
        }
    }

    /// Returns the number of objects of each kind.
    pub(crate) fn count(&self) -> ObjectCounts {
        ObjectCounts {
            protection_domains: self.pds.len(),
            uar_pages: self.uars.len(),
            event_queues: self.events.queues.len(),
            completion_queues: self.cqs.len(),
            shared_receive_queues: self.srqs.len(),
            counter_sets: self.counter_sets.len(),
            queue_pairs: self.qps.len(),
            xrc_domains: self.xrcds.len(),
            dynamic_targets: self.dcts.len(),
            dynamic_connections: self.contexts.len(),
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
    /// XRC domains.
    pub xrc_domains: usize,
    /// Targets of dynamic connections.
    pub dynamic_targets: usize,
    /// Responder contexts of those targets: open connections.
    pub dynamic_connections: usize,
    /// Memory keys.
    pub memory_keys: usize,
    /// User memory registrations.
    pub umems: usize,
}
