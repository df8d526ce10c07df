//! Notices doorbells in UAR pages, and compares what BlueFlame pushed with the ring.
//!
//! A driver stores, in this order: the WQE, the doorbell record, the register. The register gets the WQE's first 8 bytes (a plain
//! doorbell) or all of it in 64-byte bursts (BlueFlame), the first 8 bytes first. The engine takes those 8 bytes out by an atomic exchange
//! with zero, which no doorbell is. So
//! - a doorbell is never lost: it is stored after the doorbell record, and whoever takes it out reads the doorbell record later. A
//!   second one that overwrites the first before it was seen does no harm, for the record counts both;
//! - equal doorbells are not confused: each finds zero. That matters when a queue pair is reset, or made anew with an old number.
//!
//! The 8 bytes name their queue pair: its doorbell record is read at once. Those of the others on the page are read a slice per pass, for
//! as long as a doorbell may have been overwritten by another's: a page costs the same however many queue pairs ring through it.
//!
//! The rest of a register is judged only when it is certain what must lie there, since the driver's thread may be preempted at any store:
//! - exactly one WQE was posted through the page since the last look, so nothing else was pushed in between; what was there before
//!   is known up to stores of the burst before, which by now are done;
//! - the burst is over: a later doorbell record of the same queue pair was seen, or a command for it, both of which the driver stores after
//!   the burst; and no next one has begun, which would show in the first 8 bytes. In Stepped mode the driver stands still and the burst
//!   is over at once.

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
use crate::engine::{Counters, Report};
use crate::object::{Qp, Table, UarPage};

/// Halves of BlueFlame registers in a page.
const HALVES: usize = (UAR_PAGE - BLUEFLAME_OFFSET) / BLUEFLAME_HALF;
/// 8-byte words of a half.
const WORDS: usize = BLUEFLAME_HALF / 8;
/// Farther than this behind the producer no doorbell can be: no ring is larger.
const FARTHEST: u16 = 0x8000;
/// Doorbell records that a look reads beside those that were named. All of them, on a page with no more queue pairs than that.
const SLICE: usize = 64;

type Words = [u64; WORDS];

/// What a half holds for certain: each word is one of the two.
#[derive(Clone, Debug)]
struct Content {
    /// Words when they were last read.
    seen: Words,
    /// Words that the last doorbell's burst stores, if it was one.
    pushed: Words,
}

/// A doorbell whose burst may not be over.
#[derive(Debug)]
struct Pending {
    qpn: u32,
    index: u16,
    /// Producer counter after the WQE; another one means that the driver has moved on.
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

/// A queue pair that rings through a page.
#[derive(Debug)]
struct Attached {
    qpn: u32,
    /// Its send counter at the last look, whatever its state was.
    posted: u16,
}

#[derive(Debug)]
struct Watch {
    index: u32,
    page: Arc<UarPage>,
    qps: Vec<Attached>,
    /// Where in `qps` a queue pair is, by its number.
    places: HashMap<u32, usize>,
    halves: [Half; HALVES],
    /// Doorbell records that are to be read, doorbell or not, and where in `qps` to go on.
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

/// The number that 8 bytes of a big-endian structure make.
fn readable(word: u64) -> u64 {
    u64::from_be_bytes(word.to_ne_bytes())
}

/// The control segment whose first half was rung.
fn control(rung: u64) -> ControlSegment {
    zerocopy::transmute!([rung, 0])
}

impl Watches {
    pub(super) fn new(stepped: bool) -> Self {
        Self { pages: Vec::new(), version: 0, stepped }
    }

    pub(super) fn add(&mut self, index: u32, page: Arc<UarPage>) {
        self.version += 1;
        // A page comes zeroed.
        let zero = Content { seen: [0; WORDS], pushed: [0; WORDS] };
        let halves = std::array::from_fn(|_| Half { content: Some(zero.clone()), pending: None });
        let (qps, places) = (Vec::new(), HashMap::new());
        self.pages.push(Watch { index, page, qps, places, halves, unread: 0, next: 0 });
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.version += 1;
        self.pages.retain(|watch| watch.index != index);
    }

    fn page(&mut self, index: u32) -> Option<&mut Watch> {
        self.pages.iter_mut().find(|watch| watch.index == index)
    }

    /// Queue pair `qpn` rings through page `index` from now on.
    pub(super) fn attach(&mut self, index: u32, qpn: u32) {
        if let Some(watch) = self.page(index)
            && !watch.rings_here(qpn)
        {
            watch.places.insert(qpn, watch.qps.len());
            watch.qps.push(Attached { qpn, posted: 0 });
        }
    }

