//! Which connections are ready: epoll, and the one connection that is polled without it.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

pub(super) use rustix::event::epoll::{Event, EventFlags as Interest};

/// Events that one call of [`Poller::poll`] takes.
pub(super) const EVENTS: usize = 64;
/// Consecutive events of one connection before it is polled directly. To change what epoll watches
/// costs a system call each time.
const STREAK: u32 = 16;
/// Reports the listener once, until it is watched again: what progress has no time for is not
/// reported in every round.
pub(super) const LISTEN: Interest = Interest::IN.union(Interest::ONESHOT);
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The owner of a descriptor in the epoll instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// The listener: the socket and the pending handshakes.
    Listener,
    /// The event descriptor that wakes a sleeping thread.
    Wakeup,
    /// The connection for messages of the endpoint in this slot.
    Messages(u32),
    /// The connection of the endpoint in this slot to its peer's memory.
    Memory(u32),
}

impl Token {
    const LISTENER: u64 = u64::MAX;
    const WAKEUP: u64 = u64::MAX - 1;

    const fn to_data(self) -> u64 {
        match self {
            Self::Listener => Self::LISTENER,
            Self::Wakeup => Self::WAKEUP,
            Self::Messages(slot) => (slot as u64) << 1,
            Self::Memory(slot) => (slot as u64) << 1 | 1,
        }
    }

    const fn from_data(data: u64) -> Self {
        match data {
            Self::LISTENER => Self::Listener,
            Self::WAKEUP => Self::Wakeup,
            _ if data & 1 == 0 => Self::Messages((data >> 1) as u32),
            _ => Self::Memory((data >> 1) as u32),
        }
    }

    pub(super) fn of(event: &Event) -> Self {
        // A copy: the kernel packs the fields of an event.
        let data = event.data;
        Self::from_data(data.u64())
    }
}

/// The epoll instance of an interface whose endpoints are `T`.
///
/// If one connection alone has been active, progress reads it directly and it is not watched: an
/// epoll wakeup takes the socket's lock and delays the reader (measured: 4 % of small-message
/// latency).
pub(super) struct Poller<T> {
    epoll: OwnedFd,
    /// The endpoint whose connection for messages is polled directly.
    direct: RefCell<Option<Rc<T>>>,
    /// The token of the last event.
    last: Cell<Token>,
    /// Consecutive events of that token.
    streak: Cell<u32>,
    /// Made by the first [`Self::arm`].
    wakeup: OnceCell<OwnedFd>,
    /// Why the next progress polls all connections: 0, or [`EXAMINE`] and [`ARMED`].
    due: Cell<u8>,
}

/// The caller asks for it.
const EXAMINE: u8 = 1;
/// A thread may sleep until [`Poller::wake`].
const ARMED: u8 = 2;

impl<T> Poller<T> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            direct: RefCell::default(),
            last: Cell::new(Token::Listener),
            streak: Cell::new(0),
            wakeup: OnceCell::new(),
            due: Cell::new(0),
        })
    }

    /// Watches a descriptor from now on.
    pub(super) fn add(
        &self,
        descriptor: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.to_data());
        Ok(epoll::add(&self.epoll, descriptor, data, interest)?)
    }

    /// Changes what a descriptor is watched for. With an empty interest it is removed: epoll
    /// reports HUP and ERR all the same, again and again.
    pub(super) fn change(
        &self,
        descriptor: impl AsFd,
        token: Token,
        before: Interest,
        after: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.to_data());
        match (before.is_empty(), after.is_empty()) {
            _ if before == after => {}
            (true, _) => epoll::add(&self.epoll, descriptor, data, after)?,
            (_, true) => epoll::delete(&self.epoll, descriptor)?,
            _ => epoll::modify(&self.epoll, descriptor, data, after)?,
        }
        Ok(())
    }

    /// Reports the listener once again.
    pub(super) fn listen(&self, listener: impl AsFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(Token::Listener.to_data());
        Ok(epoll::modify(&self.epoll, listener, data, LISTEN)?)
    }

    /// Stops watching a descriptor, if it is watched.
    pub(super) fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Replaces `events` with the current ones, up to [`EVENTS`]. Does not wait.
    pub(super) fn poll(&self, events: &mut Vec<Event>) {
        events.clear();
        // The vector is new if a handler panicked.
        events.reserve(EVENTS);
        // After an interruption there are no events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&NO_WAIT));
    }

    /// Returns true if there are events.
    pub(super) fn is_ready(&self) -> Result<bool, Errno> {
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&NO_WAIT)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    // Polling one connection directly.

    /// The endpoint whose connection for messages is polled directly, if there is one.
    #[inline]
    pub(super) fn direct(&self) -> Option<Rc<T>> {
        self.direct.borrow().clone()
    }

    /// An event of `endpoint` was reported. If its connection for messages has long been the only
    /// active one, it is polled directly from now on. `poll_directly` turns that on or off for an
    /// endpoint, and returns false if the connection is in use.
    pub(super) fn note(
        &self,
        token: Token,
        endpoint: &Rc<T>,
        poll_directly: impl Fn(&T, bool) -> bool,
    ) {
        if self.last.replace(token) != token {
            self.watch_all(&poll_directly);
        }
        self.streak.set(self.streak.get() + 1);
        if matches!(token, Token::Messages(_))
            && self.streak.get() >= STREAK
            && self.direct.borrow().is_none()
            && poll_directly(endpoint, true)
        {
            self.direct.replace(Some(Rc::clone(endpoint)));
        }
    }

    /// Polls every connection by epoll. Returns false if the one polled directly is in use.
    pub(super) fn watch_all(&self, poll_directly: impl Fn(&T, bool) -> bool) -> bool {
        self.streak.set(0);
        let done = self.direct().is_none_or(|endpoint| poll_directly(&endpoint, false));
        if done {
            self.direct.take();
        }
        done
    }

    /// `endpoint` ends: its connection is not polled directly any more.
    pub(super) fn forget(&self, endpoint: &Rc<T>) {
        if self.direct().is_some_and(|direct| Rc::ptr_eq(&direct, endpoint)) {
            self.forget_direct();
        }
    }

    /// All endpoints end.
    pub(super) fn forget_direct(&self) {
        self.streak.set(0);
        self.direct.take();
    }

    // Waking a thread that sleeps on the descriptor.

    /// Makes the event descriptor that [`Self::wake`] uses.
    ///
    /// # Errors
    /// The step that failed, and the kernel's error.
    pub(super) fn prepare_to_sleep(&self) -> Result<(), (&'static str, io::Error)> {
        if self.wakeup.get().is_some() {
            return Ok(());
        }
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ("make an event descriptor", error.into()))?;
        self.add(&wakeup, Token::Wakeup, Interest::IN)
            .map_err(|error| ("watch an event descriptor", error))?;
        let _ = self.wakeup.set(wakeup);
        Ok(())
    }

    /// A thread may sleep from now on.
    pub(super) fn arm(&self) {
        self.due.set(self.due.get() | ARMED);
    }

    /// Progress has something to do: wakes the thread that sleeps.
    #[inline]
    pub(super) fn wake(&self) {
        if self.due.get() & ARMED != 0 {
            self.write_wakeup();
        }
    }

    #[cold]
    fn write_wakeup(&self) {
        self.due.set(self.due.get() & !ARMED);
        if let Some(wakeup) = self.wakeup.get() {
            // It only fails if it was written already.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
        }
    }

    /// The next progress polls all connections.
    pub(super) fn examine(&self) {
        self.due.set(self.due.get() | EXAMINE);
    }

    /// Returns true if all connections must be polled: a thread may have slept, which it does no
    /// longer, or the caller has asked for it.
    #[inline]
    pub(super) fn disarm(&self) -> bool {
        self.due.replace(0) != 0
    }

    /// Resets the event descriptor.
    pub(super) fn clear_wakeup(&self) {
        if let Some(wakeup) = self.wakeup.get() {
            let _ = rustix::io::read(wakeup, &mut [0; 8]);
        }
    }
}

