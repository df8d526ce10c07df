//! Tag matching with the list of a device: which receives the device matches, and which software.
//!
//! The rule is that of the [`matcher`](super::matcher), in the device and in software: a message goes to the
//! receive that was posted first, and a receive gets the message that arrived first. What makes
//! that hold:
//!
//! - The receives in the device's list were posted before all others. Once a receive does not fit,
//!   all later ones wait in software; the oldest move to the list when there is room.
//! - A message that matches nothing in the list comes to software. If a receive of the list was
//!   appended while the message was under way, the message is kept until that receive has been
//!   removed. The device does not match such a receive: it waits for the report that the message
//!   was processed, which the removal itself makes.
//! - A receive that is cancelled gets no message that comes to software. Whether the device has
//!   matched it is known when its removal has completed.
//!
//! This module posts nothing: [`List`] is the device's list, such as `barewire_mlx5`'s `TagList`.

use std::collections::VecDeque;
use std::convert::Infallible;

use super::matcher::Matcher;
use super::slab::{Key, Slab};

/// Numbers of receives that have ended, which may stay in the order of receives.
const SPARE: usize = 64;

/// The list of a device.
pub trait List<R> {
    /// Appends an entry for a receive. Returns the index, by which [`Offload::taken`] and
    /// [`Offload::removed`] name it until it is appended again; `None` if the receive must wait in
    /// software.
    fn append(&mut self, tag: u64, mask: u64, receive: &R) -> Option<u16>;

    /// Begins the removal of an entry, which is in the list and not being removed. It also reports
    /// that every message so far was processed. It must be posted before any later operation of the
    /// list: an implementation reserves room for it, and returns `None` from [`Self::append`] if
    /// there is none.
    fn remove(&mut self, entry: u16);
}

/// A receive that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted<R, M> {
    /// It gets a message that waited in software.
    Matched(R, M),
    /// It waits; this is its number.
    Waiting(Key),
}

/// What became of a receive that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<R, M> {
    /// It gets a message that came to software.
    Matched(R, M),
    /// It is cancelled.
    Canceled(R),
}

/// What became of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel<R> {
    /// The receive is cancelled.
    Done(R),
    /// The device decides; [`Offload::removed`] or [`Offload::taken`] reports the result.
    Asked,
    /// It has got a message, or is being cancelled.
    TooLate,
}

/// Where a receive waits.
#[derive(Debug, Clone, Copy)]
enum Place {
    Software(Key),
    Listed(u16),
}

#[derive(Debug)]
struct Receive<R> {
    tag: u64,
    mask: u64,
    item: R,
    place: Place,
}

/// An entry of the device's list.
#[derive(Debug)]
struct Entry<M> {
    /// The receive, until the device has matched it or its removal has ended.
    receive: Option<Key>,
    /// Its place among the receives that may get messages of software.
    open: Option<Key>,
    /// Why it is being removed.
    leaving: Option<Leaving<M>>,
}

impl<M> Default for Entry<M> {
    fn default() -> Self {
        Self { receive: None, open: None, leaving: None }
    }
}

#[derive(Debug)]
enum Leaving<M> {
    /// It gets this message, with this tag.
    For(u64, M),
    Canceled,
}

/// Receives (`R`) that wait for messages in a device's list or in software, and messages (`M`) that
/// wait for receives.
#[derive(Debug)]
pub struct Offload<R, M> {
    receives: Slab<Receive<R>>,
    software: Matcher<Key, M>,
    /// The receives in software, in order; some may have got a message.
    order: VecDeque<Key>,
    /// The receives in the list that are not being removed.
    listed: Matcher<u16, Infallible>,
    entries: Vec<Entry<M>>,
}

impl<R, M> Default for Offload<R, M> {
    fn default() -> Self {
        Self {
            receives: Slab::default(),
            software: Matcher::default(),
            order: VecDeque::new(),
            listed: Matcher::default(),
            entries: Vec::new(),
        }
    }
}

