//! Detects doorbells in UAR pages, and compares what BlueFlame pushed with the ring.
//!
//! A driver stores, in this order: the WQE, the doorbell record, the register. The register gets
//! the WQE's first 8 bytes (a plain doorbell) or all of it in 64-byte bursts (BlueFlame), the first
//! 8 bytes first. The engine takes those 8 bytes by an atomic exchange with zero, which no doorbell
//! is. Therefore
//! - no doorbell is lost: it is stored after the doorbell record, and the engine reads the record
//!   after it took the doorbell. A second doorbell that overwrites the first is harmless, since the
//!   record counts both;
//! - equal doorbells are not confused: each replaces zero. That matters when a queue pair is
//!   reset, or when a new one has an old number.
//!
//! The 8 bytes name their queue pair, whose doorbell record is read at once. The records of the
//! page's other queue pairs are read a slice per pass, as long as another doorbell may have
//! overwritten theirs, so the cost of a page does not depend on its number of queue pairs.
//!
//! With [`exact_doorbells`](crate::Requirements::exact_doorbells), the doorbell of a pass that
//! found only one makes the engine read the record of its queue pair and of no other. A driver that
//! changes the half of a register with each doorbell cannot have overwritten another: it would have
//! rung the other half in between, and both would be found.
//!
//! The rest of a register is checked only when its correct contents are certain, since the driver's
//! thread may be preempted at any store:
//! - exactly one WQE was posted through the page since the last pass, so nothing else was pushed
//!   in between; the previous contents are known except for stores of the burst before, which are
//!   complete by now;
//! - the burst is complete: a later doorbell record of the same queue pair was seen, or a command
//!   for it, both of which the driver issues after the burst; and no next burst has begun, which
//!   would show in the first 8 bytes. In Stepped mode the driver stands still, so the burst is
//!   complete at once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use barewire_layouts::command::qp::QpState;
use barewire_layouts::doorbell::{BLUEFLAME_HALF, BLUEFLAME_OFFSET, UAR_PAGE};
use barewire_layouts::wqe::{ControlSegment, DS, WQEBB};
use zerocopy::IntoBytes;

use super::report::Finding;
use super::{Context, Reports, fetch};
use crate::counters::Counters;
use crate::engine::{Qp, Report};
use crate::object::UarPage;
use crate::table::Table;

/// Halves of BlueFlame registers in a page.
const HALVES: usize = (UAR_PAGE - BLUEFLAME_OFFSET) / BLUEFLAME_HALF;
/// BlueFlame registers in a page, of two halves each.
const REGISTERS: usize = HALVES / 2;
/// 8-byte words of a half.
const WORDS: usize = BLUEFLAME_HALF / 8;
/// Largest distance of a doorbell behind the producer counter: no ring is larger.
const FARTHEST: u16 = 0x8000;
/// Doorbell records that a pass reads beside the named ones: all of them, on a page with no more
/// queue pairs than this.
const SLICE: usize = 64;

type Words = [u64; WORDS];

/// Possible contents of a half: each word is one of the two.
#[derive(Clone, Debug)]
struct Content {
    /// Words as last read.
    seen: Words,
    /// Words that the burst of the last doorbell stores.
    pushed: Words,
}

/// A doorbell whose burst may be incomplete.
#[derive(Debug)]
struct Pending {
    qpn: u32,
    index: u16,
    /// Producer counter after the WQE; any other value means that the driver has moved on.
    end: u16,
    /// Words of the WQE.
    length: usize,
    before: Content,
    wqe: Words,
}

#[derive(Debug)]
struct Half {
    content: Option<Content>,
    pending: Option<Box<Pending>>,
}

/// A queue pair that uses a page.
#[derive(Debug)]
struct Attached {
    qpn: u32,
    /// Its send counter at the last pass, in any state.
    posted: u16,
}

#[derive(Debug)]
struct Watch {
    index: u32,
    page: Arc<UarPage>,
    qps: Vec<Attached>,
    /// Index in `qps` by queue pair number.
    places: HashMap<u32, usize>,
    halves: [Half; HALVES],
    /// The half of each register that was rung last, if it is known.
    last: [Option<usize>; REGISTERS],
    /// Number of doorbell records still to be read without a doorbell, and the index in `qps` to
    /// continue at.
    unread: usize,
    next: usize,
}

/// Every UAR page of a device.
#[derive(Debug)]
pub(super) struct Watches {
    pages: Vec<Watch>,
    /// Counts changes of `pages`.
    version: u64,
    stepped: bool,
}