impl<T> AsFd for Poller<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn tokens_come_back() {
        for token in [Token::Listener, Token::Wakeup, Token::Messages(0), Token::Memory(u32::MAX)] {
            assert_eq!(Token::from_data(token.to_data()), token);
        }
    }

    #[test]
    fn only_a_connection_that_is_long_alone_is_polled_directly() {
        let poller = Poller::new().unwrap();
        let calls = RefCell::new(Vec::new());
        let switch = |endpoint: &u32, on| {
            calls.borrow_mut().push((*endpoint, on));
            true
        };
        let (three, four) = (Rc::new(3), Rc::new(4));
        for _ in 1..STREAK {
            poller.note(Token::Messages(3), &three, switch);
        }
        assert_eq!(poller.direct(), None);
        poller.note(Token::Messages(3), &three, switch);
        assert_eq!(poller.direct(), Some(Rc::clone(&three)));
        poller.note(Token::Messages(4), &four, switch);
        assert_eq!((poller.direct(), calls.take()), (None, vec![(3, true), (3, false)]));
        for _ in 0..2 * STREAK {
            poller.note(Token::Memory(3), &three, switch);
        }
        assert_eq!((poller.direct(), calls.take()), (None, vec![]));
    }

    #[test]
    fn a_connection_in_use_stays_as_it_is() {
        let poller = Poller::new().unwrap();
        let one = Rc::new(1);
        for _ in 0..STREAK {
            poller.note(Token::Messages(1), &one, |_, _| false);
        }
        assert_eq!(poller.direct(), None);
        poller.note(Token::Messages(1), &one, |_, _| true);
        assert!(!poller.watch_all(|_, _| false));
        assert_eq!(poller.direct(), Some(one));
    }

    #[test]
    fn the_listener_is_reported_once_until_it_is_watched_again() {
        let poller = Poller::<()>::new().unwrap();
        let listener = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        poller.add(&listener, Token::Listener, LISTEN).unwrap();
        let mut events = Vec::new();
        for _ in 0..2 {
            poller.poll(&mut events);
            assert_eq!(events.iter().map(Token::of).collect::<Vec<_>>(), [Token::Listener]);
            poller.poll(&mut events);
            assert!(events.is_empty());
            poller.listen(&listener).unwrap();
        }
    }

    #[test]
    fn a_request_to_examine_outlives_the_wakeup_of_a_post() {
        let poller = Poller::<()>::new().unwrap();
        poller.prepare_to_sleep().unwrap();
        for arms_first in [true, false] {
            if arms_first {
                poller.arm();
                poller.examine();
            } else {
                poller.examine();
                poller.arm();
            }
            poller.wake();
            assert!(poller.disarm());
            assert!(!poller.disarm());
        }
    }

    #[test]
    fn a_wakeup_is_an_event() {
        let poller = Poller::<()>::new().unwrap();
        poller.prepare_to_sleep().unwrap();
        poller.wake();
        assert!(!poller.is_ready().unwrap(), "no thread sleeps");
        poller.arm();
        poller.wake();
        let mut events = Vec::new();
        poller.poll(&mut events);
        assert_eq!(events.iter().map(Token::of).collect::<Vec<_>>(), [Token::Wakeup]);
        assert!(!poller.disarm());
        poller.clear_wakeup();
        assert!(!poller.is_ready().unwrap());
    }
}