impl<R, M> Offload<R, M> {
    /// Posts a receive.
    pub fn receive(
        &mut self,
        list: &mut impl List<R>,
        tag: u64,
        mask: u64,
        item: R,
    ) -> Posted<R, M> {
        if let Some((_, message)) =
            self.software.find(tag, mask).and_then(|kept| self.software.take(kept))
        {
            return Posted::Matched(item, message);
        }
        // The number is known when the receive is in the table.
        let key = self.receives.next_key();
        let place = Place::Software(self.software.expect(tag, mask, key));
        let key = self.receives.insert(Receive { tag, mask, item, place });
        if self.order.len() > 2 * self.receives.len() + SPARE {
            // Most have got messages: those behind the oldest one that waits.
            self.order.retain(|&key| self.receives.get(key).is_some());
        }
        self.order.push_back(key);
        self.fill(list);
        Posted::Waiting(key)
    }

    /// Moves the oldest receives of software to the list, while it has room. To be called when
    /// entries have become free.
    pub fn fill(&mut self, list: &mut impl List<R>) {
        while let Some(&key) = self.order.front() {
            let Some(receive) = self.receives.get_mut(key) else {
                self.order.pop_front();
                continue;
            };
            let Place::Software(waits) = receive.place else {
                self.order.pop_front();
                continue;
            };
            let (tag, mask) = (receive.tag, receive.mask);
            let Some(entry) = list.append(tag, mask, &receive.item) else { return };
            receive.place = Place::Listed(entry);
            self.order.pop_front();
            // It is there: its place says so.
            let _ = self.software.withdraw(waits);
            let at = usize::from(entry);
            if self.entries.len() <= at {
                self.entries.resize_with(at + 1, Entry::default);
            }
            let open = Some(self.listed.expect(tag, mask, entry));
            self.entries[at] = Entry { receive: Some(key), open, leaving: None };
        }
    }

    /// A message has come to software. Returns the receive that gets it, if one does at once.
    pub fn unexpected(&mut self, list: &mut impl List<R>, tag: u64, message: M) -> Option<(R, M)> {
        if let Some(index) = self.listed.arrive(tag) {
            if let Some(entry) = self.entries.get_mut(usize::from(index)) {
                (entry.open, entry.leaving) = (None, Some(Leaving::For(tag, message)));
                list.remove(index);
            }
            return None;
        }
        let Some(key) = self.software.arrive(tag) else {
            self.software.keep(tag, message);
            return None;
        };
        let receive = self.receives.remove(key)?;
        Some((receive.item, message))
    }

    /// The device has matched a message with an entry: returns the receive, whose data arrives or
    /// is to be read.
    pub fn taken(&mut self, index: u16) -> Option<R> {
        let entry = self.entries.get_mut(usize::from(index))?;
        if let Some(open) = entry.open.take() {
            self.listed.withdraw(open);
        }
        let receive = self.receives.remove(entry.receive.take()?)?;
        Some(receive.item)
    }

    /// The removal of an entry has ended: `success` says whether the device had not matched it.
    pub fn removed(
        &mut self,
        list: &mut impl List<R>,
        index: u16,
        success: bool,
    ) -> Option<Outcome<R, M>> {
        let entry = self.entries.get_mut(usize::from(index))?;
        let leaving = entry.leaving.take()?;
        if !success {
            // The receive ends by what the device has matched. A device that matches a receive for
            // which an unexpected message waits breaks its rules; no message is lost.
            return match leaving {
                Leaving::For(tag, message) => self
                    .unexpected(list, tag, message)
                    .map(|(receive, message)| Outcome::Matched(receive, message)),
                Leaving::Canceled => None,
            };
        }
        let receive = self.receives.remove(entry.receive.take()?)?;
        Some(match leaving {
            Leaving::For(_, message) => Outcome::Matched(receive.item, message),
            Leaving::Canceled => Outcome::Canceled(receive.item),
        })
    }

    /// Cancels a receive.
    pub fn cancel(&mut self, list: &mut impl List<R>, key: Key) -> Cancel<R> {
        let Some(receive) = self.receives.get(key) else { return Cancel::TooLate };
        match receive.place {
            Place::Software(waits) => {
                self.software.withdraw(waits);
                self.receives.remove(key).map_or(Cancel::TooLate, |found| Cancel::Done(found.item))
            }
            Place::Listed(index) => {
                let entry = self.entries.get_mut(usize::from(index));
                let Some((entry, open)) = entry.and_then(|entry| {
                    let open = entry.open.take()?;
                    Some((entry, open))
                }) else {
                    return Cancel::TooLate;
                };
                self.listed.withdraw(open);
                entry.leaving = Some(Leaving::Canceled);
                list.remove(index);
                Cancel::Asked
            }
        }
    }