fn offset(half: usize) -> usize {
    BLUEFLAME_OFFSET + half * BLUEFLAME_HALF
}

/// Returns the big-endian number in the 8 bytes.
fn readable(word: u64) -> u64 {
    u64::from_be_bytes(word.to_ne_bytes())
}

/// Returns the control segment whose first half was written to the register.
fn control(rung: u64) -> ControlSegment {
    zerocopy::transmute!([rung, 0])
}

impl Watches {
    pub(super) fn new(stepped: bool) -> Self {
        Self { pages: Vec::new(), version: 0, stepped }
    }

    pub(super) fn add(&mut self, index: u32, page: Arc<UarPage>) {
        self.version += 1;
        // A new page is zeroed.
        let zero = Content { seen: [0; WORDS], pushed: [0; WORDS] };
        let halves = std::array::from_fn(|_| Half { content: Some(zero.clone()), pending: None });
        let (qps, places) = (Vec::new(), HashMap::new());
        self.pages.push(Watch {
            index,
            page,
            qps,
            places,
            halves,
            last: [None; REGISTERS],
            unread: 0,
            next: 0,
        });
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.version += 1;
        self.pages.retain(|watch| watch.index != index);
    }

    fn page(&mut self, index: u32) -> Option<&mut Watch> {
        self.pages.iter_mut().find(|watch| watch.index == index)
    }

    /// Adds queue pair `qpn` to page `index`.
    pub(super) fn attach(&mut self, index: u32, qpn: u32) {
        if let Some(watch) = self.page(index)
            && !watch.rings_here(qpn)
        {
            watch.places.insert(qpn, watch.qps.len());
            watch.qps.push(Attached { qpn, posted: 0 });
        }
    }

    /// Removes queue pair `qpn`. Its reset or destruction by a command means that its driver's
    /// stores are complete.
    pub(super) fn detach(&mut self, index: u32, qpn: u32, context: &mut Context<'_>) {
        let Some(watch) = self.page(index) else { return };
        for half in 0..HALVES {
            watch.judge(half, context.reports, context.counters, |pending| pending.qpn == qpn);
            // Its last doorbell must not be taken for one of a later queue pair. If this clears
            // another queue pair's doorbell, the scan finds the doorbell record, which was stored
            // before.
            let rung = watch.page.swap(offset(half), 0);
            if rung != 0 {
                watch.unread = watch.qps.len();
                watch.halves[half] = Half { content: None, pending: None };
                watch.last[half / 2] = None;
            }
        }
        if let Some(place) = watch.places.remove(&qpn) {
            watch.qps.swap_remove(place);
            if let Some(moved) = watch.qps.get(place) {
                watch.places.insert(moved.qpn, place);
                // The moved entry may lie before the index at which reading continues.
                watch.unread = watch.qps.len();
            }
        }
    }

    /// Schedules all doorbell records of page `index` for reading.
    pub(super) fn scan(&mut self, index: u32) {
        if let Some(watch) = self.page(index) {
            watch.unread = watch.qps.len();
        }
    }

    /// Takes all doorbells and passes queue pairs that posted to `ready`. Returns whether there
    /// were any.
    pub(super) fn look(
        &mut self,
        context: &mut Context<'_>,
        ready: &mut dyn FnMut(&mut Qp),
    ) -> bool {
        let stepped = self.stepped;
        let mut any = false;
        for watch in &mut self.pages {
            any |= watch.look(context, stepped, ready);
        }
        any
    }
}

impl Watches {
    /// Returns whether every doorbell has been served, as far as loads show.
    pub(super) fn is_quiet(&self) -> bool {
        self.pages.iter().all(|watch| {
            watch.unread == 0 && (0..HALVES).all(|half| watch.page.load(offset(half)) == 0)
        })
    }

    /// Returns all pages, and a version that changes with them.
    pub(super) fn pages(&self) -> (u64, impl Iterator<Item = &Arc<UarPage>>) {
        (self.version, self.pages.iter().map(|watch| &watch.page))
    }
}

/// The only WQE that was posted through a page between two passes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Single {
    qpn: u32,
    start: u16,
    end: u16,
}

