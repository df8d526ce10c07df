//! Completions: taking one from the device and processing it.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use barewire_mlx5::layouts::cqe::{CqeFormat, CqeOpcode};
use barewire_mlx5::{Completion, CompletionKind, Polled};

use super::driver::{Shared, State};
use super::{Progress, tags};
use crate::transport::mlx5::failure;
use crate::transport::mlx5::shared::{InBuffer, InCqe, Place};
use crate::transport::rc::am_length;

impl Progress {
    /// Returns whether there is nothing to do, by one test. May return `false` once more.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: only `Progress` polls the queue, and `&self` excludes a poll through `&mut self`.
        // `arm` borrows the queue mutably, but runs no user code, so this function is not called
        // then.
        let completions = unsafe { &*self.0.driver.completions.get() };
        completions.is_unchanged(self.0.attention.word())
    }

    /// Takes one completion, or does everything else, if another thread or this one called for it.
    #[inline(always)]
    pub(super) fn poll(&mut self) -> usize {
        let shared = &*self.0;
        let (words, word) = shared.attention.watched();
        // SAFETY: only `Progress` polls, with `&mut self`. `Driver::create`, `is_drained` and `arm`
        // borrow the queue only while they run, and none of them polls or runs user code. The
        // borrow ends before the event is delivered.
        let completions = unsafe { &mut *shared.driver.completions.get() };
        if completions.is_unchanged(word) {
            return 0;
        }
        // SAFETY: `words` are those of the next CQE, or `word` is all ones: whatever takes a CQE
        // watches the next one before anything else runs, or pauses `attention` until it does.
        let polled = unsafe {
            completions.poll_words(words, word, CqeOpcode::ResponderSend, CqeFormat::Inline32)
        };
        if let Some(polled) = polled {
            let (counter, length) = (polled.wqe_position(), am_length(polled.byte_count()));
            // SAFETY: this completion was taken just now, and is delivered here.
            let place = unsafe { in_cqe(polled) };
            // SAFETY: as in `watch`.
            unsafe { shared.attention.watch(completions.next_words()) };
            return self.deliver(counter, length, place);
        }
        // SAFETY: as above, since the first poll has taken nothing.
        let polled =
            unsafe { completions.poll_words(words, word, CqeOpcode::Requester, CqeFormat::Plain) };
        if let Some(polled) = polled {
            let (counter, user_index) = (polled.wqe_counter(), polled.user_index());
            // SAFETY: as in `watch`.
            unsafe { shared.attention.watch(completions.next_words()) };
            return self.complete(user_index, counter);
        }
        self.poll_buffered()
    }

    /// Takes a message in a buffer, or does what is rarer. This is a function, because the compiler
    /// would otherwise combine this test with those of [`Self::poll`], and test for messages in CQEs
    /// last.
    #[inline(never)]
    fn poll_buffered(&mut self) -> usize {
        let shared = &*self.0;
        let (words, word) = shared.attention.watched();
        // SAFETY: as in `poll`.
        let completions = unsafe { &mut *shared.driver.completions.get() };
        // SAFETY: as in `poll`.
        let polled = unsafe {
            completions.poll_words(words, word, CqeOpcode::ResponderSend, CqeFormat::Plain)
        };
        if let Some(polled) = polled {
            let (counter, length) = (polled.wqe_position(), am_length(polled.byte_count()));
            // SAFETY: as in `watch`.
            unsafe { shared.attention.watch(completions.next_words()) };
            self.deliver(counter, length, InBuffer)
        } else {
            self.poll_changed()
        }
    }

    /// Handles a call for attention, a rare completion, or the end of the completions.
    #[cold]
    #[inline(never)]
    fn poll_changed(&mut self) -> usize {
        // Orders the load of the word before that of the flag.
        fence(Ordering::Acquire);
        // A handler that panics leaves no CQE watched that was taken.
        self.0.attention.pause();
        if self.0.needs_attention() {
            return self.settle();
        }
        let events = self.take::<false>();
        self.watch();
        events
    }

    /// Watches the next completion, if there is no call for attention.
    fn watch(&self) {
        let shared = &*self.0;
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this function, which runs no user code.
        let completions = unsafe { &mut *shared.driver.completions.get() };
        completions.note_empty();
        // SAFETY: the CQE is in the ring of the queue, which is dropped together with `attention`.
        // The device writes it, and the driver does so by whole words.
        unsafe { shared.attention.watch_again(completions.next_words()) };
    }

    /// As [`Self::take`], after everything else.
    pub(super) fn take_closing(&mut self) -> usize {
        let events = self.take::<true>();
        self.watch();
        events
    }

    /// Takes one completion. `CLOSING`: endpoints may be closing.
    #[inline(always)]
    pub(super) fn take<const CLOSING: bool>(&mut self) -> usize {
        // SAFETY: only `Progress` polls, with `&mut self`. `Driver::create`, `is_drained` and `arm`
        // borrow the queue only while they run, and none of them polls or runs user code. The
        // borrow ends before the event is delivered.
        let Some(polled) = (unsafe { &mut *self.0.driver.completions.get() }).poll() else {
            return 0;
        };
        let (opcode, counter) = (polled.opcode(), polled.wqe_counter());
        if opcode == CqeOpcode::ResponderSend as u8 {
            if CLOSING && self.discards(counter) { 1 } else { self.deliver_last() }
        } else if opcode == CqeOpcode::Requester as u8 {
            let user_index = polled.user_index();
            self.complete(user_index, counter)
        } else {
            self.take_other()
        }
    }

    /// Delivers the message that was taken last. Returns 1, the number of events.
    #[cold]
    #[inline(never)]
    fn deliver_last(&mut self) -> usize {
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends
        // before the message is delivered.
        let polled = unsafe { &*self.0.driver.completions.get() }.last();
        let (counter, length) = (polled.wqe_position(), am_length(polled.byte_count()));
        match polled.format() {
            CqeFormat::Inline32 => {
                // SAFETY: this completion was taken last, and is delivered here.
                let place = unsafe { in_cqe(polled) };
                self.deliver(counter, length, place)
            }
            _ => self.deliver(counter, length, InBuffer),
        }
    }

    /// Delivers the message of `length` bytes of the receive WQE `counter`, of which only the low
    /// half has a meaning. Returns 1, the number of events.
    #[inline(never)]
    fn deliver(&mut self, counter: u32, length: usize, place: impl Place) -> usize {
        let shared = &*self.0;
        let Some(receiver) = &shared.driver.receiver else {
            return self.deliver_from_ring(counter, length);
        };
        let received = receiver.receive(counter, length, place, |message| match message {
            None => shared.running().count_unhandled(),
            Some((id, message)) => shared.running().dispatch(id, message),
        });
        if received { 1 } else { self.deliver_after_update() }
    }

    /// As [`Self::deliver_last`], after a batch of messages.
    #[cold]
    #[inline(never)]
    fn deliver_after_update(&mut self) -> usize {
        let shared = &*self.0;
        if let Some(receiver) = &shared.driver.receiver {
            // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends
            // with this statement, which runs no user code.
            receiver.update(unsafe { &*shared.driver.completions.get() });
        }
        self.deliver_last()
    }

    /// As [`Self::deliver`], from the endpoint's own receive ring.
    #[inline(never)]
    fn deliver_from_ring(&mut self, counter: u32, length: usize) -> usize {
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let user_index = unsafe { &*self.0.driver.completions.get() }.last().user_index();
        let Some(state) = self.0.endpoint(user_index) else { return self.take_first(user_index) };
        state.receive(&mut self.0.running(), counter, length);
        1
    }

    /// Discards the message that was taken last, in WQE `counter` of the shared receive queue, if its
    /// endpoint is closed. Returns whether it did.
    #[cold]
    #[inline(never)]
    fn discards(&self, counter: u16) -> bool {
        let shared = &*self.0;
        let Some(receiver) = shared.driver.receiver.as_ref().filter(|_| shared.closing.get() > 0)
        else {
            return false;
        };
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let event = Completion::from(&unsafe { &*shared.driver.completions.get() }.last_cqe());
        let endpoints = shared.core.endpoints.borrow();
        let stopped =
            endpoints.iter().any(|state| state.own.qpn == event.qpn && state.is_stopped());
        if stopped {
            receiver.discard(counter);
        }
        stopped
    }

    /// Completes the send WQE `counter` and all before it. Returns 1, the number of events.
    #[inline(never)]
    fn complete(&mut self, user_index: u32, counter: u16) -> usize {
        let Some(state) = self.0.endpoint(user_index) else { return self.take_first(user_index) };
        state.complete(counter);
        1
    }

    /// Handles a completion with an unknown user index: it is stale, or the first one of an
    /// endpoint whose index libmlx5 assigned. Returns 1, the number of events.
    #[cold]
    #[inline(never)]
    fn take_first(&mut self, user_index: u32) -> usize {
        if user_index == tags::USER_INDEX {
            return self.take_tagged();
        }
        let Some(state) = self.0.learn(user_index) else { return 1 };
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let event = Completion::from(&unsafe { &*self.0.driver.completions.get() }.last_cqe());
        if matches!(event.kind, CompletionKind::Receive | CompletionKind::ReceiveInvalidate(_)) {
            let length = am_length(event.byte_count);
            state.receive(&mut self.0.running(), event.wqe_counter.into(), length);
        } else {
            state.complete(event.wqe_counter);
        }
        1
    }

    /// Handles a rare completion: an error, a message that invalidated a key, or one that no
    /// endpoint of this transport sends. Returns 1, the number of events.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self) -> usize {
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let event = Completion::from(&unsafe { &*self.0.driver.completions.get() }.last_cqe());
        let index = event.user_index;
        if index == tags::USER_INDEX {
            return self.take_tagged();
        }
        if let CompletionKind::ReceiveInvalidate(key) = event.kind {
            self.0.domain.revoked().note(key);
            if self.discards(event.wqe_counter) {
                return 1;
            }
            return self.deliver_last();
        }
        let is_send = matches!(event.kind, CompletionKind::Send | CompletionKind::SendError(_));
        let shared = &*self.0;
        if !is_send && let Some(receiver) = &shared.driver.receiver {
            receiver.discard(event.wqe_counter);
        }
        let Some(state) = self.0.endpoint(index).or_else(|| self.0.learn(index)) else { return 1 };
        match event.kind {
            CompletionKind::SendError(error) => state.fail(event.wqe_counter, error),
            CompletionKind::ReceiveError(error) => state.fail_receive(failure::error(error)),
            // This transport sends no immediate; still, the WQE of a receive ring is consumed.
            CompletionKind::ReceiveImmediate(_) | CompletionKind::WriteImmediate(_) => {
                state.receive(&mut self.0.running(), event.wqe_counter.into(), am_length(0));
            }
            // `Receive` and `Send` are not rare; the others, and those of later versions of the
            // driver, complete no WQE.
            _ => {}
        }
        1
    }
}