    /// Queue pair `qpn` is reset or destroyed by a command, so its driver's stores are over.
    pub(super) fn detach(&mut self, index: u32, qpn: u32, context: &mut Context<'_>) {
        let Some(watch) = self.page(index) else { return };
        for half in 0..HALVES {
            watch.judge(half, context.reports, context.counters, |pending| pending.qpn == qpn);
            // What the queue pair rang last must not be taken for a doorbell of a later one. If another queue pair's doorbell goes with
            // it, the scan finds its doorbell record, which was stored before.
            let rung = watch.page.swap(offset(half), 0);
            if rung != 0 {
                watch.unread = watch.qps.len();
                watch.halves[half] = Half { content: None, pending: None };
            }
        }
        if let Some(place) = watch.places.remove(&qpn) {
            watch.qps.swap_remove(place);
            if let Some(moved) = watch.qps.get(place) {
                watch.places.insert(moved.qpn, place);
                // What took the place may lie behind where reading goes on.
                watch.unread = watch.qps.len();
            }
        }
    }

    /// Reads the doorbell records of page `index` from the next look on.
    pub(super) fn scan(&mut self, index: u32) {
        if let Some(watch) = self.page(index) {
            watch.unread = watch.qps.len();
        }
    }

    /// Takes all doorbells, and hands queue pairs that posted to `ready`. True if there were any.
    pub(super) fn look(&mut self, context: &mut Context<'_>, ready: &mut dyn FnMut(&mut Qp)) -> bool {
        let stepped = self.stepped;
        let mut any = false;
        for watch in &mut self.pages {
            any |= watch.look(context, stepped, ready);
        }
        any
    }
}

impl Watches {
    /// Whether every doorbell that was rung has been served, as far as loads can tell.
    pub(super) fn is_quiet(&self) -> bool {
        self.pages
            .iter()
            .all(|watch| watch.unread == 0 && (0..HALVES).all(|half| watch.page.load(offset(half)) == 0))
    }

    /// All pages, and a number that changes with them.
    pub(super) fn pages(&self) -> (u64, impl Iterator<Item = &Arc<UarPage>>) {
        (self.version, self.pages.iter().map(|watch| &watch.page))
    }
}

/// The one WQE that was posted through a page between two looks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Single {
    qpn: u32,
    start: u16,
    end: u16,
}

impl Watch {
    fn look(&mut self, context: &mut Context<'_>, stepped: bool, ready: &mut dyn FnMut(&mut Qp)) -> bool {
        for half in 0..HALVES {
            let qps = &context.objects.qps;
            self.judge(half, context.reports, context.counters, |pending| moved_on(qps, pending));
        }
        // A plain load first: an exchange would take the cache line from the driver on every look.
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
                // Before the doorbell records: whoever has begun a later burst has stored a later record.
                words[half] = self.words(half);
            }
        }
        // Loads of the records come after those of the registers.
        fence(Ordering::SeqCst);
        let count = rung.iter().filter(|&&rung| rung != 0).count();
        if count > 0 {
            self.unread = self.qps.len();
        }
        let single = if self.qps.len() <= SLICE {
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
            // What was posted beside a named one is not known.
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

    fn rings_here(&self, qpn: u32) -> bool {
        self.places.contains_key(&qpn)
    }

    /// Reads the doorbell records of the queue pairs at `places`. Gives what was posted if it was for one queue pair only; those
    /// that cannot send count as well, for their drivers may have pushed something too.
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
            let end = qp.doorbell.send();
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

    /// Checks a doorbell that was taken out of `half`, whose other words were `words` then.
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
        // A WQE that is completed may have been overwritten in the ring since.
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
            pushed: std::array::from_fn(|word| if word * 8 < pushed { wqe[word] } else { words[word] }),
        };
        let end = index.wrapping_add(blocks);
        if let Some(before) = before.filter(|_| single == Some(Single { qpn, start: index, end })) {
            let length = (control.ds() as usize * DS).min(BLUEFLAME_HALF) / 8;
            self.halves[half].pending = Some(Box::new(Pending { qpn, index, end, length, before, wqe }));
        }
        self.halves[half].content = Some(content);
    }

    /// Judges the register of `half` if it is pending and `over` knows that its burst is.
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
        // Loads are in order: if the first word is still zero after all others were read, no next burst had begun.
        fence(Ordering::SeqCst);
        if self.page.load(offset(half)) != 0 {
            return;
        }
        let Pending { qpn, index, length, before, wqe, .. } = *pending;
        let plain =
            (1..length).all(|word| words[word] == before.seen[word] || words[word] == before.pushed[word]);
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

/// Whether the driver has posted to the queue pair since: then the burst of the WQE before is over.
///
/// That the first word of a next burst shows before the others holds where stores stay in order; elsewhere nobody is blamed.
fn moved_on(qps: &Table<Qp>, pending: &Pending) -> bool {
    cfg!(target_arch = "x86_64") && qps.get(pending.qpn).is_some_and(|qp| qp.doorbell.send() != pending.end)
}
