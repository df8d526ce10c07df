//! What a look at a port touches when there is nothing to be done, or one short message to be taken.
#![allow(unsafe_code, reason = "the slot that is looked at lies in memory that the port keeps mapped")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::time::Instant;

use crate::atomic::Ordering;
use crate::lane::{MESSAGE_WORDS, read_message};
use crate::line::{Line, Lines};

/// Looks at one place before all are looked at.
const PERIOD: u32 = 32;
/// As many where there is at most one lane, and the FIFO for who has none.
const PERIOD_ALONE: u32 = 512;
/// The most looks at one place before one at the clock.
const GLANCE: u32 = 512;
/// Ticks of the clock between two looks at the sockets: about a tenth of a millisecond.
const LOOK: u64 = 1 << 18;

/// Where the next message of a place will be.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    pub(crate) line: &'a Line,
    /// The low half of its first word, once it is filled.
    pub(crate) filled: u32,
    /// Slots from this one on that lie in a row and are filled by the same number, at least 1.
    pub(crate) left: u32,
}

/// The place where the next message is expected, and when to look elsewhere.
#[derive(Debug)]
pub(crate) struct Hot {
    line: Cell<NonNull<Line>>,
    filled: Cell<u32>,
    countdown: Cell<u32>,
    left: Cell<u32>,
    /// What `left` was when its place was last told how far this is.
    known: Cell<u32>,
    period: Cell<u32>,
    glance: Cell<u32>,
    looks: Cell<u32>,
    glanced: Cell<u64>,
    looked: Cell<u64>,
    /// Since the bell was armed, every place was looked at, and nothing was there.
    quiet: Cell<bool>,
    /// When the door, which is closed, opens.
    door: Cell<Option<Instant>>,
    /// Keeps the slots mapped.
    lines: RefCell<Lines>,
}

impl Hot {
    pub(crate) fn new() -> Self {
        let lines = Lines::private(1);
        Self {
            line: Cell::new(NonNull::from(lines.line(0))),
            filled: Cell::new(1),
            countdown: Cell::new(1),
            left: Cell::new(1),
            known: Cell::new(1),
            period: Cell::new(PERIOD_ALONE),
            glance: Cell::new(1),
            looks: Cell::new(0),
            glanced: Cell::new(0),
            looked: Cell::new(0),
            quiet: Cell::new(false),
            door: Cell::new(None),
            lines: RefCell::new(lines),
        }
    }

    /// Looks at `cursor`, whose slots are in `lines`, from now on.
    pub(crate) fn point(&self, cursor: Cursor<'_>, lines: &Lines) {
        self.go_on(cursor);
        let mut kept = self.lines.borrow_mut();
        // As a rule they are the same, and a count that other cores may use is left alone.
        if !kept.is(lines) {
            *kept = lines.clone();
        }
    }

    /// As [`Self::point`], for other slots of the same lines.
    #[inline(always)]
    pub(crate) fn go_on(&self, cursor: Cursor<'_>) {
        self.line.set(NonNull::from(cursor.line));
        self.filled.set(cursor.filled);
        self.left.set(cursor.left);
        self.known.set(cursor.left);
    }

    /// Slots that were passed since this was last asked.
    #[inline(always)]
    pub(crate) fn passed(&self) -> u32 {
        self.known.replace(self.left.get()) - self.left.get()
    }

    /// Counts a look. True if it is time to look at every place.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        let left = self.countdown.get().wrapping_sub(1);
        self.countdown.set(left);
        left == 0
    }

    /// The slot that is looked at. To be dropped before the next [`Self::point`].
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: of the slots that `lines` keeps mapped: `advance` leaves them only with the last one of its row, and who calls it
        // then points elsewhere before the next look.
        unsafe { self.line.get().as_ref() }
    }

    /// What the next message is, in the upper half of its first word; `None` if there is none.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u32> {
        let word = self.line().word(0).load(Ordering::Acquire);
        (word as u32 == self.filled.get()).then_some((word >> 32) as u32)
    }

    /// Copies the message; answers its length in the slot.
    #[inline(always)]
    pub(crate) fn read(&self, length: usize, into: &mut [u64; MESSAGE_WORDS]) -> usize {
        read_message(self.line(), length, into)
    }

    /// Goes to the next slot. True if it was the last one of its row: [`Self::point`] must follow.
    #[inline(always)]
    pub(crate) fn advance(&self) -> bool {
        // SAFETY: inside the row, or at its end.
        self.line.set(unsafe { self.line.get().add(1) });
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left == 0
    }

    /// Begins the countdown anew.
    pub(crate) fn restart(&self) {
        self.countdown.set(self.period.get().min(self.glance.get()));
    }

    /// How many lanes there are.
    pub(crate) fn set_lanes(&self, lanes: usize) {
        self.period.set(if lanes > 1 { PERIOD } else { PERIOD_ALONE });
    }

    pub(crate) fn call_attention(&self) {
        self.countdown.set(1);
    }

    /// The next look is at every place, the sockets among them.
    pub(crate) fn call_for_sockets(&self) {
        self.countdown.set(1);
        self.looks.set(GLANCE);
        self.looked.set(ticks().wrapping_sub(2 * LOOK));
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.get()
    }

    pub(crate) fn set_quiet(&self, quiet: bool) {
        self.quiet.set(quiet);
    }

    pub(crate) fn door(&self) -> Option<Instant> {
        self.door.get()
    }

    pub(crate) fn set_door(&self, opens: Option<Instant>) {
        self.door.set(opens);
    }

    /// It is time to look at the sockets. The fewer looks there are in a second, the more of them read the clock.
    pub(crate) fn is_look_due(&self) -> bool {
        let glance = self.glance.get();
        let looks = self.looks.get() + self.period.get();
        self.looks.set(looks);
        if looks < glance {
            return false;
        }
        let now = ticks();
        let since = now.wrapping_sub(self.glanced.replace(now));
        self.looks.set(0);
        self.glance.set(if since > LOOK {
            (u64::from(glance) * LOOK / since).max(1) as u32
        } else {
            (2 * glance).min(GLANCE)
        });
        let due = now.wrapping_sub(self.looked.get()) > LOOK;
        if due {
            self.looked.set(now);
        }
        due
    }
}

/// A clock that is cheap to read, of some nanoseconds or less a tick.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