    /// Receives that wait, those that are being removed included.
    pub fn waiting(&self) -> usize {
        self.receives.len()
    }

    /// Messages that wait for a receive.
    pub fn kept(&self) -> usize {
        self.software.kept()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// An operation on the list under way, with the messages that software has processed.
    enum Operation {
        Append { entry: u16, tag: u64, mask: u64 },
        Remove { entry: u16 },
        Nop,
    }

    enum Event {
        Matched { entry: u16, message: usize },
        Unexpected { tag: u64, message: usize },
        Removed { entry: u16, success: bool },
        Appended,
        Other,
    }

    /// A device as the software HCA models one: operations and completions take their time.
    #[derive(Default)]
    struct Device {
        capacity: usize,
        operations: VecDeque<(Operation, usize)>,
        events: VecDeque<Event>,
        /// Entry, tag, mask, and whether it is matched.
        list: Vec<(u16, u64, u64, bool)>,
        received: usize,
        /// Software: entries in use, with the completions that are due, and messages processed.
        used: BTreeMap<u16, u8>,
        processed: usize,
    }

    impl List<usize> for Device {
        fn append(&mut self, tag: u64, mask: u64, _: &usize) -> Option<u16> {
            let entry = (0..self.capacity as u16).find(|entry| !self.used.contains_key(entry))?;
            self.used.insert(entry, 2);
            self.operations.push_back((Operation::Append { entry, tag, mask }, self.processed));
            Some(entry)
        }

        fn remove(&mut self, entry: u16) {
            *self.used.get_mut(&entry).unwrap() += 1;
            self.operations.push_back((Operation::Remove { entry }, self.processed));
        }
    }

    impl Device {
        fn settle(&mut self, entry: u16, count: u8) {
            let due = self.used.get_mut(&entry).unwrap();
            *due -= count;
            if *due == 0 {
                self.used.remove(&entry);
            }
        }

        fn operate(&mut self) {
            let Some((operation, processed)) = self.operations.pop_front() else { return };
            let active = processed == self.received;
            for entry in &mut self.list {
                entry.3 |= active;
            }
            self.events.push_back(match operation {
                Operation::Append { entry, tag, mask } => {
                    self.list.push((entry, tag, mask, active));
                    Event::Appended
                }
                Operation::Remove { entry } => {
                    let at = self.list.iter().position(|listed| listed.0 == entry);
                    at.map(|at| self.list.remove(at));
                    Event::Removed { entry, success: at.is_some() }
                }
                Operation::Nop => Event::Other,
            });
        }

        fn arrive(&mut self, tag: u64, message: usize) {
            let found = self
                .list
                .iter()
                .position(|&(_, wanted, mask, active)| active && (wanted ^ tag) & mask == 0);
            self.events.push_back(if let Some(at) = found {
                Event::Matched { entry: self.list.remove(at).0, message }
            } else {
                self.received += 1;
                Event::Unexpected { tag, message }
            });
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Send(u64),
        Receive(u64, u64),
        Cancel(prop::sample::Index),
        Operate,
        Poll,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let tag = 0..4_u64;
        let mask = prop_oneof![3 => Just(u64::MAX), 1 => Just(0), 1 => Just(1)];
        let step = prop_oneof![
            4 => tag.clone().prop_map(Step::Send),
            4 => (tag, mask).prop_map(|(tag, mask)| Step::Receive(tag, mask)),
            1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
            3 => Just(Step::Operate),
            3 => Just(Step::Poll),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// A run: what was sent and received, and which message each receive got.
    #[derive(Default)]
    struct Run {
        offload: Offload<usize, usize>,
        device: Device,
        messages: Vec<u64>,
        receives: Vec<(u64, u64, Key)>,
        got: BTreeMap<usize, usize>,
        canceled: Vec<usize>,
        /// The order in which entries were appended, which the device reports in order.
        appends: VecDeque<u16>,
        hardware: usize,
    }

    impl Run {
        fn give(&mut self, receive: usize, message: usize) {
            assert_eq!(self.got.insert(receive, message), None, "receive {receive} twice");
        }

        fn step(&mut self, step: &Step) {
            match step {
                Step::Send(tag) => {
                    self.device.arrive(*tag, self.messages.len());
                    self.messages.push(*tag);
                }
                Step::Receive(tag, mask) => {
                    let name = self.receives.len();
                    let posted = self.offload.receive(&mut self.device, *tag, *mask, name);
                    let key = match posted {
                        Posted::Matched(receive, message) => {
                            self.give(receive, message);
                            Key::from_u64(u64::MAX)
                        }
                        Posted::Waiting(key) => key,
                    };
                    self.receives.push((*tag, *mask, key));
                }
                Step::Cancel(index) if !self.receives.is_empty() => {
                    let (.., key) = self.receives[index.index(self.receives.len())];
                    if let Cancel::Done(name) = self.offload.cancel(&mut self.device, key) {
                        self.canceled.push(name);
                    }
                }
                Step::Cancel(_) => {}
                Step::Operate => {
                    if let Some((Operation::Append { entry, .. }, _)) =
                        self.device.operations.front()
                    {
                        self.appends.push_back(*entry);
                    }
                    self.device.operate();
                }
                Step::Poll => self.poll(),
            }
        }

        fn poll(&mut self) {
            let Some(event) = self.device.events.pop_front() else { return };
            match event {
                Event::Appended => {
                    let entry = self.appends.pop_front().unwrap();
                    self.device.settle(entry, 1);
                }
                Event::Matched { entry, message } => {
                    self.device.settle(entry, 1);
                    let receive = self.offload.taken(entry).expect("a receive of the list");
                    self.hardware += 1;
                    self.give(receive, message);
                }
                Event::Unexpected { tag, message } => {
                    self.device.processed += 1;
                    let got = self.offload.unexpected(&mut self.device, tag, message);
                    if let Some((receive, message)) = got {
                        self.give(receive, message);
                    }
                    self.device.operations.push_back((Operation::Nop, self.device.processed));
                }
                Event::Removed { entry, success } => {
                    self.device.settle(entry, if success { 2 } else { 1 });
                    match self.offload.removed(&mut self.device, entry, success) {
                        Some(Outcome::Matched(receive, message)) => self.give(receive, message),
                        Some(Outcome::Canceled(name)) => self.canceled.push(name),
                        None => {}
                    }
                }
                Event::Other => {}
            }
            self.offload.fill(&mut self.device);
        }

        fn finish(&mut self) {
            while !self.device.operations.is_empty() || !self.device.events.is_empty() {
                self.step(&Step::Operate);
                self.step(&Step::Poll);
            }
        }

        /// The receives and messages that belong together: whatever the interleaving was, they
        /// follow from the two orders.
        fn wanted(&self) -> BTreeMap<usize, usize> {
            let mut wanted = BTreeMap::new();
            let mut left: Vec<usize> = (0..self.messages.len()).collect();
            for (name, &(tag, mask, _)) in self.receives.iter().enumerate() {
                if self.canceled.contains(&name) {
                    continue;
                }
                let fits = |&message: &usize| (self.messages[message] ^ tag) & mask == 0;
                if let Some(at) = left.iter().position(fits) {
                    wanted.insert(name, left.remove(at));
                }
            }
            wanted
        }
    }

    /// The device matches what is in its list, and software the rest.
    #[test]
    fn the_list_has_the_oldest_receives() {
        let all = u64::MAX;
        let mut run = Run { device: Device { capacity: 2, ..Device::default() }, ..Run::default() };
        for step in [
            Step::Receive(1, all),
            Step::Receive(2, all),
            Step::Receive(3, all),
            Step::Operate,
            Step::Operate,
            Step::Send(1),
            Step::Send(3),
            Step::Send(2),
        ] {
            run.step(&step);
        }
        run.finish();
        assert_eq!(run.got, BTreeMap::from([(0, 0), (1, 2), (2, 1)]));
        assert_eq!(run.hardware, 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn every_message_goes_to_the_first_receive(steps in steps(), capacity in 0..5_usize) {
            let mut run = Run::default();
            run.device.capacity = capacity;
            for step in &steps {
                run.step(step);
            }
            run.finish();
            let (waiting, kept) = (run.offload.waiting(), run.offload.kept());
            prop_assert_eq!(waiting, run.receives.len() - run.got.len() - run.canceled.len());
            prop_assert_eq!(kept, run.messages.len() - run.got.len());
            prop_assert_eq!(&run.got, &run.wanted());
        }
    }
}
