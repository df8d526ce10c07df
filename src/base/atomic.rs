//! Atomic operations on words of 4 and 8 bytes, as values.

use crate::base::attributes::AtomicOperations;
use crate::base::capability::{Atomics, RemoteMemory};
use crate::base::completion::{Completion, FetchResult};
use crate::base::error::PostError;
use crate::base::status::Post;

/// A word that atomics work on: `u32` or `u64`.
pub trait AtomicWord: Copy + Into<u64> + sealed::Sealed {}

impl AtomicWord for u32 {}
impl AtomicWord for u64 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// An atomic change of a word.
///
/// ```
/// # use barewire::*;
/// # let mut worker = Worker::new();
/// # let domain = Domain::open(&"self/memory".parse()?)?;
/// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// # let endpoint = interface.connect(&interface.address())?;
/// # let memory = domain.allocate(8, Access::all())?;
/// # let key = domain.unpack_key(&memory.pack_key())?;
/// # let remote = memory.address();
/// let result = FetchResult::new();
/// endpoint.atomic_post(AtomicOp::Or(0x11_u32), remote, &key)?;
/// let _ = endpoint.atomic_fetch(AtomicOp::Swap(7_u32), remote, &key, &result, None)?;
/// assert_eq!(result.get(), 0x11);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicOp<W> {
    /// Adds, wrapping around.
    Add(W),
    /// Bitwise and.
    And(W),
    /// Bitwise or.
    Or(W),
    /// Bitwise exclusive or.
    Xor(W),
    /// Replaces the word. Only with a result.
    Swap(W),
    /// Replaces the word with `swap` if it equals `compare`. Only with a result.
    CompareSwap {
        /// The expected value.
        compare: W,
        /// The new value.
        swap: W,
    },
}

impl AtomicOp<u64> {
    /// Adds to a word of 8 bytes: [`Add`](Self::Add) of a literal would be one of `i32`, which is no
    /// atomic word.
    pub const fn add(operand: u64) -> Self {
        Self::Add(operand)
    }
}

impl<W: AtomicWord> AtomicOp<W> {
    #[inline(always)]
    pub(crate) fn change(self) -> Change {
        let (kind, operand, compare) = match self {
            Self::Add(operand) => (Kind::Add, operand.into(), 0),
            Self::And(operand) => (Kind::And, operand.into(), 0),
            Self::Or(operand) => (Kind::Or, operand.into(), 0),
            Self::Xor(operand) => (Kind::Xor, operand.into(), 0),
            Self::Swap(operand) => (Kind::Swap, operand.into(), 0),
            Self::CompareSwap { compare, swap } => (Kind::CompareSwap, swap.into(), compare.into()),
        };
        Change { kind, width: size_of::<W>(), operand, compare }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Add,
    And,
    Or,
    Xor,
    Swap,
    CompareSwap,
}

/// An [`AtomicOp`] on a word of either width.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    /// Bytes of the word: 4 or 8.
    pub(crate) width: usize,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

impl Change {
    /// Returns the new value of a word with the value `old`. For a 4-byte word, the low half
    /// counts.
    pub(crate) fn apply(self, old: u64) -> u64 {
        match self.kind {
            Kind::Add => old.wrapping_add(self.operand),
            Kind::And => old & self.operand,
            Kind::Or => old | self.operand,
            Kind::Xor => old ^ self.operand,
            Kind::Swap => self.operand,
            Kind::CompareSwap if old == self.compare => self.operand,
            Kind::CompareSwap => old,
        }
    }

    /// Returns what the transport must support. `None` for a swap without result, which does not
    /// exist.
    #[inline(always)]
    pub(crate) fn need(self, fetch: bool) -> Option<AtomicOperations> {
        Some(match (self.kind, fetch) {
            (Kind::Add, false) => AtomicOperations::ADD,
            (Kind::And, false) => AtomicOperations::AND,
            (Kind::Or, false) => AtomicOperations::OR,
            (Kind::Xor, false) => AtomicOperations::XOR,
            (Kind::Add, true) => AtomicOperations::FETCH_ADD,
            (Kind::And, true) => AtomicOperations::FETCH_AND,
            (Kind::Or, true) => AtomicOperations::FETCH_OR,
            (Kind::Xor, true) => AtomicOperations::FETCH_XOR,
            (Kind::Swap, true) => AtomicOperations::SWAP,
            (Kind::CompareSwap, true) => AtomicOperations::COMPARE_SWAP,
            (Kind::Swap | Kind::CompareSwap, false) => return None,
        })
    }
}

/// Where a fetching atomic stores the old value, and the completion that counts it.
pub(crate) type Fetch<'a> = Option<(&'a FetchResult, Option<&'a Completion>)>;

/// An endpoint that can change words of remote memory.
pub(crate) trait ChangeWord: RemoteMemory {
    /// Changes the word at `remote`, and stores its old value in `fetch`, if given. Without `fetch`
    /// the caller has nothing to wait for.
    fn change(&self, change: Change, remote: u64, key: &Self::Key, fetch: Fetch<'_>) -> Post;
}

impl<E: ChangeWord> Atomics for E {
    #[inline(always)]
    fn atomic_post<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &Self::Key,
    ) -> Result<(), PostError> {
        self.change(op.change(), remote, key, None).map(drop)
    }

    #[inline(always)]
    fn atomic_fetch<W: AtomicWord>(
        &self,
        op: AtomicOp<W>,
        remote: u64,
        key: &Self::Key,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.change(op.change(), remote, key, Some((result, completion)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_as_their_operation_says() {
        let apply = |op: AtomicOp<u64>| op.change().apply(0b1100);
        assert_eq!(apply(AtomicOp::Add(u64::MAX)), 0b1011);
        assert_eq!(apply(AtomicOp::And(0b0110)), 0b0100);
        assert_eq!(apply(AtomicOp::Or(0b0110)), 0b1110);
        assert_eq!(apply(AtomicOp::Xor(0b0110)), 0b1010);
        assert_eq!(apply(AtomicOp::Swap(5)), 5);
        assert_eq!(apply(AtomicOp::CompareSwap { compare: 0b1100, swap: 5 }), 5);
        assert_eq!(apply(AtomicOp::CompareSwap { compare: 0, swap: 5 }), 0b1100);
        // For 4-byte words only the low half counts.
        assert_eq!(AtomicOp::Add(1_u32).change().apply(u32::MAX.into()) as u32, 0);
        assert_eq!(AtomicOp::Swap(1_u32).change().need(false), None);
    }
}
