//! The endpoint: a post carries out a short operation at once, and progress a long one slice by
//! slice.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use barewire_shm::{Process, Range};

use super::address;
use super::domain::RemoteKey;
use super::interface::Shared;
use super::transfer::{self, Failure, Step, Transfer};
use super::{Cma, Endpoint, ID, Interface, MAX_IN_PROGRESS, MAX_IOV, SLICE};
use crate::base::address::{DeviceAddress, EndpointAddress, Packed, PeerAddress};
use crate::base::capability::Check;
use crate::base::completion::Completion;
use crate::base::error::{
    Cause, ConnectError, EndpointError, OpenError, Operation, OperationError, PostError,
};
use crate::base::memory::{Slice, Transfer as ListTransfer};
use crate::base::panics::Panics;
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::common::rma::{self, Rma};
use crate::transport::handle::{EndpointState, InterfaceState as _, endpoint_fields};

pub(crate) struct State {
    pub(super) posting: PostState,
    /// The peer, and its domain's secret, part of which its keys contain.
    peer: RefCell<Option<(Rc<Process>, u128)>>,
    steps: RefCell<VecDeque<Step>>,
    pending: PendingQueue<Endpoint>,
    error: RefCell<Option<EndpointError>>,
    unreported: Cell<bool>,
    shared: Rc<Shared>,
}

impl Endpoint {
    /// Creates an unconnected endpoint.
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        let core = &interface.0.core;
        core.check_opening()?;
        let state = Rc::new(State {
            posting: PostState::new(&core.past),
            peer: RefCell::default(),
            steps: RefCell::default(),
            pending: PendingQueue::new(),
            error: RefCell::default(),
            unreported: Cell::new(false),
            shared: Rc::clone(&interface.0),
        });
        state.posting.set(PostBlock::Unconnected, true);
        core.endpoints.add(&state);
        Ok(Self::handle(state))
    }

    /// Connects to the peer's process, after a check that the kernel allows access to its memory.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`],
    /// [`ConnectError::Unreachable`] with the reason, [`ConnectError::Connected`] the second time.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        self.reach(peer.device(), &peer.endpoint_for(ID)?.0)
    }

    pub(super) fn reach(
        &self,
        device: &DeviceAddress,
        address: &Packed,
    ) -> Result<(), ConnectError> {
        let state = &*self.0;
        let address = address::table(device, address)?;
        if !state.posting.has(PostBlock::Unconnected) || !state.posting.is_alive() {
            return Err(ConnectError::Connected { transport: ID });
        }
        let process = state.shared.reach(address)?;
        state.peer.replace(Some((process, address.secret)));
        state.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }
}

impl Rma for Endpoint {
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let state = &*self.0;
        state.posting.check()?;
        let total = rma::total(slices, state.shared.domain.tag(), MAX_IOV, PUT)?;
        let mut ranges = [Range { address: 0, length: 0 }; MAX_IOV];
        for (range, slice) in ranges.iter_mut().zip(slices) {
            *range = Range { address: slice.start(), length: slice.length };
        }
        let ranges = ranges.get(..slices.len()).unwrap_or_default();
        let peer = state.peer.borrow();
        let (process, secret) = peer.as_ref().ok_or(PostError::NotConnected)?;
        let remote = key.resolve(remote, *secret)?;
        let waiting = state.steps.borrow().len();
        if waiting >= MAX_IN_PROGRESS {
            return Err(state.posting.refuse());
        }
        let copied = if total <= SLICE && waiting == 0 {
            // SAFETY: the slices borrow their memory, and their ranges were checked on creation.
            unsafe { transfer::copy(PUT, process, ranges, remote, total) }
        } else {
            transfer::check(PUT, process, remote, total).map(|()| 0)
        };
        let done = match copied {
            Ok(copied) if copied == total && waiting == 0 => {
                state.posting.tally.posted(total);
                return Ok(Posted::Done);
            }
            Ok(copied) => copied,
            Err(failure) => {
                if let Some(refusal) = failure.refusal() {
                    return Err(refusal);
                }
                state.fail(rma::operation(PUT), &failure);
                return Err(PostError::EndpointFailed);
            }
        };
        let regions: Result<Vec<_>, PostError> = ranges
            .iter()
            .zip(slices)
            .map(|(range, slice)| Ok((*range, state.shared.domain.region(slice.key)?)))
            .collect();
        let mut transfer = Transfer::new(PUT, regions?, remote, completion);
        transfer.skip(done);
        state.steps.borrow_mut().push_back(Step::Transfer(transfer));
        state.posting.tally.posted(total);
        state.shared.call_attention();
        Ok(Posted::InProgress)
    }

    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[ListTransfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        if self.0.steps.borrow().len() + transfers.len() > MAX_IN_PROGRESS {
            return Err(if transfers.len() > MAX_IN_PROGRESS {
                PostError::TooManyTransfers { limit: MAX_IN_PROGRESS as u32 }
            } else {
                self.0.posting.refuse()
            });
        }
        for &ListTransfer { local, remote, key } in transfers {
            let _ = self.transfer::<PUT>(&[local], remote, key, None)?;
        }
        // Transfers of the list that are in progress are queued before this mark.
        self.0.flush(FlushMode::Local, completion)
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        state.probe()
    }
}

