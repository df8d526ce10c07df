//! The instruction budget of each operation: the only place with limits, aims and floors.
//!
//! The benches take their hard limits from here, and `cargo xtask bench` the table that it writes.

mod api;
mod channel;
mod datagrams;
mod driver;
mod dynamic;
mod link;
mod shm;
mod tags;

/// Operations in a loop, so that the cost of set-up is negligible.
pub(crate) const ROUNDS: u64 = 1024;
/// WQEs in a batch.
pub(crate) const BATCH: u64 = 16;
/// Instructions to enter and leave a loop, which the limits of an operation do not include.
const ENTRY: u64 = 64;

/// The bench binaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The mlx5 driver, over queues in plain memory.
    Driver,
    /// The transport API over `rc_mlx5`.
    Api,
    /// Messages over `ud_mlx5`.
    Datagrams,
    /// Operations over `dc_mlx5`.
    Dynamic,
    /// Tagged messages over `rc_mlx5`.
    Tags,
    /// The transport API over `shm`.
    Shm,
    /// Links of `barewire-wireup` over `shm`, and their endpoints.
    Link,
    /// Channels over the software HCA.
    Channel,
}

impl Level {
    /// Every bench binary.
    #[allow(dead_code, reason = "for the table that xtask writes")]
    pub(crate) const ALL: [Self; 8] = [
        Self::Driver,
        Self::Api,
        Self::Datagrams,
        Self::Dynamic,
        Self::Tags,
        Self::Shm,
        Self::Link,
        Self::Channel,
    ];

    /// The name of the binary.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Api => "api",
            Self::Datagrams => "datagrams",
            Self::Dynamic => "dynamic",
            Self::Tags => "tags",
            Self::Shm => "shm",
            Self::Link => "link",
            Self::Channel => "channel",
        }
    }
}

/// The form of a measured operation, which is also the name of the group of benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One function that is never inlined, with all values at run time, including call and return.
    Held,
    /// Inlined into the loop.
    Inlined,
}

impl Shape {
    /// The name of the group.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Inlined => "inlined",
        }
    }
}

/// The budget of one bench.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) level: Level,
    pub(crate) shape: Shape,
    /// The bench's function.
    pub(crate) bench: &'static str,
    /// The operation as text; the key of the counts of other libraries.
    pub(crate) operation: &'static str,
    /// Operations in one run of the bench.
    pub(crate) operations: u64,
    /// With fewer instructions per operation, the compiler has removed the body.
    pub(crate) floor: u64,
    /// The limit that the bench enforces: [`Self::must`], or slightly more than the current count.
    pub(crate) limit: u64,
    /// The required maximum for an operation.
    pub(crate) must: Option<u64>,
    /// The desired value.
    pub(crate) aim: Option<u64>,
    /// The count includes work that follows the clock: on a slower machine, more of it falls into
    /// the same number of rounds. So the limit may be above a requirement that is met.
    pub(crate) follows_clock: bool,
}

/// The limits of one operation in one shape, in instructions; see [`Budget`].
#[derive(Clone, Copy, Debug)]
struct Limit {
    floor: u64,
    most: u64,
    must: Option<u64>,
    aim: Option<u64>,
    follows_clock: bool,
}

/// Limits without a requirement: `most` guards what has been reached.
const fn limit(floor: u64, most: u64) -> Limit {
    Limit { floor, most, must: None, aim: None, follows_clock: false }
}

impl Limit {
    /// The requirement is met, and is the limit.
    const fn must(self, must: u64) -> Self {
        Self { must: Some(must), most: must, ..self }
    }

    /// The requirement is met: `most`, which is less, guards what has been reached.
    const fn met(self, must: u64) -> Self {
        assert!(self.most <= must, "a limit above the requirement");
        Self { must: Some(must), ..self }
    }

    /// The requirement is met on a fast machine; see [`Budget::follows_clock`].
    const fn met_by_clock(self, must: u64) -> Self {
        Self { must: Some(must), follows_clock: true, ..self }
    }

    /// The requirement is not met: `most` guards what has been reached.
    const fn missed(self, must: u64) -> Self {
        assert!(self.most >= must, "a limit below a requirement that is missed");
        Self { must: Some(must), ..self }
    }

    const fn aim(self, aim: u64) -> Self {
        Self { aim: Some(aim), ..self }
    }
}

impl Budget {
    const fn new(
        (level, shape): (Level, Shape),
        bench: &'static str,
        operation: &'static str,
        operations: u64,
        Limit { floor, most: limit, must, aim, follows_clock }: Limit,
    ) -> Self {
        Self { level, shape, bench, operation, operations, floor, limit, must, aim, follows_clock }
    }

    /// The budgets of one operation in both shapes, held and inlined.
    const fn both(
        level: Level,
        bench: &'static str,
        operation: &'static str,
        operations: u64,
        (held, inlined): (Limit, Limit),
    ) -> [Self; 2] {
        [
            Self::new((level, Shape::Held), bench, operation, operations, held),
            Self::new((level, Shape::Inlined), bench, operation, operations, inlined),
        ]
    }

    /// Most instructions that a run of the bench may count.
    pub(crate) const fn hard_limit(&self) -> u64 {
        self.hard(self.limit)
    }

    /// Returns whether a run with this many instructions meets the requirement, if there is one.
    pub(crate) fn holds_must(&self, instructions: u64) -> bool {
        self.must.is_none_or(|must| instructions <= self.hard(must))
    }

    const fn hard(&self, limit: u64) -> u64 {
        limit * self.operations + ENTRY
    }
}

/// Every bench.
pub(crate) fn all() -> impl Iterator<Item = &'static Budget> {
    let both = driver::BUDGETS.as_flattened().iter().chain(api::BUDGETS.as_flattened());
    let both = both.chain(datagrams::BUDGETS).chain(dynamic::BUDGETS).chain(tags::BUDGETS);
    both.chain(shm::BUDGETS).chain(link::BUDGETS).chain(channel::BUDGETS)
}

/// Two benches whose difference is limited as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Difference {
    pub(crate) operation: &'static str,
    pub(crate) level: Level,
    pub(crate) shape: Shape,
    /// The more expensive bench.
    pub(crate) bench: &'static str,
    /// The bench to compare with.
    pub(crate) minus: &'static str,
    pub(crate) limit: u64,
    pub(crate) must: u64,
    pub(crate) aim: u64,
}

/// Every difference.
pub(crate) fn differences() -> impl Iterator<Item = &'static Difference> {
    api::DIFFERENCES.iter().chain(link::DIFFERENCES)
}
