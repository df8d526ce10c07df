//! Tag matching: which receive gets which message.
//!
//! A receive matches a message if their tags are equal in the bits of the receive's mask. A message
//! goes to the receive that was posted first, and a receive gets the message that arrived first.
//! Receives with a full mask are hashed by tag; the others are in one list. The numbers of the two
//! candidates decide which of them was first.

use super::slab::{Key, Slab};

/// The mask that compares every bit of a tag.
pub const FULL_MASK: u64 = u64::MAX;

const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 10;
const NONE: u32 = u32::MAX;

/// Multiplicative hash (Knuth, The Art of Computer Programming, 6.4).
fn bucket(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BUCKET_BITS)) as usize
}

/// An entry with its neighbours in up to two lists.
#[derive(Debug)]
struct Node<T> {
    number: u64,
    tag: u64,
    mask: u64,
    neighbours: [Neighbours; 2],
    is_listed: bool,
    item: T,
}

#[derive(Debug, Clone, Copy)]
struct Neighbours {
    previous: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// Which of a node's lists.
type Which = usize;
/// A bucket, or the wildcards.
const NARROW: Which = 0;
/// All in the order of arrival.
const ALL: Which = 1;

/// Entries of one kind, some of them in lists.
#[derive(Debug)]
struct Table<T> {
    nodes: Slab<Node<T>>,
    buckets: Box<[List; BUCKETS]>,
    /// Receives: those with wildcards. Messages: all.
    other: List,
    next_number: u64,
    listed: usize,
}

impl<T> Table<T> {
    fn new() -> Self {
        Self {
            nodes: Slab::default(),
            buckets: Box::new([List::EMPTY; BUCKETS]),
            other: List::EMPTY,
            next_number: 0,
            listed: 0,
        }
    }

    /// Adds an entry, which is in no list.
    #[inline(always)]
    fn insert(&mut self, make: impl FnOnce() -> T) -> Key {
        let neighbours = [Neighbours { previous: NONE, next: NONE }; 2];
        let is_listed = false;
        let (number, tag, mask) = (0, 0, 0);
        self.nodes.insert_with(|| Node { number, tag, mask, neighbours, is_listed, item: make() })
    }

    /// Appends an entry to the list of its tag and mask.
    #[inline]
    fn append(&mut self, key: Key, tag: u64, mask: u64) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        let list = if mask == FULL_MASK { &mut self.buckets[bucket(tag)] } else { &mut self.other };
        let previous = std::mem::replace(&mut list.last, key.slot());
        (node.number, node.tag, node.mask, node.is_listed) = (self.next_number, tag, mask, true);
        node.neighbours[NARROW] = Neighbours { previous, next: NONE };
        self.next_number += 1;
        self.listed += 1;
        match self.nodes.at_mut(previous) {
            Some((_, node)) => node.neighbours[NARROW].next = key.slot(),
            None => list.first = key.slot(),
        }
    }

    /// Takes an entry that had these neighbours out of a list.
    #[inline]
    fn unlink(nodes: &mut Slab<Node<T>>, list: &mut List, which: Which, neighbours: Neighbours) {
        let Neighbours { previous, next } = neighbours;
        match nodes.at_mut(previous) {
            Some((_, node)) => node.neighbours[which].next = next,
            None => list.first = next,
        }
        match nodes.at_mut(next) {
            Some((_, node)) => node.neighbours[which].previous = previous,
            None => list.last = previous,
        }
    }

    /// Takes an entry out of the list of its tag and mask. Returns false if it is in none.
    #[inline]
    fn withdraw(&mut self, slot: u32) -> bool {
        let node = self.nodes.at_mut(slot).filter(|(_, node)| node.is_listed);
        let Some((_, node)) = node else { return false };
        node.is_listed = false;
        let (tag, mask, neighbours) = (node.tag, node.mask, node.neighbours[NARROW]);
        self.listed -= 1;
        let list = if mask == FULL_MASK { &mut self.buckets[bucket(tag)] } else { &mut self.other };
        Self::unlink(&mut self.nodes, list, NARROW, neighbours);
        true
    }

    /// The slot and the number of the first of `list` that `matches`.
    #[inline]
    fn search(
        &self,
        list: List,
        which: Which,
        matches: impl Fn(&Node<T>) -> bool,
    ) -> Option<(Key, u64)> {
        let mut at = list.first;
        while let Some((key, node)) = self.nodes.at(at) {
            if matches(node) {
                return Some((key, node.number));
            }
            at = node.neighbours[which].next;
        }
        None
    }
}

/// Receives (`R`), of which some wait for messages, and messages that wait for receives (`M`).
#[derive(Debug)]
pub struct Matcher<R, M> {
    receives: Table<R>,
    messages: Table<M>,
}

impl<R, M> Default for Matcher<R, M> {
    fn default() -> Self {
        Self { receives: Table::new(), messages: Table::new() }
    }
}

