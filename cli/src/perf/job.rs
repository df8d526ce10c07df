//! One test with all its parameters.

use crate::args::{MOST_PIECES, Sizes, TestArgs};
use crate::control::PerfPlan;
use crate::error::Error;
use crate::test::{Layout, Test};
use crate::transports::{self, Choice};
use barewire::{AtomicOperations, Flags, SHORT_HEADER, TransportId};
use std::time::Duration;

/// Size of an atomic, and the default size of a message, in bytes.
pub(super) const WORD: usize = 8;
/// Size of the smaller atomic in bytes.
pub(super) const HALF_WORD: usize = 4;
/// Defaults of ucx_perftest: header of a zcopy active message, and unacknowledged active messages
/// of a stream.
const HEADER: usize = 8;
const WINDOW: u32 = 127;
/// Default number of messages to measure, and of the warm-up.
const ITERATIONS: u64 = 100_000;
const WARM_UP: u64 = 1000;
/// Bytes to transfer in a test of a series, and its fewest and most messages.
const SERIES_BYTES: u64 = 64 << 20;
const SERIES_LEAST: u64 = 200;
const SERIES_MOST: u64 = 20_000;

/// Receives of a stream of tagged or channel messages that wait at once; the sends of
/// `ucx_perftest -t tag_bw`, too.
pub(super) const OUTSTANDING: u32 = 32;
/// Longest message of a channel over one device.
const LONGEST: usize = 1 << 30;

/// One test with all its parameters.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// The names in batch files, or the size in a series.
    pub(super) names: Vec<String>,
    pub(super) choice: Choice,
    pub(super) plan: PerfPlan,
    pub(super) warm_up: u64,
    pub(super) iterations: u64,
    /// Zero-copy and tagged sends, gets and fetching atomics in flight.
    pub(super) outstanding: u32,
    /// Rank of the percentile in the table.
    pub(super) rank: f64,
    /// Both ends are in this process.
    pub(super) loopback: bool,
    /// The test sends fewer messages if they take too long.
    pub(super) paced: bool,
}

/// Messages by which the time of a paced test is estimated: also the fewest that it sends.
const PILOT: u64 = 20;

/// The origin of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Single,
    /// One of a series, whose duration is limited.
    Series,
}

impl Job {
    /// The test of the arguments, with the way of sending that suits the size.
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
            Kind::Series => (SERIES_BYTES / size.max(1) as u64).clamp(SERIES_LEAST, SERIES_MOST),
        };
        let iterations = args.iterations.unwrap_or(scaled);
        if iterations == 0 {
            return Err(Error::Usage("there is nothing to measure in 0 iterations".into()));
        }
        let warm_up = args.warm_up.unwrap_or(WARM_UP.min(iterations / 10));
        let total = warm_up.checked_add(iterations);
        let total =
            total.ok_or_else(|| Error::Usage("the number of iterations is too large".into()))?;
        let wanted = |layout: &Layout| match args.layout {
            Some(wanted) => wanted == *layout,
            None => *layout != Layout::ShortIov,
        };
        let fits = |layout: &Layout| takes(test, *layout, sizes.len(), size, &choice);
        let Some(layout) = Layout::ALL.into_iter().filter(wanted).find(fits) else {
            return Err(Error::Usage(misfit(test, args.layout, &sizes, &choice)));
        };
        let default_outstanding =
            if matches!(test, Test::TagBw | Test::ChannelBw) { OUTSTANDING } else { 1 };
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
            outstanding: args.outstanding.unwrap_or(default_outstanding).max(1),
            rank: args.rank.unwrap_or(50.0),
            loopback: loopback || !choice.joins_processes(),
            paced: kind == Kind::Series && args.iterations.is_none(),
            choice,
        })
    }

    /// The same test with a few messages.
    pub(super) fn pilot(&self) -> Self {
        self.with_iterations(PILOT.min(self.iterations))
    }

    /// The same test with as many of its messages as `time` allows if one takes `each` seconds, but
    /// not fewer than the pilot has.
    pub(super) fn within(&self, time: Duration, each: f64) -> Self {
        let count = time.as_secs_f64() / each.max(1e-9);
        self.with_iterations((count as u64).clamp(PILOT.min(self.iterations), self.iterations))
    }

    fn with_iterations(&self, iterations: u64) -> Self {
        let warm_up = self.warm_up.min(iterations / 10);
        let total = warm_up.saturating_add(iterations);
        let plan = PerfPlan { total, ..self.plan.clone() };
        Self { plan, warm_up, iterations, ..self.clone() }
    }

    /// The divisor for latencies: 2 for ping-pongs, whose latency is half a round trip.
    pub(super) fn ways(&self) -> f64 {
        if self.plan.test.is_ping_pong() && !self.loopback { 2.0 } else { 1.0 }
    }

    /// The description of the latency in the table.
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

