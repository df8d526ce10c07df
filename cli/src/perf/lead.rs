//! The initiator of a test, which measures.

use super::carrier::{Carrier, Regions};
use super::channels::Channels;
use super::figures::Recorder;
use super::job::{Job, WORD};
use super::messages;
use super::tagged::Tagged;
use crate::error::Error;
use crate::session::{Remote, Session};
use crate::test::{Layout, Test};
use barewire::{AtomicOp, Completion, FetchResult, Unpack};

/// Runs the test of the job and times every iteration.
pub(super) fn run(session: &mut Session<'_>, recorder: &mut Recorder<'_, '_>) -> Result<(), Error> {
    let job = recorder.job();
    let plan = &job.plan;
    if plan.test.is_tagged() {
        let tagged = Tagged::open(session, plan, true)?;
        return messages::lead(session, recorder, tagged);
    }
    if plan.test.is_channel() {
        let channels = Channels::open(session, plan)?;
        return messages::lead(session, recorder, channels);
    }
    let during = plan.test.name();
    let regions = Regions::allocate(session, plan)?;
    let mut carrier = Carrier::open(session, &regions, plan)?;
    let in_flight = InFlight::new(job);

    recorder.begin()?;
    match plan.test {
        Test::AmLat => {
            for number in 0..plan.total {
                recorder.before()?;
                carrier.send(session, None, during)?;
                recorder.in_flight(number);
                carrier.receive(session, number + 1, during)?;
            }
            recorder.iteration(plan.total)?;
        }
        Test::AmBw => {
            let window = if plan.window == 0 { u64::MAX } else { plan.window.into() };
            for number in 0..plan.total {
                if number >= window {
                    carrier.acknowledged(session, number + 1 - window, during)?;
                }
                in_flight.room(session, during)?;
                carrier.send(session, in_flight.completion(), during)?;
                recorder.message(number)?;
            }
            carrier.acknowledged(session, plan.total, during)?;
        }
        Test::PutLat => {
            for number in 0..plan.total {
                let mark = (number + 1) as u8;
                recorder.before()?;
                carrier.put(session, mark, None, during)?;
                recorder.in_flight(number);
                carrier.marked(session, mark, during)?;
            }
            recorder.iteration(plan.total)?;
        }
        Test::AddLat => {
            for number in 0..plan.total {
                recorder.before()?;
                add(session, &carrier, during)?;
                recorder.in_flight(number);
                carrier.marked(session, (number + 1) as u8, during)?;
            }
            recorder.iteration(plan.total)?;
        }
        Test::PutBw => {
            for number in 0..plan.total {
                in_flight.room(session, during)?;
                carrier.put(session, 0, in_flight.completion(), during)?;
                recorder.message(number)?;
            }
            session.flush(during, plan.size())?;
        }
        Test::AddMr => {
            for number in 0..plan.total {
                add(session, &carrier, during)?;
                recorder.message(number)?;
            }
            session.flush(during, plan.size())?;
        }
        Test::Get => gets(session, &carrier, &in_flight, recorder)?,
        Test::Fadd | Test::Swap | Test::Cswap => atomics(session, &carrier, &in_flight, recorder)?,
        Test::TagLat | Test::TagBw | Test::ChannelLat | Test::ChannelBw => {}
    }
    recorder.end();
    session.flush(during, plan.size())?;
    if !session.wait.is_loopback() {
        session.wait.barrier("the end of the test")?;
    }
    Ok(())
}

/// Adds one to the peer's word.
pub(super) fn add(
    session: &mut Session<'_>,
    carrier: &Carrier<'_>,
    during: &str,
) -> Result<(), Error> {
    let (endpoint, Remote { address, key }) = (&session.endpoint, &carrier.remote);
    if carrier.size == WORD {
        session.wait.post(during, || endpoint.atomic_post(AtomicOp::Add(1_u64), *address, key))
    } else {
        session.wait.post(during, || endpoint.atomic_post(AtomicOp::Add(1_u32), *address, key))
    }
}

/// Posted operations that are not complete, with a limit on their number.
struct InFlight {
    completion: Completion,
    most: u32,
    /// Size of one in bytes.
    size: u64,
    /// Only zcopy operations have completions to wait for.
    is_counted: bool,
}

