//! The state of an endpoint behind its handles.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::request::Read;
use barewire_mlx5::{PortAddress, RemoteAddressSegment};

use super::address::TargetAddress;
use super::initiator::{Holder, Initiator};
use super::interface::Shared;
use super::{Endpoint, ID};
use crate::base::error::{ConnectError, EndpointError, Operation, OperationError, PostError};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};

/// An endpoint of the interface.
pub(crate) struct State {
    /// The initiator that it holds.
    pub(super) initiator: Cell<Option<NonNull<Initiator>>>,
    /// Messages that it may send before it asks for more.
    pub(super) credits: Cell<u16>,
    /// Messages that it may send after it has asked.
    pub(super) reserve: Cell<u16>,
    /// Slot in the interface's table.
    pub(super) slot: u32,
    pub(super) address: Cell<AddressVector>,
    pub(super) posting: PostState,
    pub(super) shared: Rc<Shared>,
    /// Number of `Endpoint`s that refer to this state. The drop of the last one closes it.
    pub(super) handles: Cell<u32>,
    /// Number of the last request for more messages, and its time in milliseconds since the
    /// interface was opened.
    pub(super) request: Cell<(u32, u32)>,
    /// Address and key of the word that a remote flush reads.
    flush_target: Cell<(u64, u32)>,
    /// Operations posted before the last remote flush.
    flushed: Cell<u64>,
    /// Made for the first request.
    pending: OnceCell<Box<PendingQueue<Endpoint>>>,
    error: OnceCell<Box<EndpointError>>,
    /// Set once this side cancelled what is outstanding: later errors are reported as cancelled.
    pub(super) canceled: Cell<bool>,
}

impl State {
    /// Creates an unconnected endpoint.
    pub(super) fn new(shared: Rc<Shared>, slot: u32) -> Rc<Self> {
        let window = shared.config.message_window as u16;
        let assigned = shared.initiators.assigned(slot).map(NonNull::from);
        let state = Rc::new(Self {
            initiator: Cell::new(assigned),
            credits: Cell::new(window / 2),
            reserve: Cell::new(window - window / 2),
            slot,
            address: Cell::new(AddressVector::default()),
            posting: PostState::new(&shared.core.past),
            shared,
            handles: Cell::new(0),
            request: Cell::new((crate::base::random::number() as u32, 0)),
            flush_target: Cell::new((0, 0)),
            flushed: Cell::new(0),
            pending: OnceCell::new(),
            error: OnceCell::new(),
            canceled: Cell::new(false),
        });
        state.posting.set(PostBlock::Unconnected, true);
        state
    }

    /// Connects to a target.
    pub(super) fn connect(
        &self,
        port: PortAddress,
        target: &TargetAddress,
    ) -> Result<(), ConnectError> {
        if !self.posting.has(PostBlock::Unconnected) || !self.posting.is_alive() {
            return Err(ConnectError::Connected { transport: ID });
        }
        let address = self.shared.destination(port, target)?;
        self.shared.destinations.connected(port, address);
        self.address.set(address);
        self.flush_target.set((target.flush_address, target.flush_key));
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    pub(super) fn pending(&self) -> &PendingQueue<Endpoint> {
        self.pending.get_or_init(|| Box::new(PendingQueue::new()))
    }

    /// Returns whether no request waits or runs.
    pub(super) fn has_no_requests(&self) -> bool {
        self.pending.get().is_none_or(|pending| pending.is_idle())
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.get().map(|error| (**error).clone())
    }

    /// Returns the initiator that it holds.
    #[inline(always)]
    pub(super) fn held(&self) -> Option<&Initiator> {
        // SAFETY: the pointer is to an initiator of the interface, which `shared` keeps.
        self.initiator.get().map(|initiator| unsafe { initiator.as_ref() })
    }

    /// Returns the initiator for a post: the one that it holds, or a free one.
    #[inline(always)]
    pub(super) fn take(&self) -> Result<&Initiator, PostError> {
        match self.held() {
            Some(initiator) => Ok(initiator),
            None => self.take_free(),
        }
    }

    #[inline(never)]
    fn take_free(&self) -> Result<&Initiator, PostError> {
        let holder = Holder::Endpoint(NonNull::from(self));
        let Some(initiator) = self.shared.initiators.take(holder) else {
            return Err(self.posting.refuse());
        };
        self.initiator.set(Some(NonNull::from(initiator)));
        Ok(initiator)
    }

    /// Handles a refused post: an initiator that was taken for it is returned.
    #[cold]
    pub(super) fn refuse(&self) -> PostError {
        self.give_back();
        self.posting.refuse()
    }

    /// Returns an initiator to which nothing was posted.
    #[cold]
    pub(super) fn give_back(&self) {
        if let Some(initiator) = self.held()
            && initiator.is_idle()
        {
            self.shared.release(initiator);
        }
    }

    /// Returns whether nothing that it posted is outstanding. With a shared initiator: nothing that
    /// anyone posted.
    pub(super) fn is_idle(&self) -> bool {
        self.held().is_none_or(|initiator| initiator.is_idle() && initiator.in_flight.is_empty())
    }

    /// Returns whether a post of any size would find an initiator with room.
    pub(super) fn has_room(&self) -> bool {
        if let Some(initiator) = self.held() {
            return initiator.has_room();
        }
        let initiators = &self.shared.initiators;
        initiators.has_free() && !initiators.wanted_by_grants.get()
    }

    /// Returns whether anything was posted since the last remote flush.
    pub(super) fn is_dirty(&self) -> bool {
        self.posting.tally.read().posted != self.flushed.get()
    }

    /// Posts the read of the peer's flush word.
    pub(super) fn read_flush_word(&self) -> Result<(), PostError> {
        let (initiator, (address, key)) = (self.take()?, self.flush_target.get());
        let local = initiator.unwanted_result();
        let read = Read { local, remote: RemoteAddressSegment::new(address, key) };
        let index = initiator.post(&self.address.get(), read).map_err(|_| self.refuse())?;
        initiator.note_owner(index, self.slot);
        self.flushed.set(self.posting.tally.read().posted);
        Ok(())
    }

    /// Ends posting and returns the error to report, for the first failure; `None` for later ones,
    /// which follow from it.
    pub(super) fn enter_failed(
        &self,
        operation: Operation,
        error: OperationError,
    ) -> Option<EndpointError> {
        if !self.posting.is_alive() {
            return None;
        }
        self.posting.set(PostBlock::Failed, true);
        let report = EndpointError {
            transport: ID,
            peer: Peer(self.address.get()).to_string(),
            operation,
            cause: error.cause,
            syndrome: error.syndrome,
            detail: self.shared.detail(error.cause),
        };
        let _ = self.error.set(Box::new(report.clone()));
        Some(report)
    }
}

/// A peer in error messages: its port and target.
struct Peer(AddressVector);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address) = self;
        if address.gid == [0; 16] {
            write!(f, "LID {}", address.base.lid_or_port.get())?;
        } else {
            write!(f, "{}", PortAddress { gid: address.gid, mac: [0; 6], lid: 0 })?;
        }
        write!(f, " DCT {:#08x}", address.qpn())
    }
}
