//! The side that measures.

use super::carrier::Carrier;
use super::report::Report;
use super::{RECEIVED, WORD};
use crate::args::Test;
use crate::control::Layout;
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use barewire::{Completion, FetchResult, Posted, Unpack};
use std::cell::Cell;
use std::rc::Rc;

/// Runs the test of the plan and times every iteration.
pub(super) fn run(session: &mut Session<'_>, report: &mut Report<'_>) -> Result<(), Error> {
    let plan = report.plan().clone();
    let during = plan.test.name();
    let acknowledged = Rc::new(Cell::new(false));
    let flag = Rc::clone(&acknowledged);
    session
        .interface
        .set_handler(RECEIVED, move |_| flag.set(true))
        .map_err(|error| local(during, &error))?;
    let mut carrier = Carrier::open(session, &plan)?;

    report.begin();
    match plan.test {
        Test::AmLat => {
            for number in 0..plan.total {
                carrier.send(session, during)?;
                carrier.receive(session, number + 1, during)?;
                report.iteration(number)?;
            }
        }
        Test::AmBw => {
            for number in 0..plan.total {
                carrier.send(session, during)?;
                report.message(number)?;
            }
            if session.wait.is_loopback() {
                carrier.receive(session, plan.total, during)?;
            } else {
                session.wait.until(during, || Ok(acknowledged.get().then_some(())))?;
            }
        }
        Test::PutLat => {
            for number in 0..plan.total {
                let mark = (number + 1) as u8;
                carrier.put(session, mark, during)?;
                carrier.marked(session, mark, during)?;
                report.iteration(number)?;
            }
        }
        Test::PutBw => {
            for number in 0..plan.total {
                carrier.put(session, 0, during)?;
                report.message(number)?;
            }
            session.flush(during, plan.size)?;
        }
        Test::Add => {
            let Remote { address, key } = carrier.remote.clone();
            for number in 0..plan.total {
                let endpoint = &session.endpoint;
                let _ = session.wait.post(during, || endpoint.atomic_add64(1, address, &key))?;
                report.message(number)?;
            }
            session.flush(during, plan.size)?;
        }
        Test::Get => gets(session, &carrier, plan.total, report)?,
        Test::Fadd | Test::Cswap => atomics(session, &carrier, plan.test, plan.total, report)?,
    }
    report.end();
    session.flush(during, plan.size)?;
    if !session.wait.is_loopback() {
        session.wait.barrier("the end of the test")?;
    }
    Ok(())
}

fn gets(
    session: &mut Session<'_>,
    carrier: &Carrier,
    total: u64,
    report: &mut Report<'_>,
) -> Result<(), Error> {
    let during = Test::Get.name();
    let completion = Completion::counter(0);
    let unpack = Unpack::new(|bytes| {
        std::hint::black_box(bytes);
    });
    let Remote { address, key } = &carrier.remote;
    for number in 0..total {
        completion.add(1);
        let (endpoint, size) = (&session.endpoint, carrier.size);
        let posted = if carrier.layout == Layout::Bcopy {
            let post = || endpoint.get_bcopy(&unpack, size, *address, key, Some(&completion));
            session.wait.post(during, post)?
        } else {
            let slice = carrier.own.slice(0, size).map_err(|error| local(during, &error))?;
            let post = || endpoint.get_zcopy(&[slice], *address, key, Some(&completion));
            session.wait.post(during, post)?
        };
        finish(session, &completion, posted, size, during)?;
        report.iteration(number)?;
    }
    Ok(())
}

/// The word is zero at first, and nobody else touches it: every old value is known.
fn atomics(
    session: &mut Session<'_>,
    carrier: &Carrier,
    test: Test,
    total: u64,
    report: &mut Report<'_>,
) -> Result<(), Error> {
    let during = test.name();
    let completion = Completion::counter(0);
    let result = FetchResult::new();
    let Remote { address, key } = &carrier.remote;
    for number in 0..total {
        completion.add(1);
        let (endpoint, completion) = (&session.endpoint, &completion);
        let posted = session.wait.post(during, || {
            if test == Test::Fadd {
                endpoint.atomic_fetch_add64(1, *address, key, &result, Some(completion))
            } else {
                let next = number + 1;
                endpoint.atomic_compare_swap64(number, next, *address, key, &result, Some(completion))
            }
        })?;
        finish(session, completion, posted, WORD, during)?;
        if result.get() != number {
            let found = result.get();
            return Err(Error::Mismatch(format!("{during} {number} fetched {found} instead of {number}")));
        }
        report.iteration(number)?;
    }
    Ok(())
}

/// Waits for the one operation that `completion` was armed for.
fn finish(
    session: &mut Session<'_>,
    completion: &Completion,
    posted: Posted,
    size: usize,
    during: &str,
) -> Result<(), Error> {
    match posted {
        Posted::Done => {
            completion.count_down(Ok(()));
            Ok(())
        }
        Posted::InProgress => session.wait.complete(during, completion, size as u64),
    }
}
