//! What a look at a port touches when there is nothing to be done.
#![allow(unsafe_code, reason = "the word that is looked at lies in memory that the port keeps mapped")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::line::{Line, Lines};

/// Looks at one place before all are looked at.
const PERIOD: u32 = 32;
/// As many where there is no other place.
const PERIOD_ALONE: u32 = 256;
/// Looks at one place before one at the clock.
const GLANCE: u32 = 256;
/// Ticks of the clock between two looks at the sockets: about a tenth of a millisecond.
const LOOK: u64 = 1 << 18;

/// The place where the next message is expected, and when to look elsewhere.
#[derive(Debug)]
pub(crate) struct Hot {
    /// First word of a slot.
    word: Cell<NonNull<AtomicU64>>,
    /// Its low half, once it is filled.
    filled: Cell<u32>,
    countdown: Cell<u32>,
    period: Cell<u32>,
    looks: Cell<u32>,
    looked: Cell<u64>,
    /// Keeps the word mapped.
    lines: RefCell<Lines>,
}

impl Hot {
    pub(crate) fn new() -> Self {
        let lines = Lines::private(1);
        let word = NonNull::from(lines.line(0).word(0));
        Self {
            word: Cell::new(word),
            filled: Cell::new(1),
            countdown: Cell::new(1),
            period: Cell::new(PERIOD_ALONE),
            looks: Cell::new(0),
            looked: Cell::new(0),
            lines: RefCell::new(lines),
        }
    }

    /// Looks at `next`, which is in `lines`, from now on.
    pub(crate) fn point(&self, (line, filled): (&Line, u32), lines: &Lines) {
        self.advance((line, filled));
        let mut kept = self.lines.borrow_mut();
        // As a rule they are the same, and a count that other cores may use is left alone.
        if !kept.is(lines) {
            *kept = lines.clone();
        }
    }

    /// Looks at another slot of the same lines.
    #[inline(always)]
    pub(crate) fn advance(&self, (line, filled): (&Line, u32)) {
        self.word.set(NonNull::from(line.word(0)));
        self.filled.set(filled);
    }

    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        let left = self.countdown.get().wrapping_sub(1);
        self.countdown.set(left);
        // SAFETY: `lines` keeps the word mapped.
        left != 0 && unsafe { self.word.get().as_ref() }.load(Ordering::Acquire) as u32 != self.filled.get()
    }

    /// Counts a turn that no look preceded.
    pub(crate) fn count(&self) {
        self.countdown.set(self.countdown.get().saturating_sub(1));
    }

    /// True if the countdown ended; it begins anew.
    #[inline(always)]
    pub(crate) fn is_scan_due(&self) -> bool {
        let due = self.countdown.get() == 0;
        if due {
            self.countdown.set(self.period.get());
        }
        due
    }

    /// There is no other place than the one that is looked at.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.period.set(if alone { PERIOD_ALONE } else { PERIOD });
    }

    pub(crate) fn call_attention(&self) {
        self.countdown.set(1);
    }

    /// It is time to look at the sockets.
    pub(crate) fn is_look_due(&self) -> bool {
        let looks = self.looks.get() + self.period.get();
        self.looks.set(looks % GLANCE);
        if looks < GLANCE {
            return false;
        }
        let now = ticks();
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
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
