//! The state of the idle path: the fields that one poll of a port uses if there is no message, or
//! one short message in an SPSC ring.
#![allow(unsafe_code, reason = "the polled slot is referred to by a pointer")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use crate::atomic::Ordering;
use crate::line::{Half, Line, Lines};
use crate::reply::NextSlot;
use crate::spsc::{MESSAGE_WORDS, read_half, read_message};

/// Polls of one source before all sources are polled.
const SCAN_INTERVAL: u32 = 32;
/// The same if there is at most one SPSC ring, and the FIFO for senders without a ring.
const SCAN_INTERVAL_ONE_RING: u32 = 512;
/// The maximum number of polls between two reads of the clock.
const MAX_CLOCK_INTERVAL: u32 = 512;
/// Clock ticks between two checks of the sockets: about 0.1 ms.
const SOCKET_CHECK_TICKS: u64 = 1 << 18;
/// The same while connections are made: a few microseconds.
const CONNECTING_CHECK_TICKS: u64 = 1 << 13;
/// Clock ticks from an event of a socket in which connections are expected to be made: about 1 ms.
const CONNECTING_TICKS: u64 = 1 << 21;
/// One part in so many of the elapsed time may be spent on what senders ask for over their sockets.
const ASKED_SHARE: u64 = 40;
/// Elapsed clock ticks that can accumulate for it: about 0.7 s.
const ASKED_BURST: u64 = 1 << 31;
/// Wake-ups whose messages are waited for.
const MAX_WAKES: u32 = 16;
/// Polls between two reads of the clock, at first, in that time.
const CONNECTING_CLOCK_INTERVAL: u32 = 16;

/// The position of the next message of a source.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    /// The half line at which the message begins.
    pub(crate) half: NonNull<Half>,
    /// The low half of word 0 of a message that is there.
    pub(crate) filled: u32,
    /// Contiguous half lines from this one on that have the same value of `filled`, at least 1; odd
    /// if this is the second half of a line.
    pub(crate) remaining: u32,
}

/// The slot that is polled, and the countdowns to polling other sources and the sockets.
#[derive(Debug)]
pub(crate) struct PollState {
    half: Cell<NonNull<Half>>,
    filled: Cell<u32>,
    polls_until_scan: Cell<u32>,
    remaining: Cell<u32>,
    /// The value of `remaining` when the source last learned the position of the cursor.
    known_remaining: Cell<u32>,
    scan_interval: Cell<u32>,
    clock_interval: Cell<u32>,
    polls: Cell<u32>,
    clock_read_at: Cell<u64>,
    sockets_checked_at: Cell<u64>,
    /// The clock at the last event of a socket.
    event_at: Cell<u64>,
    /// The clock when the elapsed time will have made up for what senders asked for.
    rested_at: Cell<u64>,
    /// Wake-ups that this process asked for, whose messages are on sockets.
    wakes: Cell<u32>,
    /// All sources were polled since the wake flag was set, and no message was there.
    found_nothing: Cell<bool>,
    /// While new connections are not accepted: when they are again.
    paused_until: Cell<Option<Instant>>,
    next_slot: Arc<NextSlot>,
    /// Keeps the polled slots mapped.
    lines: RefCell<Lines>,
}

impl PollState {
    pub(crate) fn new() -> Self {
        let lines = Lines::private(1);
        Self {
            half: Cell::new(lines.half(0)),
            filled: Cell::new(1),
            polls_until_scan: Cell::new(1),
            remaining: Cell::new(1),
            known_remaining: Cell::new(1),
            scan_interval: Cell::new(SCAN_INTERVAL_ONE_RING),
            clock_interval: Cell::new(1),
            polls: Cell::new(0),
            clock_read_at: Cell::new(0),
            sockets_checked_at: Cell::new(0),
            event_at: Cell::new(0),
            rested_at: Cell::new(0),
            wakes: Cell::new(0),
            found_nothing: Cell::new(false),
            paused_until: Cell::new(None),
            next_slot: Arc::default(),
            lines: RefCell::new(lines),
        }
    }

