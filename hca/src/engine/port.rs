//! The parts of the device state that work on one queue pair borrows.

use std::net::IpAddr;

use barewire_layouts::command::capability::PortType;

use super::{Context, Finding, Objects, Qp, Report, Reports, ResponderContext};
use crate::counters::Counters;
use crate::memory::Memory;
use crate::object::{Cq, Events, FIRST_DCT, Gids, Srq};
use crate::table::Table;
use crate::wire::{PhysicalPort, Wire};

/// The device state that work on one queue pair needs beside the queue pair itself.
#[derive(Debug)]
pub(super) struct Port<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) cqs: &'a mut Table<Cq>,
    pub(super) events: &'a mut Events,
    pub(super) srqs: &'a mut Table<Srq>,
    pub(super) gids: &'a Gids,
    pub(super) wire: &'a mut dyn Wire,
    pub(super) counters: &'a mut Counters,
    pub(super) reports: &'a mut Reports,
    /// The packet being built.
    pub(super) frame: &'a mut Vec<u8>,
    pub(super) address: IpAddr,
    pub(super) kind: PortType,
    pub(super) now: u64,
    /// Number of the last DC connection request.
    pub(super) last_connection: &'a mut u64,
    /// Reads may return what later writes and sends change: see [`Requirements`](crate::Requirements).
    pub(super) late_reads: bool,
}

/// Borrows what packets of the port at this index need apart from a queue pair.
pub(super) fn port<'a>(
    context: &'a mut Context<'_>,
    frame: &'a mut Vec<u8>,
    index: usize,
) -> Option<Port<'a>> {
    parts(context, frame, index).map(|(_, _, port)| port)
}

/// Borrows queue pair or responder context `qpn` and, separately, what work on it needs.
pub(super) fn split<'a>(
    context: &'a mut Context<'_>,
    frame: &'a mut Vec<u8>,
    qpn: u32,
) -> Option<(&'a mut Qp, Port<'a>)> {
    let index = context.objects.queue_pair(qpn)?.attributes.port;
    let (qps, contexts, port) = parts(context, frame, index)?;
    let qp = if qpn < FIRST_DCT {
        qps.get_mut(qpn)
    } else {
        contexts.get_mut(qpn).map(|context| &mut context.qp)
    };
    Some((qp?, port))
}

/// Borrows queue pairs, responder contexts and everything else separately.
fn parts<'a>(
    context: &'a mut Context<'_>,
    frame: &'a mut Vec<u8>,
    index: usize,
) -> Option<(&'a mut Table<Qp>, &'a mut Table<ResponderContext>, Port<'a>)> {
    let PhysicalPort { address, wire } = context.ports.get_mut(index)?;
    let Objects {
        qps,
        contexts,
        cqs,
        events,
        srqs,
        gids,
        memory,
        port_type,
        last_connection,
        requirements,
        ..
    } = &mut *context.objects;
    let port = Port {
        memory,
        cqs,
        events,
        srqs,
        gids: gids.get(index)?,
        wire: &mut **wire,
        counters: &mut *context.counters,
        reports: &mut *context.reports,
        frame,
        address: *address,
        kind: *port_type,
        now: context.now,
        last_connection,
        late_reads: requirements.late_reads,
    };
    Some((qps, contexts, port))
}

impl Port<'_> {
    /// Records a finding of the strict checks.
    pub(super) fn report(&mut self, qpn: u32, index: u16, finding: Finding) {
        self.counters.findings += 1;
        self.reports.add(Report { qpn, index, finding });
    }
}
