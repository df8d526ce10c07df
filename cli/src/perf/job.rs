//! One test with everything that it needs to be run.

use crate::args::{Layout, Sizes, Test, TestArgs};
use crate::control::PerfPlan;
use crate::error::Error;
use crate::transports::{self, Choice};
use barewire::{AtomicOperations, Flags};

/// Bytes of an atomic, and of a message that nobody gave a size.
pub(super) const WORD: usize = 8;
/// As ucx_perftest has it: the header of a zcopy active message, and unacknowledged active messages of a stream.
const HEADER: usize = 8;
const WINDOW: u32 = 127;
/// Messages to measure and to send before that.
const ITERATIONS: u64 = 100_000;
const WARM_UP: u64 = 1000;
/// Bytes of a test that is one of a series, and the fewest messages that it is made of.
const SERIES_BYTES: u64 = 64 << 20;
const SERIES_LEAST: u64 = 200;

/// One test with everything that it needs to be run.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// Its names in batch files, or its size in a series.
    pub(super) names: Vec<String>,
    pub(super) choice: Choice,
    pub(super) plan: PerfPlan,
    pub(super) warm_up: u64,
    pub(super) iterations: u64,
    /// Zero-copy sends, gets and fetching atomics in flight at once.
    pub(super) outstanding: u32,
    /// Rank of the percentile in the table.
    pub(super) rank: f64,
    /// Within this process.
    pub(super) loopback: bool,
}

/// How a job is asked for besides by its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Single,
    /// One of a series, which should end some time.
    Series,
}

impl Job {
    /// What the words ask for, with the way of sending that the size needs.
    pub(super) fn new(
        names: Vec<String>,
        args: &TestArgs,
        choice: Choice,
        loopback: bool,
        kind: Kind,
    ) -> Result<Self, Error> {
        let test = args.test.unwrap_or(Test::AmLat);
        let Sizes(sizes) = args.sizes.clone().unwrap_or_else(|| Sizes(vec![WORD]));
        let size = sizes.iter().sum::<usize>();
        let scaled = match kind {
            Kind::Single => ITERATIONS,
            Kind::Series => (SERIES_BYTES / size.max(1) as u64).clamp(SERIES_LEAST, ITERATIONS),
        };
        let iterations = args.iterations.unwrap_or(scaled);
        if iterations == 0 {
            return Err(Error::Usage("there is nothing to measure in 0 iterations".into()));
        }
        let warm_up = args.warm_up.unwrap_or(WARM_UP.min(iterations / 10));
        let total = warm_up.checked_add(iterations);
        let total = total.ok_or_else(|| Error::Usage("the number of iterations is too large".into()))?;
        let wanted = |layout: &Layout| args.layout.is_none_or(|wanted| wanted == *layout);
        let fits = |layout: &Layout| {
            range(test, *layout, sizes.len(), &choice)
                .is_some_and(|(least, most)| (least..=most).contains(&size))
        };
        let Some(layout) = Layout::ALL.into_iter().filter(wanted).find(fits) else {
            return Err(Error::Usage(misfit(test, args.layout, &sizes, &choice)));
        };
        let plan = PerfPlan {
            test,
            layout,
            header: header(test, layout, args.header, &sizes, &choice)? as u64,
            stride: stride(args.stride, &sizes)? as u64,
            sizes: sizes.into_iter().map(|piece| piece as u64).collect(),
            window: args.window.unwrap_or(WINDOW),
            passive: args.passive && test.is_one_sided(),
            total,
        };
        Ok(Self {
            names,
            plan,
            warm_up,
            iterations,
            outstanding: args.outstanding.unwrap_or(0).max(1),
            rank: args.rank.unwrap_or(50.0),
            loopback: loopback || !choice.joins_processes(),
            choice,
        })
    }

    /// What of an iteration's time counts as latency: of a ping-pong's round trip one way.
    pub(super) fn ways(&self) -> f64 {
        if self.plan.test.is_ping_pong() && !self.loopback { 2.0 } else { 1.0 }
    }