/// Returns the place of a message in the CQE `polled`.
///
/// # Safety
/// `polled` is the completion that was taken last from the queue of an interface. The message is
/// delivered before the next poll.
#[inline(always)]
unsafe fn in_cqe(polled: Polled<'_>) -> InCqe {
    // SAFETY: the CQE is in the ring of the queue, which the interface keeps alive. The device
    // overwrites it when it has completed as many more WQEs as the queue has entries. These are at
    // least the sends that can be outstanding and the WQEs of the shared receive queue (`open`),
    // one of which the list keeps back, so until the next poll there are fewer completions.
    unsafe { InCqe::new(polled.data()) }
}

impl Shared {
    /// Returns the endpoint of the completion that was taken last, found by its QPN. If libmlx5
    /// assigned the user index, this first completion of the endpoint reveals it.
    #[cold]
    #[inline(never)]
    fn learn(&self, user_index: u32) -> Option<&State> {
        // SAFETY: only `Progress` polls the queue, and its poll has ended. The reference ends with
        // this statement, which runs no user code.
        let qpn = Completion::from(&unsafe { &*self.driver.completions.get() }.last_cqe()).qpn;
        let endpoints = self.core.endpoints.borrow();
        let state = endpoints.iter().find(|state| {
            state.own.qpn == qpn && state.user_index.get().is_none_or(|index| index == user_index)
        })?;
        state.user_index.set(Some(user_index));
        let state = NonNull::from(&**state);
        self.user_indices.set(user_index, state);
        // SAFETY: the pointer is to an entry of `core.endpoints`. Entries are dropped by `bury` and
        // `close` only, which `Progress` calls with `&mut self` when no caller of this function is
        // running.
        Some(unsafe { state.as_ref() })
    }
}