/// Bytes of a zcopy active message in its header.
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
    // A header that leaves less than the transport sends as zcopy is not used.
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
            "pieces of up to {longest} bytes overlap at a distance of {stride} bytes"
        ))),
        None => Err(Error::Usage(format!("a distance of {stride} bytes is too large"))),
        Some(_) => Ok(stride),
    }
}

/// Bytes from the start of the first piece to the end of the last; `None` on overflow.
pub(super) fn extent(stride: usize, sizes: &[usize]) -> Option<usize> {
    let (last, others) = sizes.split_last()?;
    let before = match stride {
        0 => others.iter().try_fold(0usize, |sum, piece| sum.checked_add(*piece))?,
        stride => stride.checked_mul(others.len())?,
    };
    before.checked_add(*last).filter(|extent| isize::try_from(*extent).is_ok())
}

/// Bytes that one end allocates for the messages of the test; `u64::MAX` on overflow.
pub(super) fn memory(plan: &PerfPlan) -> u64 {
    let sizes: Option<Vec<usize>> =
        plan.sizes.iter().map(|piece| usize::try_from(*piece).ok()).collect();
    let stride = usize::try_from(plan.stride).ok();
    let extent = stride.zip(sizes).and_then(|(stride, sizes)| extent(stride, &sizes));
    // The buffers of `Regions` and `Carrier`: the target of the peer, and the sources of zcopy,
    // active messages and puts.
    let message =
        plan.size().checked_next_multiple_of(WORD as u64).and_then(|size| size.checked_mul(3));
    extent
        .zip(message)
        .and_then(|(extent, message)| message.checked_add(extent as u64))
        .unwrap_or(u64::MAX)
}

/// Checks that this end can execute the plan.
pub(super) fn check(plan: &PerfPlan, choice: &Choice) -> Result<(), Error> {
    let sizes: Result<Vec<usize>, _> =
        plan.sizes.iter().map(|piece| usize::try_from(*piece)).collect();
    let sizes = sizes.unwrap_or_else(|_| vec![usize::MAX]);
    if sizes.len() > MOST_PIECES {
        return Err(Error::Local(format!(
            "at most {MOST_PIECES} pieces make a message, not {}",
            sizes.len()
        )));
    }
    let size = usize::try_from(plan.size()).unwrap_or(usize::MAX);
    if !takes(plan.test, plan.layout, sizes.len(), size, choice) {
        return Err(Error::Local(misfit(plan.test, Some(plan.layout), &sizes, choice)));
    }
    let first = plan.sizes.first().copied().unwrap_or(0);
    let strided = usize::try_from(plan.stride).ok().and_then(|stride| extent(stride, &sizes));
    if plan.header > first || strided.is_none() {
        return Err(Error::Local("the test's header or stride does not fit its message".into()));
    }
    Ok(())
}

/// The smallest and the largest message of `pieces` pieces that a test can send in this way, if
/// any.
fn range(test: Test, layout: Layout, pieces: usize, choice: &Choice) -> Option<(usize, usize)> {
    let attributes = &choice.attributes;
    let (am, put, get, flags) =
        (&attributes.am, &attributes.put, &attributes.get, attributes.flags);
    let zcopy = |least: usize, most: usize, max_iov: usize| {
        (pieces <= max_iov).then_some((least.max(1), most))
    };
    // The header carries the first 8 bytes of the message.
    let short = |flag: Flags| {
        flags.contains(flag).then_some((SHORT_HEADER, am.max_short.saturating_add(SHORT_HEADER)))
    };
    let (least, most) = match (test, layout) {
        (Test::AmLat | Test::AmBw, Layout::Short) => short(Flags::AM_SHORT)?,
        (Test::AmLat | Test::AmBw, Layout::ShortIov) => short(Flags::AM_SHORT_IOV)?,
        (Test::AmLat | Test::AmBw, Layout::Bcopy) => (0, am.max_bcopy),
        (Test::AmLat | Test::AmBw, Layout::Zcopy) => zcopy(am.min_zcopy, am.max_zcopy, am.max_iov)?,
        // Bcopy: by the link's threshold; zcopy: always a rendezvous.
        (Test::TagLat | Test::TagBw, Layout::Bcopy | Layout::Zcopy)
            if pieces == 1 && am.max_bcopy > 0 =>
        {
            (0, isize::MAX as usize)
        }
        (Test::ChannelLat | Test::ChannelBw, Layout::Zcopy)
            if pieces == 1 && choice.transport == TransportId::RcMlx5 =>
        {
            (0, LONGEST)
        }
        (Test::TagLat | Test::TagBw | Test::ChannelLat | Test::ChannelBw, _) => return None,
        (Test::PutLat | Test::PutBw, Layout::Short) => (1, put.max_short),
        (Test::PutLat | Test::PutBw, Layout::Bcopy) => (1, put.max_bcopy),
        (Test::PutLat | Test::PutBw, Layout::Zcopy) => {
            zcopy(put.min_zcopy, put.max_zcopy, put.max_iov)?
        }
        (Test::Get, Layout::Bcopy) => (1, get.max_bcopy),
        (Test::Get, Layout::Zcopy) => zcopy(get.min_zcopy, get.max_zcopy, get.max_iov)?,
        (_, Layout::Short) => {
            let operation = operation(test)?;
            let (half, whole) =
                (attributes.atomic32.contains(operation), attributes.atomic64.contains(operation));
            (if half { HALF_WORD } else { WORD }, if whole { WORD } else { HALF_WORD })
        }
        _ => return None,
    };
    (most > 0 && least <= most).then_some((least, most))
}

