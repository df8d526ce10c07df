//! The inputs of a run, drawn from a seed, and how to make a failing run smaller.

use std::time::Duration;

/// Users act for this long; once every deadline has passed, they close everything.
pub(crate) const USERS: Duration = Duration::from_secs(1);

/// Everything that a run depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// Things that users do.
    pub(crate) operations: usize,
    /// Of 100 control messages.
    pub(crate) lost: u8,
    pub(crate) doubled: u8,
    /// Milliseconds that a message takes at most; different ones overtake each other.
    pub(crate) delay: u64,
    /// Of 100 lanes or offers.
    pub(crate) refused: u8,
    /// Microseconds that a caller takes at most to report a result.
    pub(crate) result: u64,
    pub(crate) closes: bool,
    pub(crate) restarts: bool,
    /// Every process connects to one.
    pub(crate) star: bool,
    /// Both ends of a link open it at once.
    pub(crate) together: bool,
    pub(crate) half_open: usize,
    pub(crate) requests: usize,
    pub(crate) segment: usize,
    /// Milliseconds.
    pub(crate) deadline: u64,
    /// Milliseconds, 0 for none.
    pub(crate) liveness: u64,
    /// Links before numbers and generations wrap.
    pub(crate) wrap: u32,
}

impl Scenario {
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut sometimes = |one_in: u8, value: std::ops::RangeInclusive<u64>| {
            if rng.u8(..one_in) == 0 { rng.u64(value) } else { 0 }
        };
        let lost = sometimes(2, 1..=40) as u8;
        let doubled = sometimes(2, 1..=30) as u8;
        let delay = sometimes(2, 1..=40);
        let refused = sometimes(3, 1..=30) as u8;
        let result = sometimes(2, 1..=5000);
        let liveness = sometimes(3, 300..=1000);
        Self {
            seed,
            nodes: rng.usize(1..=5),
            operations: rng.usize(1..=40),
            lost,
            doubled,
            delay,
            refused,
            result,
            closes: rng.bool(),
            restarts: rng.u8(..3) == 0,
            star: rng.u8(..4) == 0,
            together: rng.u8(..3) == 0,
            half_open: *rng.choice(&[2, 4, 8, 64]).unwrap(),
            requests: *rng.choice(&[2, 8, 1024, 1024]).unwrap(),
            segment: *rng.choice(&[208, 300, 4096]).unwrap(),
            deadline: *rng.choice(&[200, 10_000, 10_000]).unwrap(),
            liveness,
            wrap: rng.u32(..8),
        }
    }

    /// Whether nothing in this run may make a link fail.
    pub(crate) fn is_calm(&self) -> bool {
        let peaceful = !self.closes && !self.restarts && self.refused == 0;
        peaceful && self.deadline == 10_000 && self.requests == 1024 && self.liveness == 0
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline)
    }

    /// When the users of all nodes begin to close their links.
    pub(crate) fn users_leave(&self) -> Duration {
        USERS + self.deadline() + Duration::from_secs(2)
    }

    pub(crate) fn liveness(&self) -> Option<Duration> {
        (self.liveness > 0).then(|| Duration::from_millis(self.liveness))
    }

    /// Returns the smallest scenario that this one can be reduced to and that fails as well.
    pub(crate) fn minimise(self, fails: impl Fn(&Self) -> bool) -> Self {
        let steps: [fn(Self) -> Self; 16] = [
            |s| Self { operations: s.operations / 2, ..s },
            |s| Self { operations: s.operations.saturating_sub(1), ..s },
            |s| Self { nodes: (s.nodes - 1).max(1), ..s },
            |s| Self { lost: 0, ..s },
            |s| Self { doubled: 0, ..s },
            |s| Self { delay: 0, ..s },
            |s| Self { refused: 0, ..s },
            |s| Self { result: 0, ..s },
            |s| Self { closes: false, ..s },
            |s| Self { restarts: false, ..s },
            |s| Self { star: false, ..s },
            |s| Self { together: false, ..s },
            |s| Self { half_open: 64, ..s },
            |s| Self { requests: 1024, segment: 4096, ..s },
            |s| Self { deadline: 10_000, liveness: 0, ..s },
            |s| Self { wrap: 100, ..s },
        ];
        let mut best = self;
        loop {
            let smaller = steps.iter().map(|step| step(best)).filter(|next| *next != best);
            // Another seed may need fewer operations.
            let reseeded =
                (0..20).map(|seed| Self { seed, ..best }).filter(|next| next.seed < best.seed);
            match smaller.chain(reseeded).find(|next| fails(next)) {
                Some(next) => best = next,
                None => return best,
            }
        }
    }
}