impl<R, M> Matcher<R, M> {
    /// Adds the receive that `make` returns, which does not wait yet.
    #[inline(always)]
    pub fn insert(&mut self, make: impl FnOnce() -> R) -> Key {
        self.receives.insert(make)
    }

    /// A receive.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&R> {
        self.receives.nodes.get(key).map(|node| &node.item)
    }

    /// A receive.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut R> {
        self.receives.nodes.get_mut(key).map(|node| &mut node.item)
    }

    /// Removes a receive.
    pub fn remove(&mut self, key: Key) -> Option<R> {
        self.withdraw(key);
        self.receives.nodes.remove(key).map(|node| node.item)
    }

    /// Drops a receive that does not wait, where it is.
    #[inline]
    pub fn discard(&mut self, key: Key) {
        self.receives.nodes.discard(key);
    }

    /// All receives, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &R)> {
        self.receives.nodes.iter().map(|(key, node)| (key, &node.item))
    }

    /// Receives, those that do not wait included.
    pub fn len(&self) -> usize {
        self.receives.nodes.len()
    }

    /// True without receives.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets a receive wait for a message. The caller has made sure that no kept message
    /// [matches](Self::find) it.
    #[inline]
    pub fn expect(&mut self, key: Key, tag: u64, mask: u64) {
        self.receives.append(key, tag, mask);
    }

    /// Ends the waiting of the receive that gets a message with `tag`, and returns it. If there is
    /// none, the caller [keeps](Self::keep) the message.
    #[inline(always)]
    pub fn arrive(&mut self, tag: u64) -> Option<(Key, &mut R)> {
        let table = &mut self.receives;
        let list = &mut table.buckets[bucket(tag)];
        if table.other.first == NONE
            && let Some((_, node)) = table.nodes.at_mut(list.first)
            && node.tag == tag
        {
            // The first of its bucket, as most are.
            let slot = std::mem::replace(&mut list.first, node.neighbours[NARROW].next);
            node.is_listed = false;
            table.listed -= 1;
            match table.nodes.at_mut(list.first) {
                Some((_, next)) => next.neighbours[NARROW].previous = NONE,
                None => list.last = NONE,
            }
            return table.nodes.at_mut(slot).map(|(key, node)| (key, &mut node.item));
        }
        let slot = table.take_first(tag)?.slot();
        table.nodes.at_mut(slot).map(|(key, node)| (key, &mut node.item))
    }

    /// Ends the waiting of a receive. Returns false if it does not wait.
    pub fn withdraw(&mut self, key: Key) -> bool {
        self.get(key).is_some() && self.receives.withdraw(key.slot())
    }

    /// Receives that wait.
    pub fn waiting(&self) -> usize {
        self.receives.listed
    }

    /// Keeps a message that no receive waits for.
    pub fn keep(&mut self, tag: u64, message: M) -> Key {
        let table = &mut self.messages;
        let key = table.insert(|| message);
        table.append(key, tag, FULL_MASK);
        let previous = std::mem::replace(&mut table.other.last, key.slot());
        match table.nodes.at_mut(previous) {
            Some((_, node)) => node.neighbours[ALL].next = key.slot(),
            None => table.other.first = key.slot(),
        }
        if let Some(node) = table.nodes.get_mut(key) {
            node.neighbours[ALL].previous = previous;
        }
        key
    }

    /// The first kept message that a receive of `tag` and `mask` gets.
    #[inline]
    pub fn find(&self, tag: u64, mask: u64) -> Option<Key> {
        let table = &self.messages;
        let found = if mask == FULL_MASK {
            table.search(table.buckets[bucket(tag)], NARROW, |node| node.tag == tag)
        } else {
            table.search(table.other, ALL, |node| (node.tag ^ tag) & mask == 0)
        };
        found.map(|(key, _)| key)
    }

    /// A kept message and its tag.
    pub fn message(&self, key: Key) -> Option<(u64, &M)> {
        self.messages.nodes.get(key).map(|node| (node.tag, &node.item))
    }

    /// Removes a kept message. Returns it and its tag.
    pub fn take(&mut self, key: Key) -> Option<(u64, M)> {
        let table = &mut self.messages;
        let neighbours = table.nodes.get(key)?.neighbours[ALL];
        table.withdraw(key.slot());
        Table::unlink(&mut table.nodes, &mut table.other, ALL, neighbours);
        table.nodes.remove(key).map(|node| (node.tag, node.item))
    }

    /// Kept messages, in no particular order.
    pub fn messages(&self) -> impl Iterator<Item = (Key, &M)> {
        self.messages.nodes.iter().map(|(key, node)| (key, &node.item))
    }

    /// Messages that are kept.
    pub fn kept(&self) -> usize {
        self.messages.nodes.len()
    }
}