impl Watch {
    fn look(
        &mut self,
        context: &mut Context<'_>,
        stepped: bool,
        ready: &mut dyn FnMut(&mut Qp),
    ) -> bool {
        for half in 0..HALVES {
            let qps = &context.objects.qps;
            self.judge(half, context.reports, context.counters, |pending| moved_on(qps, pending));
        }
        // Load first: an exchange would take the cache line from the driver on every pass.
        let page = &self.page;
        let first = (0..HALVES).find(|&half| page.load(offset(half)) != 0);
        if first.is_none() && self.unread == 0 {
            return false;
        }
        let mut rung = [0; HALVES];
        let mut words = [[0; WORDS]; HALVES];
        for half in first.unwrap_or(HALVES)..HALVES {
            rung[half] = self.page.swap(offset(half), 0);
            if rung[half] != 0 {
                // Read before the doorbell records: a driver that has begun a later burst has
                // stored a later record.
                words[half] = self.words(half);
            }
        }
        // Loads of the records come after those of the registers.
        fence(Ordering::SeqCst);
        let count = rung.iter().filter(|&&rung| rung != 0).count();
        for rung in rung.iter().filter(|&&rung| rung != 0) {
            if let Some(qp) = context.objects.qps.get_mut(control(*rung).qpn()) {
                qp.doorbell.rung();
            }
        }
        let exact = context.objects.requirements.exact_doorbells;
        let named = if exact { self.alternated(&rung, &words, context) } else { None };
        if count > 0 && named.is_none() {
            self.unread = self.qps.len();
        }
        let single = if let Some(qpn) = named {
            let place = self.places.get(&qpn).copied();
            place.and_then(|place| self.post(place..place + 1, context, ready))
        } else if self.qps.len() <= SLICE {
            self.unread = 0;
            self.post(0..self.qps.len(), context, ready).filter(|_| count == 1)
        } else {
            for rung in rung.iter().filter(|&&rung| rung != 0) {
                if let Some(&place) = self.places.get(&control(*rung).qpn()) {
                    self.post(place..place + 1, context, ready);
                }
            }
            let start = if self.next < self.qps.len() { self.next } else { 0 };
            let end = self.qps.len().min(start + SLICE.min(self.unread));
            self.post(start..end, context, ready);
            self.unread -= end - start;
            self.next = end;
            // Whether more was posted is unknown.
            None
        };
        for half in (0..HALVES).filter(|&half| rung[half] != 0) {
            context.counters.doorbells += 1;
            self.check(context, half, rung[half], &words[half], single);
            if stepped {
                self.judge(half, context.reports, context.counters, |_| true);
            }
        }
        true
    }

    /// Returns the queue pair of the pass's only doorbell, if it came through another half of its
    /// register than the one before. Reports one through the same half that is a burst.
    fn alternated(
        &mut self,
        rung: &[u64; HALVES],
        words: &[Words; HALVES],
        context: &mut Context<'_>,
    ) -> Option<u32> {
        let half = rung.iter().position(|&rung| rung != 0)?;
        let others = rung[half + 1..].iter().any(|&rung| rung != 0);
        // An earlier half may have been rung after it was looked at.
        if others || (0..half).any(|half| self.page.load(offset(half)) != 0) {
            self.last = [None; REGISTERS];
            return None;
        }
        let before = self.last[half / 2].replace(half);
        let control = control(rung[half]);
        let (qpn, index) = (control.qpn(), control.index());
        if before != Some(half) {
            return Some(qpn).filter(|_| before.is_some() && self.unread == 0);
        }
        let length = (control.ds() as usize * DS).min(BLUEFLAME_HALF) / 8;
        let mut wqe: Words = [0; WORDS];
        let qp = context.objects.qps.get(qpn).filter(|_| self.rings_here(qpn))?;
        qp.sq.read(index, 0, &mut wqe.as_mut_bytes()[..length * 8]);
        if length > 1 && words[half][1..length] == wqe[1..length] {
            context.counters.findings += 1;
            let finding = Finding::DoorbellHalf { half: half % 2 };
            context.reports.add(Report { qpn, index, finding });
        }
        None
    }

    fn rings_here(&self, qpn: u32) -> bool {
        self.places.contains_key(&qpn)
    }

    /// Reads the doorbell records of the queue pairs at `places`. Returns the WQE if only one was
    /// posted in all. Queue pairs that cannot send count too, since their drivers may have pushed
    /// something.
    fn post(
        &mut self,
        places: Range<usize>,
        context: &mut Context<'_>,
        ready: &mut dyn FnMut(&mut Qp),
    ) -> Option<Single> {
        let mut posted = None;
        let mut several = false;
        for attached in &mut self.qps[places] {
            let qpn = attached.qpn;
            let Some(qp) = context.objects.qps.get_mut(qpn) else { continue };
            let end = qp.doorbell.follow();
            let start = std::mem::replace(&mut attached.posted, end);
            if start != end {
                several |= posted.replace(Single { qpn, start, end }).is_some();
            }
            if qp.state == QpState::Rts && qp.engine.requester.posted() != end {
                qp.engine.requester.post(end);
                ready(qp);
            }
        }
        posted.filter(|_| !several)
    }

