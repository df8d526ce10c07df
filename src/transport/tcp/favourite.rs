//! The one connection that is asked by itself.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::interface::DOOR;
use super::state::{State, Trouble};
use crate::error::Operation;

/// As often in a row has a connection to be heard of, and no other between, before it is the favourite: to watch it no more and to watch it
/// again are system calls, too.
const STREAK: u32 = 16;

/// The connection that alone was heard of lately. Progress asks it directly, and the system does not watch it meanwhile: to note in the epoll
/// that something came is done under the socket's lock, which whoever reads from it waits for (4 % of a small message's way).
pub(super) struct Favourite {
    state: RefCell<Option<Rc<State>>>,
    /// The number of the last event.
    last: Cell<u64>,
    /// As many events in a row were of that number.
    streak: Cell<u32>,
}

impl Favourite {
    pub(super) fn none() -> Self {
        Self { state: RefCell::default(), last: Cell::new(DOOR), streak: Cell::new(0) }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<Rc<State>> {
        self.state.borrow().clone()
    }

    /// The system has told of a connection by this number.
    pub(super) fn note(&self, number: u64, state: &Rc<State>) {
        if self.last.replace(number) != number {
            self.dismiss();
        }
        self.streak.set(self.streak.get() + 1);
        if self.streak.get() >= STREAK
            && number & 1 == 0
            && self.state.borrow().is_none()
            && state.watch(false)
        {
            self.state.replace(Some(Rc::clone(state)));
        }
    }

    /// There is none from now on. False if it could not be done now: something is being posted.
    pub(super) fn dismiss(&self) -> bool {
        self.streak.set(0);
        let Some(state) = self.get() else { return true };
        let watched = state.watch(true);
        if watched {
            self.state.take();
        }
        watched
    }

    /// As [`Self::dismiss`], of one whose connection is no more.
    pub(super) fn forget(&self) {
        self.streak.set(0);
        self.state.take();
    }
}

impl State {
    /// Whether the system watches the connection for messages. False if nothing was changed, since something is being posted.
    fn watch(&self, on: bool) -> bool {
        let Ok(mut lane) = self.messages.try_borrow_mut() else { return false };
        if let Err(error) = lane.watch_for_messages(&self.shared.epoll, on) {
            self.fail_later(Trouble::of_sending(Operation::Receive, &error.into()));
        }
        true
    }
}