impl InFlight {
    fn new(job: &Job) -> Self {
        Self {
            completion: Completion::counter(),
            most: job.outstanding,
            size: job.plan.size(),
            is_counted: job.plan.layout == Layout::Zcopy,
        }
    }

    fn completion(&self) -> Option<&Completion> {
        self.is_counted.then_some(&self.completion)
    }

    /// Waits until another one may be posted.
    #[inline]
    fn room(&self, session: &mut Session<'_>, during: &str) -> Result<(), Error> {
        self.down_to(session, self.most as usize - 1, during)
    }

    /// Waits until at most `left` are outstanding.
    #[inline]
    fn down_to(&self, session: &mut Session<'_>, left: usize, during: &str) -> Result<(), Error> {
        if self.completion.pending() <= left {
            return Ok(());
        }
        session.wait.complete_down_to(
            during,
            &self.completion,
            left,
            self.size * u64::from(self.most),
        )
    }
}

fn gets(
    session: &mut Session<'_>,
    carrier: &Carrier<'_>,
    in_flight: &InFlight,
    recorder: &mut Recorder<'_, '_>,
) -> Result<(), Error> {
    let during = Test::Get.name();
    let unpack = Unpack::new(|bytes| {
        std::hint::black_box(bytes);
    });
    let Remote { address, key } = &carrier.remote;
    let completion = &in_flight.completion;
    for number in 0..recorder.job().plan.total {
        let (endpoint, size) = (&session.endpoint, carrier.size);
        let _ = if carrier.layout == Layout::Bcopy {
            let post = || endpoint.get_bcopy(&unpack, size, *address, key, Some(completion));
            session.wait.post(during, post)?
        } else {
            let post = || endpoint.get_zcopy(&carrier.pieces, *address, key, Some(completion));
            session.wait.post(during, post)?
        };
        in_flight.room(session, during)?;
        recorder.iteration(number)?;
    }
    in_flight.down_to(session, 0, during)
}

/// The word starts at zero and only this test changes it, so every old value is known unless
/// several operations are in flight.
fn atomics(
    session: &mut Session<'_>,
    carrier: &Carrier<'_>,
    in_flight: &InFlight,
    recorder: &mut Recorder<'_, '_>,
) -> Result<(), Error> {
    let (test, total) = (recorder.job().plan.test, recorder.job().plan.total);
    let during = test.name();
    let result = FetchResult::new();
    let Remote { address, key } = &carrier.remote;
    let completion = &in_flight.completion;
    for number in 0..total {
        let (endpoint, completion, next) = (&session.endpoint, Some(completion), number + 1);
        let _ = session.wait.post(during, || match (test, carrier.size == WORD) {
            (Test::Fadd, true) => {
                endpoint.atomic_fetch(AtomicOp::Add(1_u64), *address, key, &result, completion)
            }
            (Test::Cswap, true) => endpoint.atomic_fetch(
                AtomicOp::CompareSwap { compare: number, swap: next },
                *address,
                key,
                &result,
                completion,
            ),
            (_, true) => {
                endpoint.atomic_fetch(AtomicOp::Swap(next), *address, key, &result, completion)
            }
            (_, false) => {
                endpoint.atomic_fetch(half_word(test, number), *address, key, &result, completion)
            }
        })?;
        in_flight.room(session, during)?;
        let expected = if carrier.size == WORD { number } else { number & u64::from(u32::MAX) };
        if in_flight.most == 1 && result.get() != expected {
            let found = result.get();
            return Err(Error::Mismatch(format!(
                "{during} {number} fetched {found} instead of {expected}"
            )));
        }
        recorder.iteration(number)?;
    }
    in_flight.down_to(session, 0, during)
}

/// The operation of the test on a 32-bit word that counts operations.
fn half_word(test: Test, number: u64) -> AtomicOp<u32> {
    let (compare, swap) = (number as u32, (number + 1) as u32);
    match test {
        Test::Fadd => AtomicOp::Add(1),
        Test::Cswap => AtomicOp::CompareSwap { compare, swap },
        _ => AtomicOp::Swap(swap),
    }
}