impl<R> Table<R> {
    /// Takes the first receive that matches `tag` out of its list.
    #[inline(never)]
    fn take_first(&mut self, tag: u64) -> Option<Key> {
        let exact = self.search(self.buckets[bucket(tag)], NARROW, |node| node.tag == tag);
        let wild = self.search(self.other, NARROW, |node| (node.tag ^ tag) & node.mask == 0);
        let (key, _) = [exact, wild].into_iter().flatten().min_by_key(|&(_, number)| number)?;
        self.withdraw(key.slot());
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rules of the module, as two lists.
    #[derive(Default)]
    struct Reference {
        receives: Vec<(u64, u64, usize)>,
        messages: Vec<(u64, usize)>,
    }

    impl Reference {
        fn arrive(&mut self, tag: u64, name: usize) -> Option<usize> {
            let at = self.receives.iter().position(|&(wanted, mask, _)| (wanted ^ tag) & mask == 0);
            if at.is_none() {
                self.messages.push((tag, name));
            }
            at.map(|at| self.receives.remove(at).2)
        }

        fn find(&self, tag: u64, mask: u64) -> Option<usize> {
            self.messages.iter().position(|&(sent, _)| (sent ^ tag) & mask == 0)
        }

        fn receive(&mut self, tag: u64, mask: u64, name: usize) -> Option<usize> {
            let at = self.find(tag, mask);
            if at.is_none() {
                self.receives.push((tag, mask, name));
            }
            at.map(|at| self.messages.remove(at).1)
        }

        fn probe(&self, tag: u64, mask: u64) -> Option<usize> {
            self.find(tag, mask).map(|at| self.messages[at].1)
        }

        fn withdraw(&mut self, name: usize) -> bool {
            let at = self.receives.iter().position(|receive| receive.2 == name);
            at.map(|at| self.receives.remove(at)).is_some()
        }

        fn drop_message(&mut self, name: usize) -> bool {
            let at = self.messages.iter().position(|message| message.1 == name);
            at.map(|at| self.messages.remove(at)).is_some()
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arrive(u64),
        Receive(u64, u64),
        Probe(u64, u64),
        Withdraw(prop::sample::Index),
        Drop(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few tags, two of them in one bucket, so that lists grow and wildcards compete.
        let collision = (1..1 << 20).find(|&tag| bucket(tag) == bucket(0)).unwrap();
        let tag = prop_oneof![8 => 0..4_u64, 1 => Just(collision), 1 => any::<u64>()];
        let mask = prop_oneof![3 => Just(FULL_MASK), 1 => Just(0), 1 => Just(1), 1 => any::<u64>()];
        let step = prop_oneof![
            4 => tag.clone().prop_map(Step::Arrive),
            4 => (tag.clone(), mask.clone()).prop_map(|(tag, mask)| Step::Receive(tag, mask)),
            1 => (tag, mask).prop_map(|(tag, mask)| Step::Probe(tag, mask)),
            1 => any::<prop::sample::Index>().prop_map(Step::Withdraw),
            1 => any::<prop::sample::Index>().prop_map(Step::Drop),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn matches_as_the_reference_does(steps in steps()) {
            let mut matcher = Matcher::<usize, usize>::default();
            let mut reference = Reference::default();
            let (mut receives, mut messages) = (Vec::new(), Vec::new());
            for (name, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrive(tag) => {
                        let got = matcher.arrive(tag).map(|(key, _)| key);
                        let got = got.and_then(|key| matcher.remove(key));
                        prop_assert_eq!(got, reference.arrive(tag, name));
                        if got.is_none() {
                            messages.push((matcher.keep(tag, name), name));
                        }
                    }
                    Step::Receive(tag, mask) => {
                        let got = matcher.find(tag, mask).and_then(|key| matcher.take(key));
                        let got = got.map(|(_, name)| name);
                        prop_assert_eq!(got, reference.receive(tag, mask, name));
                        if got.is_none() {
                            let key = matcher.insert(|| name);
                            matcher.expect(key, tag, mask);
                            receives.push((key, name));
                        }
                    }
                    Step::Probe(tag, mask) => {
                        let got = matcher.find(tag, mask).and_then(|key| matcher.message(key));
                        prop_assert_eq!(got.map(|(_, &name)| name), reference.probe(tag, mask));
                    }
                    Step::Withdraw(index) if !receives.is_empty() => {
                        let (key, name) = receives[index.index(receives.len())];
                        let there = reference.withdraw(name);
                        prop_assert_eq!(matcher.remove(key), there.then_some(name));
                    }
                    Step::Drop(index) if !messages.is_empty() => {
                        let (key, name) = messages[index.index(messages.len())];
                        let there = reference.drop_message(name);
                        prop_assert_eq!(matcher.take(key).map(|taken| taken.1), there.then_some(name));
                    }
                    Step::Withdraw(_) | Step::Drop(_) => {}
                }
                prop_assert_eq!(matcher.waiting(), reference.receives.len());
                prop_assert_eq!(matcher.len(), reference.receives.len());
                prop_assert_eq!(matcher.kept(), reference.messages.len());
            }
        }
    }
}
