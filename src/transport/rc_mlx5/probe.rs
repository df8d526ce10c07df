//! Noticing that an idle queue pair is in error. With a receive ring of its own, its receive WQEs
//! complete as flushed; with a shared one, nothing completes. So a queue pair on which nothing is
//! outstanding executes a NOP every quarter of a second: it leaves no trace on the wire, and in the
//! error state it completes as flushed.

use std::cell::Cell;

use barewire_mlx5::Failure;
use barewire_mlx5::layouts::wqe::Opcode;

use super::driver::{Shared, State};
use super::queue::RcQueuePair;
use crate::base::error::OperationError;
use crate::transport::common::post_state::PostBlock;
use crate::transport::mlx5::failure;
use crate::transport::rc::Queue as _;

/// Most endpoints that are probed in one progress.
const MOST: usize = 256;

/// Where probing continues.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// The tick of the watch that was seen last.
    tick: Cell<u32>,
    /// The next endpoint.
    next: Cell<usize>,
}

impl Shared {
    /// Returns whether endpoints are probed. A caller that lets peers be silent for ever does not
    /// want to know.
    pub(super) fn is_probing(&self) -> bool {
        self.driver.shared_receiver().is_some() && self.config.ack_timeout > 0
    }

    /// Probes endpoints, once in each tick of the watch.
    #[cold]
    pub(super) fn probe_endpoints(&self) {
        let probes = &self.driver.probes;
        let Ok(Some(watch)) = self.domain.watch() else { return };
        if !self.is_probing() || probes.tick.replace(watch.tick()) == watch.tick() {
            return;
        }
        let endpoints = self.core.endpoints.borrow();
        let first = if probes.next.get() < endpoints.len() { probes.next.get() } else { 0 };
        let some = endpoints.iter().skip(first).take(MOST);
        probes.next.set(first + some.map(|state| state.probe()).count());
    }
}

impl State {
    fn probe(&self) {
        let idle = self.in_flight().is_empty() && self.with_queue(|pair| pair.is_idle());
        if !idle || !self.posting.is_alive() || self.posting.has(PostBlock::Unconnected) {
            return;
        }
        let clean = !self.is_dirty();
        if self.post_internal(RcQueuePair::nop).is_ok() {
            self.driver.probed.set(self.with_queue(|pair| pair.posted()));
            if clean {
                self.note_flush();
            }
        }
    }

    /// Returns whether the last post is a probe.
    pub(super) fn is_only_probed(&self) -> bool {
        self.with_queue(|pair| pair.posted()) == self.driver.probed.get()
    }

    /// Handles the failure of a send WQE. That of a probe reports that the queue pair is in error,
    /// as a flushed receive WQE does.
    #[cold]
    pub(super) fn fail(&self, index: u16, failure: Failure) {
        let error: OperationError = failure::error(failure);
        let is_nop = Opcode::from_bits(failure.opcode) == Some(Opcode::Nop);
        if is_nop && self.driver.probed.get() as u16 == index.wrapping_add(1) {
            self.fail_receive(error);
        }
        self.fail_send(index, failure::operation(failure), error);
    }
}