/// Returns `true` if a test can send `size` bytes in `pieces` pieces in this way.
fn takes(test: Test, layout: Layout, pieces: usize, size: usize, choice: &Choice) -> bool {
    let Some((least, most)) = range(test, layout, pieces, choice) else { return false };
    let is_word = [HALF_WORD, WORD].contains(&size);
    (least..=most).contains(&size) && (is_word || operation(test).is_none())
}

/// The atomic operation of a test.
fn operation(test: Test) -> Option<AtomicOperations> {
    match test {
        Test::AddLat | Test::AddMr => Some(AtomicOperations::ADD),
        Test::Fadd => Some(AtomicOperations::FETCH_ADD),
        Test::Swap => Some(AtomicOperations::SWAP),
        Test::Cswap => Some(AtomicOperations::COMPARE_SWAP),
        Test::AmLat
        | Test::PutLat
        | Test::Get
        | Test::AmBw
        | Test::PutBw
        | Test::TagLat
        | Test::TagBw
        | Test::ChannelLat
        | Test::ChannelBw => None,
    }
}

fn misfit(asked: Test, layout: Option<Layout>, sizes: &[usize], choice: &Choice) -> String {
    let wanted = |each: &&Layout| layout.is_none_or(|layout| layout == **each);
    let ranges = Layout::ALL.iter().filter(wanted);
    let ranges = ranges.filter_map(|layout| range(asked, *layout, sizes.len(), choice));
    let whole = ranges.reduce(|(least, most), (low, high)| (least.min(low), most.max(high)));
    let size = sizes.iter().fold(0usize, |sum, piece| sum.saturating_add(*piece));
    let (test, transport) = (asked.name(), &choice.transport);
    let by = layout.map_or(String::new(), |layout| format!(" by {layout}"));
    let pieces =
        if sizes.len() > 1 { format!(" in {} pieces", sizes.len()) } else { String::new() };
    match whole {
        Some((least, most)) if least == most => {
            format!("{test} on {transport}{by} takes {least} bytes, not {size}")
        }
        Some((least, most)) if operation(asked).is_some() => {
            format!("{test} on {transport}{by} takes {least} or {most} bytes, not {size}")
        }
        Some((least, most)) => {
            format!(
                "{test} on {transport}{by} takes messages of {least} to {most} bytes, not {size}"
            )
        }
        None => format!("transport {transport} has no {test}{by}{pieces}"),
    }
}

/// A size in the syntax of the command line.
pub(super) fn size_name(size: usize) -> String {
    match size {
        0 => "0".into(),
        size if size.is_multiple_of(1 << 20) => format!("{}M", size >> 20),
        size if size.is_multiple_of(1 << 10) => format!("{}K", size >> 10),
        size => size.to_string(),
    }
}

/// The test with this size, and named by it, as one of a series.
pub(super) fn of_size(
    size: usize,
    args: &TestArgs,
    choice: &Choice,
    loopback: bool,
) -> Result<Job, Error> {
    let test = TestArgs { sizes: Some(Sizes(vec![size])), ..args.clone() };
    Job::new(vec![size_name(size)], &test, choice.clone(), loopback, Kind::Series)
}

/// The test with each size that the transport accepts, and the reason for excluding the others.
/// Fails if the transport accepts none.
pub(super) fn series(
    sizes: &[usize],
    args: &TestArgs,
    choice: &Choice,
    loopback: bool,
) -> Result<(Vec<Job>, Option<String>), Error> {
    let (mut jobs, mut refused, mut left_out) = (Vec::new(), None, 0);
    for &size in sizes {
        match of_size(size, args, choice, loopback) {
            Ok(job) => jobs.push(job),
            Err(error) => {
                refused = Some(error);
                left_out += 1;
            }
        }
    }
    match refused {
        Some(error) if jobs.is_empty() => Err(error),
        refused => {
            let note = |error| format!("{left_out} of {} sizes left out: {error}", sizes.len());
            Ok((jobs, refused.map(note)))
        }
    }
}

/// The transport and the device of the arguments.
pub(super) fn choice(args: &TestArgs) -> Result<Choice, Error> {
    let transport = args.transport.as_deref().unwrap_or(barewire::TransportId::RcMlx5.name());
    transports::find(transport, args.device.as_deref())
}