impl EndpointState for State {
    endpoint_fields!(Cma);

    fn address(&self) -> EndpointAddress {
        address::endpoint(&self.shared.domain.table().address())
    }

    fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    fn may_wait(&self) -> bool {
        let full = self.steps.borrow().len() >= MAX_IN_PROGRESS;
        self.posting.is_usable() && (full || !self.pending.is_idle())
    }

    fn probe(&self) -> Result<(), PostError> {
        let probe = self.peer.borrow().as_ref().map_or(Ok(()), |(process, _)| process.probe());
        probe.map_err(|error| {
            self.fail(Operation::Check, &Failure::Process(error));
            PostError::EndpointFailed
        })
    }

    fn is_idle(&self) -> bool {
        self.steps.borrow().is_empty()
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        self.steps.borrow_mut().push_back(Step::Mark(completion.map(Completion::begin)));
        self.shared.call_attention();
        Ok(())
    }

    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            if !self.posting.is_alive() {
                self.posting.check()?;
            }
            let idle = self.steps.borrow().is_empty();
            self.posting.set(PostBlock::Failed, true);
            if idle {
                return Ok(Posted::Done);
            }
            self.steps.borrow_mut().push_back(Step::Canceled(completion.map(Completion::begin)));
            self.shared.call_attention();
            return Ok(Posted::InProgress);
        }
        self.posting.check()?;
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if self.steps.borrow().len() >= 2 * MAX_IN_PROGRESS {
            return Err(self.posting.refuse());
        }
        self.flush_all(completion)?;
        Ok(Posted::InProgress)
    }
}

impl State {
    /// Copies up to `slice` bytes of the first transfer in the queue. Returns the number of events.
    pub(super) fn turn(&self, slice: usize) -> usize {
        let Some(step) = self.steps.borrow_mut().pop_front() else { return 0 };
        if !self.posting.is_alive() {
            let cause =
                if self.error.borrow().is_some() { Cause::Flushed } else { Cause::Canceled };
            finish(step, Err(OperationError { cause, syndrome: None }));
            return 1;
        }
        let Step::Transfer(mut transfer) = step else {
            finish(step, Ok(()));
            return 1;
        };
        let table = self.shared.domain.table();
        let result = match &*self.peer.borrow() {
            Some((process, _)) => transfer.advance(process, table, slice),
            None => Ok(true),
        };
        match result {
            Ok(true) => finish(Step::Transfer(transfer), Ok(())),
            Ok(false) => self.steps.borrow_mut().push_front(Step::Transfer(transfer)),
            Err(failure) => {
                let cause = failure.cause();
                self.fail(transfer.operation(), &failure);
                finish(Step::Transfer(transfer), Err(OperationError { cause, syndrome: None }));
            }
        }
        1
    }

    #[cold]
    fn fail(&self, operation: Operation, failure: &Failure) {
        if self.posting.is_alive() {
            let number = self.peer.borrow().as_ref().map_or(0, |(process, _)| process.number());
            let peer = format!("process {number}");
            self.error.replace(Some(EndpointError {
                transport: ID,
                peer,
                operation,
                cause: failure.cause(),
                syndrome: None,
                detail: Some(failure.detail()),
            }));
            self.posting.set(PostBlock::Failed, true);
            self.unreported.set(true);
            self.shared.call_attention();
        }
    }

    /// Returns the error that the error handler has not received yet.
    pub(super) fn unreported(&self) -> Option<EndpointError> {
        if self.unreported.replace(false) { self.error.borrow().clone() } else { None }
    }

    /// Completes operations in progress as cancelled.
    pub(super) fn abandon(&self) {
        let mut panics = Panics::default();
        loop {
            let step = self.steps.borrow_mut().pop_front();
            let Some(step) = step else { return };
            panics.catch(|| finish(step, Err(OperationError::CANCELED)));
        }
    }
}

/// Runs the user's callback. The caller borrows nothing meanwhile.
fn finish(step: Step, result: Result<(), OperationError>) {
    match step {
        // The cancellation itself succeeded.
        Step::Canceled(Some(completion)) => completion.finish_canceled(),
        Step::Transfer(Transfer { completion: Some(completion), .. })
        | Step::Mark(Some(completion)) => {
            completion.finish(result);
        }
        Step::Transfer(_) | Step::Mark(None) | Step::Canceled(None) => {}
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.posting.has(PostBlock::Forked) {
            return;
        }
        self.abandon();
    }
}