    fn words(&self, half: usize) -> Words {
        std::array::from_fn(|word| self.page.load(offset(half) + word * 8))
    }

    /// Checks a doorbell taken from `half`, whose other words were `words` at that time.
    fn check(
        &mut self,
        context: &mut Context<'_>,
        half: usize,
        rung: u64,
        words: &Words,
        single: Option<Single>,
    ) {
        let before = self.halves[half].content.take();
        self.halves[half].pending = None;
        let control = control(rung);
        let (qpn, index) = (control.qpn(), control.index());
        let mut report = |finding| {
            context.counters.findings += 1;
            context.reports.add(Report { qpn, index, finding });
        };
        let Some(qp) = context.objects.qps.get(qpn).filter(|_| self.rings_here(qpn)) else {
            return report(Finding::DoorbellQueuePair { got: qpn, uar: self.index });
        };
        if qp.state != QpState::Rts {
            return;
        }
        let requester = &qp.engine.requester;
        let (oldest, posted) = (requester.oldest(), requester.posted());
        let behind = posted.wrapping_sub(index);
        if behind == 0 || behind > FARTHEST {
            return report(Finding::DoorbellAhead { index, wanted: posted });
        }
        // A completed WQE may have been overwritten in the ring.
        if behind > posted.wrapping_sub(oldest) {
            return;
        }
        let mut wqe: Words = [0; WORDS];
        let blocks = fetch::blocks(control.ds());
        let pushed = (usize::from(blocks) * WQEBB).min(BLUEFLAME_HALF);
        qp.sq.read(index, 0, &mut wqe.as_mut_bytes()[..pushed]);
        if blocks > 0 && wqe[0] != rung {
            return report(Finding::Doorbell { got: readable(rung), wanted: readable(wqe[0]) });
        }
        let content = Content {
            seen: *words,
            pushed: std::array::from_fn(
                |word| if word * 8 < pushed { wqe[word] } else { words[word] },
            ),
        };
        let end = index.wrapping_add(blocks);
        if let Some(before) = before.filter(|_| single == Some(Single { qpn, start: index, end })) {
            let length = (control.ds() as usize * DS).min(BLUEFLAME_HALF) / 8;
            self.halves[half].pending =
                Some(Box::new(Pending { qpn, index, end, length, before, wqe }));
        }
        self.halves[half].content = Some(content);
    }

    /// Checks the register of `half` if its burst is pending and `over` confirms that it is
    /// complete.
    fn judge(
        &mut self,
        half: usize,
        reports: &mut Reports,
        counters: &mut Counters,
        over: impl FnOnce(&Pending) -> bool,
    ) {
        if !self.halves[half].pending.as_deref().is_some_and(over) {
            return;
        }
        let Some(pending) = self.halves[half].pending.take() else { return };
        let words = self.words(half);
        // Loads are ordered: if the first word is still zero after all others were read, no next
        // burst had begun.
        fence(Ordering::SeqCst);
        if self.page.load(offset(half)) != 0 {
            return;
        }
        let Pending { qpn, index, length, before, wqe, .. } = *pending;
        let plain = (1..length)
            .all(|word| words[word] == before.seen[word] || words[word] == before.pushed[word]);
        let wrong = (1..length).find(|&word| words[word] != wqe[word]);
        if let Some(word) = wrong.filter(|_| !plain) {
            let finding = Finding::BlueFlame {
                offset: word * 8,
                got: readable(words[word]),
                wanted: readable(wqe[word]),
            };
            counters.findings += 1;
            reports.add(Report { qpn, index, finding });
        }
        self.halves[half].content = Some(Content { seen: words, pushed: words });
    }
}

/// Returns whether the driver has posted to the queue pair since; then the burst of the earlier WQE
/// is complete.
///
/// The first word of a burst is visible before the others only where stores stay in order;
/// elsewhere nothing is reported.
fn moved_on(qps: &Table<Qp>, pending: &Pending) -> bool {
    cfg!(target_arch = "x86_64")
        && qps.get(pending.qpn).is_some_and(|qp| qp.doorbell.send() != pending.end)
}
