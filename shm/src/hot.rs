//! What a look at a port touches when there is nothing to be done.
#![allow(unsafe_code, reason = "the word that is looked at lies in memory that the port keeps mapped")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use crate::atomic::{AtomicU64, Ordering};
use crate::line::{Line, Lines};

/// Looks at one place before all are looked at.
const PERIOD: u32 = 16;
/// Looks at all places before one at the clock.
const GLANCE: u32 = 8;
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
    scans: Cell<u32>,
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
            scans: Cell::new(0),
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

    /// Counts a turn. True if the countdown ended; it begins anew.
    #[inline(always)]
    pub(crate) fn is_scan_due(&self) -> bool {
        let left = self.countdown.get().saturating_sub(1);
        self.countdown.set(if left == 0 { PERIOD } else { left });
        left == 0
    }

    pub(crate) fn call_attention(&self) {
        self.countdown.set(1);
    }

    /// It is time to look at the sockets.
    pub(crate) fn is_look_due(&self) -> bool {
        let scans = self.scans.get().wrapping_add(1);
        self.scans.set(scans);
        if !scans.is_multiple_of(GLANCE) {
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