    /// What the table's latency is the time of.
    pub(super) fn latency_is(&self) -> &'static str {
        match self.plan.test {
            test if test.is_stream() => "time per message of the stream",
            test if test.is_ping_pong() && self.loopback => "one way, within this process",
            test if test.is_ping_pong() => "half a round trip",
            _ if self.outstanding > 1 => "time per operation",
            _ => "from the post to the completion",
        }
    }
}

/// The bytes of a zcopy active message that are its header.
fn header(
    test: Test,
    layout: Layout,
    asked: Option<usize>,
    sizes: &[usize],
    choice: &Choice,
) -> Result<usize, Error> {
    if layout != Layout::Zcopy || !matches!(test, Test::AmLat | Test::AmBw) {
        return Ok(0);
    }
    let am = &choice.attributes.am;
    let payload = |header: usize| sizes.iter().sum::<usize>() - header;
    // A header that leaves less than the transport sends as zcopy is no header.
    let most = sizes.first().copied().unwrap_or(0).min(am.max_header);
    match asked {
        None if payload(HEADER.min(most)) < am.min_zcopy.max(1) => Ok(0),
        None => Ok(HEADER.min(most)),
        Some(header) if header <= most && payload(header) >= am.min_zcopy => Ok(header),
        Some(header) => Err(Error::Usage(format!(
            "a header of {header} bytes fits neither the message's first piece nor the {} bytes that {} takes",
            am.max_header, choice.transport
        ))),
    }
}

fn stride(asked: Option<usize>, sizes: &[usize]) -> Result<usize, Error> {
    let stride = asked.unwrap_or(0);
    let longest = sizes.iter().copied().max().unwrap_or(0);
    match extent(stride, sizes) {
        _ if stride != 0 && stride < longest => Err(Error::Usage(format!(
            "pieces of up to {longest} bytes lie on each other when they begin every {stride} bytes"
        ))),
        None => Err(Error::Usage(format!("a distance of {stride} bytes is too large"))),
        Some(_) => Ok(stride),
    }
}

/// Bytes from the first piece's beginning to the last one's end; not more than an address can count.
pub(super) fn extent(stride: usize, sizes: &[usize]) -> Option<usize> {
    let (last, others) = sizes.split_last()?;
    let before = match stride {
        0 => others.iter().try_fold(0usize, |sum, piece| sum.checked_add(*piece))?,
        stride => stride.checked_mul(others.len())?,
    };
    before.checked_add(*last).filter(|extent| isize::try_from(*extent).is_ok())
}

/// Refuses a plan that this end cannot follow.
pub(super) fn check(plan: &PerfPlan, choice: &Choice) -> Result<(), Error> {
    let sizes: Result<Vec<usize>, _> = plan.sizes.iter().map(|piece| usize::try_from(*piece)).collect();
    let sizes = sizes.unwrap_or_else(|_| vec![usize::MAX]);
    let size = usize::try_from(plan.size()).unwrap_or(usize::MAX);
    match range(plan.test, plan.layout, sizes.len(), choice) {
        Some((least, most)) if (least..=most).contains(&size) => {}
        _ => return Err(Error::Local(misfit(plan.test, Some(plan.layout), &sizes, choice))),
    }
    let first = plan.sizes.first().copied().unwrap_or(0);
    let strided = usize::try_from(plan.stride).ok().and_then(|stride| extent(stride, &sizes));
    if plan.header > first || strided.is_none() {
        return Err(Error::Local("the test's header or stride does not fit its message".into()));
    }
    Ok(())
}

