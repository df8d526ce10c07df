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
    item: T,
    neighbours: [Neighbours; 2],
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

/// Entries of one kind, in lists.
#[derive(Debug)]
struct Table<T> {
    nodes: Slab<Node<T>>,
    buckets: Box<[List; BUCKETS]>,
    /// Receives: those with wildcards. Messages: all.
    other: List,
    next_number: u64,
}

impl<T> Table<T> {
    fn new() -> Self {
        Self {
            nodes: Slab::default(),
            buckets: Box::new([List::EMPTY; BUCKETS]),
            other: List::EMPTY,
            next_number: 0,
        }
    }

    fn insert(&mut self, tag: u64, mask: u64, item: T) -> Key {
        let number = self.next_number;
        self.next_number += 1;
        let neighbours = [Neighbours { previous: NONE, next: NONE }; 2];
        self.nodes.insert(Node { number, tag, mask, item, neighbours })
    }

    fn push(nodes: &mut Slab<Node<T>>, list: &mut List, which: Which, key: Key) {
        let last = list.last;
        if let Some(node) = nodes.get_mut(key) {
            node.neighbours[which] = Neighbours { previous: last, next: NONE };
        }
        match nodes.at_mut(last) {
            Some(node) => node.neighbours[which].next = key.slot(),
            None => list.first = key.slot(),
        }
        list.last = key.slot();
    }

    /// Takes an entry that had these neighbours out of a list.
    fn unlink(nodes: &mut Slab<Node<T>>, list: &mut List, which: Which, neighbours: Neighbours) {
        let Neighbours { previous, next } = neighbours;
        match nodes.at_mut(previous) {
            Some(node) => node.neighbours[which].next = next,
            None => list.first = next,
        }
        match nodes.at_mut(next) {
            Some(node) => node.neighbours[which].previous = previous,
            None => list.last = previous,
        }
    }

    /// The first of `list` that `matches`.
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

/// Receives that wait for messages (`R`), and messages that wait for receives (`M`).
#[derive(Debug)]
pub struct Matcher<R, M> {
    expected: Table<R>,
    unexpected: Table<M>,
}

impl<R, M> Default for Matcher<R, M> {
    fn default() -> Self {
        Self { expected: Table::new(), unexpected: Table::new() }
    }
}

impl<R, M> Matcher<R, M> {
    /// Removes and returns the receive that gets a message with `tag`. If there is none, the caller
    /// [keeps](Self::keep) the message.
    pub fn arrive(&mut self, tag: u64) -> Option<R> {
        let table = &mut self.expected;
        let exact = table.search(table.buckets[bucket(tag)], NARROW, |node| node.tag == tag);
        if table.other.first != NONE {
            let wild = table.search(table.other, NARROW, |node| (node.tag ^ tag) & node.mask == 0);
            let (key, _) = [exact, wild].into_iter().flatten().min_by_key(|&(_, number)| number)?;
            return self.withdraw(key);
        }
        let node = table.nodes.take(exact?.0.slot())?;
        let list = &mut table.buckets[bucket(tag)];
        Table::unlink(&mut table.nodes, list, NARROW, node.neighbours[NARROW]);
        Some(node.item)
    }

    /// Keeps a message that no receive waits for.
    pub fn keep(&mut self, tag: u64, message: M) -> Key {
        let table = &mut self.unexpected;
        let key = table.insert(tag, FULL_MASK, message);
        Table::push(&mut table.nodes, &mut table.buckets[bucket(tag)], NARROW, key);
        Table::push(&mut table.nodes, &mut table.other, ALL, key);
        key
    }

    /// The first kept message that a receive of `tag` and `mask` gets.
    pub fn find(&self, tag: u64, mask: u64) -> Option<Key> {
        let table = &self.unexpected;
        let found = if mask == FULL_MASK {
            table.search(table.buckets[bucket(tag)], NARROW, |node| node.tag == tag)
        } else {
            table.search(table.other, ALL, |node| (node.tag ^ tag) & mask == 0)
        };
        found.map(|(key, _)| key)
    }

    /// A kept message and its tag.
    pub fn message(&self, key: Key) -> Option<(u64, &M)> {
        self.unexpected.nodes.get(key).map(|node| (node.tag, &node.item))
    }

    /// Removes a kept message. Returns it and its tag.
    pub fn take(&mut self, key: Key) -> Option<(u64, M)> {
        let table = &mut self.unexpected;
        let Node { tag, item, neighbours, .. } = table.nodes.remove(key)?;
        let list = &mut table.buckets[bucket(tag)];
        Table::unlink(&mut table.nodes, list, NARROW, neighbours[NARROW]);
        Table::unlink(&mut table.nodes, &mut table.other, ALL, neighbours[ALL]);
        Some((tag, item))
    }

    /// Kept messages, in no particular order.
    pub fn messages(&self) -> impl Iterator<Item = (Key, &M)> {
        self.unexpected.nodes.iter().map(|(key, node)| (key, &node.item))
    }

    /// Adds a receive. The caller has made sure that no kept message [matches](Self::find) it.
    pub fn expect(&mut self, tag: u64, mask: u64, receive: R) -> Key {
        let table = &mut self.expected;
        let key = table.insert(tag, mask, receive);
        let list =
            if mask == FULL_MASK { &mut table.buckets[bucket(tag)] } else { &mut table.other };
        Table::push(&mut table.nodes, list, NARROW, key);
        key
    }

    /// Removes a receive that has not been matched.
    pub fn withdraw(&mut self, key: Key) -> Option<R> {
        let table = &mut self.expected;
        let Node { tag, mask, item, neighbours, .. } = table.nodes.remove(key)?;
        let list =
            if mask == FULL_MASK { &mut table.buckets[bucket(tag)] } else { &mut table.other };
        Table::unlink(&mut table.nodes, list, NARROW, neighbours[NARROW]);
        Some(item)
    }

    /// Receives that wait.
    pub fn waiting(&self) -> usize {
        self.expected.nodes.len()
    }

    /// Messages that are kept.
    pub fn kept(&self) -> usize {
        self.unexpected.nodes.len()
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
                        let got = matcher.arrive(tag);
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
                            receives.push((matcher.expect(tag, mask, name), name));
                        }
                    }
                    Step::Probe(tag, mask) => {
                        let got = matcher.find(tag, mask).and_then(|key| matcher.message(key));
                        prop_assert_eq!(got.map(|(_, &name)| name), reference.probe(tag, mask));
                    }
                    Step::Withdraw(index) if !receives.is_empty() => {
                        let (key, name) = receives[index.index(receives.len())];
                        let there = reference.withdraw(name);
                        prop_assert_eq!(matcher.withdraw(key), there.then_some(name));
                    }
                    Step::Drop(index) if !messages.is_empty() => {
                        let (key, name) = messages[index.index(messages.len())];
                        let there = reference.drop_message(name);
                        prop_assert_eq!(matcher.take(key).map(|taken| taken.1), there.then_some(name));
                    }
                    Step::Withdraw(_) | Step::Drop(_) => {}
                }
                prop_assert_eq!(matcher.waiting(), reference.receives.len());
                prop_assert_eq!(matcher.kept(), reference.messages.len());
            }
        }
    }
}