    /// Polls `cursor`, which points into `lines`, from now on.
    pub(crate) fn point(&self, cursor: Cursor, lines: &Lines) {
        self.resume(cursor);
        let mut kept = self.lines.borrow_mut();
        // The lines are usually the same. Not cloning them avoids writes to a reference count that
        // other cores may use.
        if !kept.same_owner(lines) {
            *kept = lines.clone();
        }
    }

    /// Like [`Self::point`], for a cursor into the same lines.
    #[inline(always)]
    pub(crate) fn resume(&self, cursor: Cursor) {
        self.half.set(cursor.half);
        self.filled.set(cursor.filled);
        self.remaining.set(cursor.remaining);
        self.known_remaining.set(cursor.remaining);
    }

    /// Returns how many half lines the cursor has passed since the last call.
    #[inline(always)]
    pub(crate) fn passed(&self) -> u32 {
        self.known_remaining.replace(self.remaining.get()) - self.remaining.get()
    }

    /// Counts a poll. Returns true if all sources must be polled now.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        let remaining = self.polls_until_scan.get().wrapping_sub(1);
        self.polls_until_scan.set(remaining);
        remaining == 0
    }

    /// The half line that is polled. The reference must be dropped before the next
    /// [`Self::point`].
    #[inline(always)]
    fn half(&self) -> &Half {
        // SAFETY: `half` points to memory that `lines` keeps mapped: `point` and `resume` set it,
        // and `advance` moves it past the end only with the last half line of a run, after which
        // its caller calls `point` or `resume` before the next poll. The memory is accessed through
        // atomics only.
        unsafe { self.half.get().as_ref() }
    }

    /// As [`Self::half`], the whole line; `None` at the second half of a line.
    fn line(&self) -> Option<&Line> {
        if !self.remaining.get().is_multiple_of(2) {
            return None;
        }
        // SAFETY: an even number of half lines remain in the run, which ends with a line, so `half`
        // is the first half of a line, and aligned like one. The rest is as in `half`.
        Some(unsafe { self.half.get().cast().as_ref() })
    }

    /// Returns the upper half of word 0, which describes the message, or `None` if there is no
    /// message.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u32> {
        let word = self.half().word(0).load(Ordering::Acquire);
        (word as u32 == self.filled.get()).then_some((word >> 32) as u32)
    }

    /// The slot that the connections of this port write next.
    #[inline(always)]
    pub(crate) fn next_slot(&self) -> &Arc<NextSlot> {
        &self.next_slot
    }

    /// The header of the message.
    #[inline(always)]
    pub(crate) fn header(&self) -> u64 {
        self.half().load(1)
    }

    /// Copies a message of half a line to `into` and returns its length in bytes.
    #[inline(always)]
    pub(crate) fn read(&self, length: usize, into: &mut [u64; MESSAGE_WORDS]) -> usize {
        read_half(self.half(), length, into)
    }

    /// Copies a message of a whole line to `into`. Returns its length in bytes; `None` at the
    /// second half of a line, where no such message begins.
    pub(crate) fn read_long(
        &self,
        length: usize,
        into: &mut [u64; MESSAGE_WORDS],
    ) -> Option<usize> {
        Some(read_message(self.line()?, length, into))
    }

    /// Moves to the next half line. Returns true if the run ends here; the caller must then call
    /// [`Self::point`] or [`Self::resume`].
    #[inline(always)]
    pub(crate) fn advance(&self) -> bool {
        self.step();
        self.ends_run()
    }

    /// Moves to the next half line, as a part of [`Self::advance`]: the caller calls
    /// [`Self::ends_run`] once as well, before or after.
    #[inline(always)]
    pub(crate) fn step(&self) {
        // SAFETY: the half line belongs to a run of contiguous ones in `lines`, so the address
        // behind it is inside the same memory or at its end.
        self.half.set(unsafe { self.half.get().add(1) });
    }

    /// Counts a half line, as a part of [`Self::advance`]. Returns true if the run ends with it.
    #[inline(always)]
    pub(crate) fn ends_run(&self) -> bool {
        let remaining = self.remaining.get().wrapping_sub(1);
        self.remaining.set(remaining);
        remaining == 0
    }

    /// Restarts the countdown to polling all sources.
    pub(crate) fn restart(&self) {
        self.polls_until_scan.set(self.scan_interval.get().min(self.clock_interval.get()));
    }

    /// Sets the number of SPSC rings, which determines how often all sources are polled.
    pub(crate) fn set_rings(&self, rings: usize) {
        self.scan_interval.set(if rings > 1 { SCAN_INTERVAL } else { SCAN_INTERVAL_ONE_RING });
    }

    pub(crate) fn call_attention(&self) {
        self.polls_until_scan.set(1);
    }

    /// Makes the next poll poll all sources and check the sockets.
    pub(crate) fn request_socket_check(&self) {
        self.polls_until_scan.set(1);
        self.polls.set(MAX_CLOCK_INTERVAL);
        self.sockets_checked_at.set(ticks().wrapping_sub(2 * SOCKET_CHECK_TICKS));
    }

    /// Makes the sockets be checked often for a while, since another event is likely to follow.
    pub(crate) fn expect_events(&self) {
        self.event_at.set(ticks());
        self.clock_interval.set(CONNECTING_CLOCK_INTERVAL);
        let polls = self.polls_until_scan.get().min(CONNECTING_CLOCK_INTERVAL);
        self.polls_until_scan.set(polls);
    }

    /// Does what a sender asks for, as often as it likes. If all of that takes too much time, the
    /// sockets are not checked for a while.
    pub(crate) fn ask<T>(&self, run: impl FnOnce() -> T) -> T {
        let begun = ticks();
        let result = run();
        let now = ticks();
        let spent = now.saturating_sub(begun).saturating_mul(ASKED_SHARE);
        let from = self.rested_at.get().max(now.saturating_sub(ASKED_BURST));
        // An interruption of the thread is not the sender's.
        let until = from.saturating_add(spent).min(now.saturating_add(ASKED_BURST / 8));
        self.rested_at.set(until);
        result
    }

    /// The sockets are not checked now.
    pub(crate) fn is_resting(&self) -> bool {
        ticks() < self.rested_at.get()
    }

    /// Records that a sender has cleared the wake flag, and sends a message. Until it is read, the
    /// sockets are checked although senders ask for too much: otherwise it would stay, and the next
    /// sleep would end at once. A sender can have no more messages read by this than it has cleared
    /// flags.
    pub(crate) fn expect_wake(&self) {
        self.wakes.set((self.wakes.get() + 1).min(MAX_WAKES));
    }

    /// Records that messages were read.
    pub(crate) fn settle_wakes(&self, count: u32) {
        self.wakes.set(self.wakes.get().saturating_sub(count));
    }

    pub(crate) fn found_nothing(&self) -> bool {
        self.found_nothing.get()
    }

    pub(crate) fn set_found_nothing(&self, found_nothing: bool) {
        self.found_nothing.set(found_nothing);
    }

    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until.get()
    }

    pub(crate) fn set_paused_until(&self, paused_until: Option<Instant>) {
        self.paused_until.set(paused_until);
    }

    /// Returns true if the sockets must be checked now. Reads the clock after a number of polls
    /// that it adapts to the rate of polls, so that a slowly polling process still checks in time.
    pub(crate) fn is_socket_check_due(&self) -> bool {
        let clock_interval = self.clock_interval.get();
        let polls = self.polls.get() + self.scan_interval.get();
        self.polls.set(polls);
        if polls < clock_interval {
            return false;
        }
        let now = ticks();
        let elapsed = now.wrapping_sub(self.clock_read_at.replace(now));
        self.polls.set(0);
        let connecting = now.wrapping_sub(self.event_at.get()) < CONNECTING_TICKS;
        let check_ticks = if connecting { CONNECTING_CHECK_TICKS } else { SOCKET_CHECK_TICKS };
        self.clock_interval.set(if elapsed > check_ticks {
            (u64::from(clock_interval) * check_ticks / elapsed).max(1) as u32
        } else {
            (2 * clock_interval).min(MAX_CLOCK_INTERVAL)
        });
        let due = now.wrapping_sub(self.sockets_checked_at.get()) > check_ticks
            && (now >= self.rested_at.get() || self.wakes.get() > 0);
        if due {
            self.sockets_checked_at.set(now);
        }
        due
    }
}

/// Reads a cheap clock with ticks of at most a few nanoseconds.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and Linux permits it in user mode by default. It
    // accesses no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
