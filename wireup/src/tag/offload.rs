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
//! - Messages of other transports arrive in software only ([`Offload::arrive`]). One that matches a
//!   receive of the list waits for the removal of that receive, and later ones wait behind it. If
//!   the device has matched the receive meanwhile, the message goes to the next that matches it.
//!   Messages of the device do not wait: different senders have no order.
//!
//! This module posts nothing: [`List`] is the device's list, such as `barewire_mlx5`'s `TagList`.

use std::collections::VecDeque;
use std::convert::Infallible;

use super::matcher::Matcher;
use super::slab::Key;

/// Numbers of receives that have ended, which may stay in the order of receives.
const SPARE: usize = 64;

/// The list of a device.
pub trait List<R> {
    /// Appends an entry for a receive. Returns the index, by which [`Offload::end`] and
    /// [`Offload::removed`] identify it until it is appended again; `None` if the receive must wait in
    /// software.
    fn append(&mut self, tag: u64, mask: u64, receive: &R) -> Option<u16>;

    /// Begins the removal of an entry, which is in the list and not being removed. It also reports
    /// that every message of the device so far was processed. It must be posted before any later
    /// operation of the list: an implementation reserves room for it, and returns `None` from
    /// [`Self::append`] if there is none.
    fn remove(&mut self, entry: u16);

    /// An entry has left the list: its index may be used again.
    fn release(&mut self, entry: u16);
}

/// A receive that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted<R, M> {
    /// It gets a message that waited in software.
    Matched(R, M),
    /// It waits; this is its number.
    Waiting(Key),
}

/// What became of a receive that waited, or of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<R, M> {
    /// It gets a message that came to software.
    Matched(R, M),
    /// It is cancelled.
    Canceled(R),
    /// A message that waited for the removal of a receive is kept here for another one.
    Kept(Key),
}

/// What became of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel<R> {
    /// The receive is cancelled.
    Done(R),
    /// The device decides: an [`outcome`](Offload::outcome) reports the cancellation, or
    /// [`Offload::end`] returns the receive.
    Asked,
    /// It has got a message, or is being cancelled.
    TooLate,
}

#[derive(Debug)]
struct Receive<R> {
    tag: u64,
    mask: u64,
    item: R,
    /// Its entry in the device's list; `None` while it waits in software.
    entry: Option<u16>,
}

/// An entry of the device's list.
#[derive(Debug)]
struct Entry<R, M> {
    /// The receive, until the device has matched it or its removal has ended.
    receive: Option<Key>,
    /// Its place among the receives that may get messages of software.
    open: Option<Key>,
    /// Why it is being removed.
    leaving: Option<Leaving<M>>,
    /// The receive that the device has matched with a message, whose data is on its way.
    arriving: Option<R>,
}

impl<R, M> Default for Entry<R, M> {
    fn default() -> Self {
        Self { receive: None, open: None, leaving: None, arriving: None }
    }
}

#[derive(Debug)]
enum Leaving<M> {
    /// It gets this message, with this tag.
    For(Origin, u64, M),
    Canceled,
}

/// Where a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Device,
    /// Another transport.
    Elsewhere,
}

/// Receives (`R`) that wait for messages in a device's list or in software, and messages (`M`) that
/// wait for receives.
#[derive(Debug)]
pub struct Offload<R, M> {
    /// All receives. Those in the list do not wait in software.
    software: Matcher<Receive<R>, M>,
    /// The receives in software, in order; some may have got a message.
    order: VecDeque<Key>,
    /// The receives in the list that are not being removed.
    listed: Matcher<u16, Infallible>,
    entries: Vec<Entry<R, M>>,
    /// The entry whose removal the first message of another transport waits for, and those behind
    /// it, with their tags.
    awaited: Option<u16>,
    held: VecDeque<(u64, M)>,
    outcomes: VecDeque<Outcome<R, M>>,
}