/// The smallest and the largest message of so many pieces that a test can send in this way, if it can.
fn range(test: Test, layout: Layout, pieces: usize, choice: &Choice) -> Option<(usize, usize)> {
    let attributes = &choice.attributes;
    let (am, put, get) = (&attributes.am, &attributes.put, &attributes.get);
    let zcopy =
        |least: usize, most: usize, max_iov: usize| (pieces <= max_iov).then_some((least.max(1), most));
    let (least, most) = match (test, layout) {
        // The header carries the first 8 bytes of the message.
        (Test::AmLat | Test::AmBw, Layout::Short) if attributes.flags.contains(Flags::AM_SHORT) => {
            (WORD, am.max_short.saturating_add(WORD))
        }
        (Test::AmLat | Test::AmBw, Layout::Bcopy) => (0, am.max_bcopy),
        (Test::AmLat | Test::AmBw, Layout::Zcopy) => zcopy(am.min_zcopy, am.max_zcopy, am.max_iov)?,
        (Test::PutLat | Test::PutBw, Layout::Short) => (1, put.max_short),
        (Test::PutLat | Test::PutBw, Layout::Bcopy) => (1, put.max_bcopy),
        (Test::PutLat | Test::PutBw, Layout::Zcopy) => zcopy(put.min_zcopy, put.max_zcopy, put.max_iov)?,
        (Test::Get, Layout::Bcopy) => (1, get.max_bcopy),
        (Test::Get, Layout::Zcopy) => zcopy(get.min_zcopy, get.max_zcopy, get.max_iov)?,
        (test, Layout::Short) if attributes.atomic64.contains(operation(test)?) => (WORD, WORD),
        _ => return None,
    };
    (most > 0 && least <= most).then_some((least, most))
}

fn operation(test: Test) -> Option<AtomicOperations> {
    match test {
        Test::AddLat | Test::AddMr => Some(AtomicOperations::ADD),
        Test::Fadd => Some(AtomicOperations::FETCH_ADD),
        Test::Cswap => Some(AtomicOperations::COMPARE_SWAP),
        _ => None,
    }
}

fn misfit(test: Test, layout: Option<Layout>, sizes: &[usize], choice: &Choice) -> String {
    let wanted = |each: &&Layout| layout.is_none_or(|layout| layout == **each);
    let ranges = Layout::ALL.iter().filter(wanted);
    let ranges = ranges.filter_map(|layout| range(test, *layout, sizes.len(), choice));
    let whole = ranges.reduce(|(least, most), (low, high)| (least.min(low), most.max(high)));
    let size = sizes.iter().fold(0usize, |sum, piece| sum.saturating_add(*piece));
    let (test, transport) = (test.name(), &choice.transport);
    let by = layout.map_or(String::new(), |layout| format!(" by {layout}"));
    let pieces = if sizes.len() > 1 { format!(" in {} pieces", sizes.len()) } else { String::new() };
    match whole {
        Some((least, most)) if least == most => {
            format!("{test} on {transport}{by} takes {least} bytes, not {size}")
        }
        Some((least, most)) => {
            format!("{test} on {transport}{by} takes messages of {least} to {most} bytes, not {size}")
        }
        None => format!("transport {transport} has no {test}{by}{pieces}"),
    }
}

/// A test with each of these sizes that the transport takes; with it the reason for the others. It is an error if it takes none.
pub(super) fn series(
    sizes: &[usize],
    args: &TestArgs,
    choice: &Choice,
    loopback: bool,
) -> Result<(Vec<Job>, Option<String>), Error> {
    let (mut jobs, mut refused) = (Vec::new(), None);
    for &size in sizes {
        let test = TestArgs { sizes: Some(Sizes(vec![size])), ..args.clone() };
        match Job::new(vec![size.to_string()], &test, choice.clone(), loopback, Kind::Series) {
            Ok(job) => jobs.push(job),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if jobs.is_empty() => Err(error),
        refused => Ok((jobs, refused.map(|error| error.to_string()))),
    }
}

/// The transport and the device that the words name.
pub(super) fn choice(args: &TestArgs) -> Result<Choice, Error> {
    let transport = args.transport.as_deref().unwrap_or(barewire::transport::rc_mlx5::NAME);
    transports::find(transport, args.device.as_deref())
}
