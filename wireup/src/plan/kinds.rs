//! What lanes are for.

use std::fmt;

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Active messages; one lane, so that they are delivered in order.
    Messages,
    /// Messages of the wire-up itself; one lane that connects to an interface.
    Control,
    /// Small puts and gets; one lane.
    Memory,
    /// Atomics; one lane.
    Atomics,
    /// Large zero-copy puts and gets; several lanes of one transport, the rails.
    Bulk,
}

impl Kind {
    /// Every kind, in the order in which a plan chooses.
    pub const ALL: [Self; 5] =
        [Self::Messages, Self::Control, Self::Memory, Self::Atomics, Self::Bulk];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Control => "control",
            Self::Memory => "memory",
            Self::Atomics => "atomics",
            Self::Bulk => "bulk",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ALL: Self = Self(0b1_1111);

    /// The set of one kind.
    pub const fn of(kind: Kind) -> Self {
        Self(1 << kind as u8)
    }

    /// With another kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The kinds that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Has the kind.
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Has no kind.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in it.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }

    /// The byte in an OFFER.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set with this byte, or `None` if it names kinds that this library does not know.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Kind::name).collect();
        f.pad(&names.join(" "))
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// What the user of a link will do with it.
///
/// ```
/// use barewire_wireup::plan::{Kind, Needs};
///
/// let needs = Needs::default().require(Kind::Bulk);
/// assert!(needs.required.contains(Kind::Messages) && needs.required.contains(Kind::Bulk));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Needs {
    /// Kinds without which the link is of no use. Messages are always among them.
    pub required: Kinds,
    /// Kinds that get lanes if there are any.
    pub wanted: Kinds,
    /// Every atomic operation, not only add, fetch-add and compare-swap of 8 bytes.
    pub all_atomics: bool,
    /// A thread has to be able to sleep until something happens.
    pub events: bool,
    /// The end of the peer has to be reported by each lane.
    pub peer_failure: bool,
}

/// Messages are required, and everything else is used where it exists.
impl Default for Needs {
    fn default() -> Self {
        Self {
            required: Kinds::of(Kind::Messages),
            wanted: Kinds::ALL,
            all_atomics: false,
            events: false,
            peer_failure: false,
        }
    }
}

impl Needs {
    /// Messages alone.
    pub fn messages() -> Self {
        Self { wanted: Kinds::of(Kind::Messages), ..Self::default() }
    }

    /// With another kind that is required.
    #[must_use]
    pub fn require(self, kind: Kind) -> Self {
        Self { required: self.required.with(kind), wanted: self.wanted.with(kind), ..self }
    }

    /// The word in an OFFER.
    pub fn bits(self) -> u32 {
        let flags = [self.all_atomics, self.events, self.peer_failure];
        let flags = flags.iter().zip(16..).map(|(flag, bit)| u32::from(*flag) << bit).sum::<u32>();
        u32::from(self.required.bits()) | u32::from(self.wanted.bits()) << 8 | flags
    }

    /// The needs with this word; bits of newer versions are ignored.
    pub fn from_bits(bits: u32) -> Self {
        let kinds = |shift: u32| Kinds((bits >> shift) as u8 & Kinds::ALL.0);
        Self {
            required: kinds(0).with(Kind::Messages),
            wanted: kinds(8),
            all_atomics: bits & 1 << 16 != 0,
            events: bits & 1 << 17 != 0,
            peer_failure: bits & 1 << 18 != 0,
        }
    }
}