impl<R, M> Default for Offload<R, M> {
    fn default() -> Self {
        Self {
            software: Matcher::default(),
            order: VecDeque::new(),
            listed: Matcher::default(),
            entries: Vec::new(),
            awaited: None,
            held: VecDeque::new(),
            outcomes: VecDeque::new(),
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
        let key = self.software.insert(|| Receive { tag, mask, item, entry: None });
        self.software.expect(key, tag, mask);
        if self.order.len() > 2 * self.software.len() + SPARE {
            // Most have got messages: those behind the oldest one that waits.
            self.order.retain(|&key| self.software.get(key).is_some());
        }
        self.order.push_back(key);
        self.fill(list);
        Posted::Waiting(key)
    }

    /// Moves the oldest receives of software to the list, while it has room. To be called when
    /// entries have become free.
    pub fn fill(&mut self, list: &mut impl List<R>) {
        while let Some(&key) = self.order.front() {
            let waits = |receive: &&mut Receive<R>| receive.entry.is_none();
            let Some(receive) = self.software.get_mut(key).filter(waits) else {
                self.order.pop_front();
                continue;
            };
            let (tag, mask) = (receive.tag, receive.mask);
            let Some(entry) = list.append(tag, mask, &receive.item) else { return };
            receive.entry = Some(entry);
            self.order.pop_front();
            self.software.withdraw(key);
            let at = usize::from(entry);
            if self.entries.len() <= at {
                self.entries.resize_with(at + 1, Entry::default);
            }
            let open = self.listed.insert(|| entry);
            self.listed.expect(open, tag, mask);
            self.entries[at] = Entry { receive: Some(key), open: Some(open), ..Entry::default() };
        }
    }

    /// A message of the device matches no receive of its list. What became of it is an
    /// [`outcome`](Self::outcome), now or later. Returns where it is kept if no receive matches it.
    pub fn unexpected(&mut self, list: &mut impl List<R>, tag: u64, message: M) -> Option<Key> {
        self.give(list, Origin::Device, tag, message)
    }

    /// As [`Self::unexpected`], for a message of another transport.
    pub fn arrive(&mut self, list: &mut impl List<R>, tag: u64, message: M) -> Option<Key> {
        if self.awaited.is_some() {
            self.held.push_back((tag, message));
            return None;
        }
        self.give(list, Origin::Elsewhere, tag, message)
    }

    /// Gives a message to the first receive that matches it, or keeps it.
    fn give(
        &mut self,
        list: &mut impl List<R>,
        origin: Origin,
        tag: u64,
        message: M,
    ) -> Option<Key> {
        if let Some((open, &mut index)) = self.listed.arrive(tag) {
            self.listed.discard(open);
            if let Some(entry) = self.entries.get_mut(usize::from(index)) {
                (entry.open, entry.leaving) = (None, Some(Leaving::For(origin, tag, message)));
                if origin == Origin::Elsewhere {
                    self.awaited = Some(index);
                }
                list.remove(index);
            }
            return None;
        }
        let Some((key, _)) = self.software.arrive(tag) else {
            return Some(self.software.keep(tag, message));
        };
        if let Some(receive) = self.software.remove(key) {
            self.outcomes.push_back(Outcome::Matched(receive.item, message));
        }
        None
    }

    /// What became of a receive or a message, in order. To be called until it returns `None`, after
    /// every other call.
    pub fn outcome(&mut self) -> Option<Outcome<R, M>> {
        self.outcomes.pop_front()
    }

    /// The device has matched a message with an entry, and its data is on its way. Returns the
    /// receive, which [`end`](Self::end) returns again.
    pub fn matched(&mut self, list: &mut impl List<R>, index: u16) -> Option<&R> {
        let taken = self.taken(index);
        // If it was to be removed, that fails: a message for it goes to another receive.
        self.removal_ended(list, index, false);
        let entry = self.entries.get_mut(usize::from(index))?;
        if taken.is_some() {
            entry.arriving = taken;
        }
        entry.arriving.as_ref()
    }

    /// An entry has left the list with the message that matched it. Returns its receive.
    pub fn end(&mut self, list: &mut impl List<R>, index: u16) -> Option<R> {
        list.release(index);
        self.take_arriving(index).or_else(|| {
            self.matched(list, index);
            self.take_arriving(index)
        })
    }

    /// An entry has left the list without a message. Returns its receive if nothing asked for that:
    /// the device is closed.
    pub fn removed(&mut self, list: &mut impl List<R>, index: u16) -> Option<R> {
        list.release(index);
        self.take_arriving(index).or_else(|| {
            self.removal_ended(list, index, true);
            self.taken(index)
        })
    }

    fn take_arriving(&mut self, index: u16) -> Option<R> {
        self.entries.get_mut(usize::from(index))?.arriving.take()
    }

    /// Takes the receive of an entry.
    fn taken(&mut self, index: u16) -> Option<R> {
        let entry = self.entries.get_mut(usize::from(index))?;
        if let Some(open) = entry.open.take() {
            self.listed.remove(open);
        }
        let receive = self.software.remove(entry.receive.take()?)?;
        Some(receive.item)
    }

    /// The removal of an entry has ended: `success` says whether the device had not matched it. If
    /// the entry was not being removed, nothing happens.
    fn removal_ended(&mut self, list: &mut impl List<R>, index: u16, success: bool) {
        let Some(entry) = self.entries.get_mut(usize::from(index)) else { return };
        let Some(leaving) = entry.leaving.take() else { return };
        let is_awaited = self.awaited == Some(index);
        if is_awaited {
            self.awaited = None;
        }
        if success {
            let receive = entry.receive.take().and_then(|key| self.software.remove(key));
            if let Some(Receive { item, .. }) = receive {
                self.outcomes.push_back(match leaving {
                    Leaving::For(.., message) => Outcome::Matched(item, message),
                    Leaving::Canceled => Outcome::Canceled(item),
                });
            }
        } else if let Leaving::For(origin, tag, message) = leaving {
            // The receive ends with what the device has matched. A device must not match it while
            // one of its unexpected messages waits for it; if one does, no message is lost.
            self.give_again(list, origin, tag, message);
        }
        while is_awaited
            && self.awaited.is_none()
            && let Some((tag, message)) = self.held.pop_front()
        {
            self.give_again(list, Origin::Elsewhere, tag, message);
        }
    }

    fn give_again(&mut self, list: &mut impl List<R>, origin: Origin, tag: u64, message: M) {
        if let Some(key) = self.give(list, origin, tag, message) {
            self.outcomes.push_back(Outcome::Kept(key));
        }
    }

    /// Cancels a receive.
    pub fn cancel(&mut self, list: &mut impl List<R>, key: Key) -> Cancel<R> {
        let Some(receive) = self.software.get(key) else { return Cancel::TooLate };
        let Some(index) = receive.entry else {
            return self.software.remove(key).map_or(Cancel::TooLate, |it| Cancel::Done(it.item));
        };
        let entry = self.entries.get_mut(usize::from(index));
        let Some((entry, open)) = entry.and_then(|entry| {
            let open = entry.open.take()?;
            Some((entry, open))
        }) else {
            return Cancel::TooLate;
        };
        self.listed.remove(open);
        entry.leaving = Some(Leaving::Canceled);
        list.remove(index);
        Cancel::Asked
    }

    /// Receives that wait, those that are being removed included.
    pub fn waiting(&self) -> usize {
        self.software.len()
    }

    /// Messages that wait for a receive, or for the removal of one.
    pub fn kept(&self) -> usize {
        self.software.kept() + self.held.len()
    }

    /// Returns whether no message waits for the removal of a receive.
    pub fn is_settled(&self) -> bool {
        let waits = |entry: &Entry<R, M>| matches!(entry.leaving, Some(Leaving::For(..)));
        self.held.is_empty() && !self.entries.iter().any(waits)
    }

    /// The first kept message that a receive of `tag` and `mask` gets.
    pub fn find(&self, tag: u64, mask: u64) -> Option<Key> {
        self.software.find(tag, mask)
    }

    /// A kept message and its tag.
    pub fn message(&self, key: Key) -> Option<(u64, &M)> {
        self.software.message(key)
    }

    /// Removes a kept message. Returns it and its tag.
    pub fn take(&mut self, key: Key) -> Option<(u64, M)> {
        self.software.take(key)
    }

    /// Kept messages, in no particular order.
    pub fn messages(&self) -> impl Iterator<Item = (Key, &M)> {
        self.software.messages()
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

        /// See `settle`.
        fn release(&mut self, _: u16) {}
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
        /// By another transport.
        SendElsewhere(u64),
        Receive(u64, u64),
        Cancel(prop::sample::Index),
        Operate,
        Poll,
    }

    /// Steps with messages of another transport in this proportion.
    fn steps(elsewhere: u32) -> impl Strategy<Value = Vec<Step>> {
        let tag = 0..4_u64;
        let mask = prop_oneof![3 => Just(u64::MAX), 1 => Just(0), 1 => Just(1)];
        let step = prop_oneof![
            4 => tag.clone().prop_map(Step::Send),
            elsewhere => tag.clone().prop_map(Step::SendElsewhere),
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
        /// Tags, and whether it is another transport's.
        messages: Vec<(u64, bool)>,
        receives: Vec<(u64, u64, Key)>,
        got: BTreeMap<usize, usize>,
        canceled: Vec<usize>,
        /// The order in which entries were appended, which the device reports in order.
        appends: VecDeque<u16>,
        hardware: usize,
    }

    impl Run {
        /// Runs all steps, and what is under way after them. Asserts that nothing is lost.
        fn of(steps: &[Step], capacity: usize) -> Self {
            let mut run = Self::default();
            run.device.capacity = capacity;
            for step in steps {
                run.step(step);
            }
            run.finish();
            let (waiting, kept) = (run.offload.waiting(), run.offload.kept());
            assert_eq!(waiting, run.receives.len() - run.got.len() - run.canceled.len());
            assert_eq!(kept, run.messages.len() - run.got.len());
            run
        }

        fn give(&mut self, receive: usize, message: usize) {
            assert_eq!(self.got.insert(receive, message), None, "receive {receive} twice");
        }

        fn step(&mut self, step: &Step) {
            match step {
                Step::Send(tag) => {
                    self.device.arrive(*tag, self.messages.len());
                    self.messages.push((*tag, false));
                }
                Step::SendElsewhere(tag) => {
                    let message = self.messages.len();
                    self.offload.arrive(&mut self.device, *tag, message);
                    self.messages.push((*tag, true));
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
            while let Some(outcome) = self.offload.outcome() {
                match outcome {
                    Outcome::Matched(receive, message) => self.give(receive, message),
                    Outcome::Canceled(name) => self.canceled.push(name),
                    Outcome::Kept(key) => assert!(self.offload.message(key).is_some()),
                }
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
                    let receive = self.offload.end(&mut self.device, entry);
                    let receive = receive.expect("a receive of the list");
                    self.hardware += 1;
                    self.give(receive, message);
                }
                Event::Unexpected { tag, message } => {
                    self.device.processed += 1;
                    self.offload.unexpected(&mut self.device, tag, message);
                    self.device.operations.push_back((Operation::Nop, self.device.processed));
                }
                Event::Removed { entry, success } => {
                    self.device.settle(entry, if success { 2 } else { 1 });
                    // Otherwise its message has ended it.
                    if success {
                        assert_eq!(self.offload.removed(&mut self.device, entry), None);
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
            for name in 0..self.receives.len() {
                if self.canceled.contains(&name) {
                    continue;
                }
                let fits = |&message: &usize| self.fits(name, message);
                if let Some(at) = left.iter().position(fits) {
                    wanted.insert(name, left.remove(at));
                }
            }
            wanted
        }

        fn fits(&self, receive: usize, message: usize) -> bool {
            let (tag, mask, _) = self.receives[receive];
            (self.messages[message].0 ^ tag) & mask == 0
        }

        /// Asserts the order of the messages of each sender, and that of the receives.
        fn check_order(&self) {
            let of: BTreeMap<usize, usize> =
                self.got.iter().map(|(&receive, &message)| (message, receive)).collect();
            for (&receive, &message) in &self.got {
                assert!(self.fits(receive, message));
                let earlier = (0..message)
                    .filter(|&other| self.messages[other].1 == self.messages[message].1)
                    .filter(|&other| self.fits(receive, other));
                for other in earlier {
                    let got = of.get(&other);
                    assert!(
                        got.is_some_and(|&got| got < receive),
                        "message {message} has receive {receive}, and {other} before it {got:?}"
                    );
                }
                let earlier = (0..receive)
                    .filter(|other| !self.canceled.contains(other))
                    .filter(|&other| self.fits(other, message));
                for other in earlier {
                    assert!(self.got.contains_key(&other), "receive {other} has no message");
                }
            }
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
        fn every_message_goes_to_the_first_receive(steps in steps(0), capacity in 0..5_usize) {
            let run = Run::of(&steps, capacity);
            prop_assert_eq!(&run.got, &run.wanted());
        }

        #[test]
        fn messages_of_each_sender_stay_in_order(steps in steps(4), capacity in 0..5_usize) {
            let run = Run::of(&steps, capacity);
            run.check_order();
        }
    }
}
