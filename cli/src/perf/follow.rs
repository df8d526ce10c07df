//! The side that answers.

use super::RECEIVED;
use super::carrier::Carrier;
use crate::args::Test;
use crate::control::PerfPlan;
use crate::error::Error;
use crate::session::Session;

/// Does its part of the plan's test.
pub(super) fn run(session: &mut Session<'_>, plan: &PerfPlan) -> Result<(), Error> {
    let during = plan.test.name();
    let mut carrier = Carrier::open(session, plan)?;
    match plan.test {
        Test::AmLat => {
            for number in 0..plan.total {
                carrier.receive(session, number + 1, during)?;
                carrier.send(session, during)?;
            }
        }
        Test::AmBw => {
            carrier.receive(session, plan.total, during)?;
            let endpoint = &session.endpoint;
            let _ = session.wait.post(during, || endpoint.am_short(RECEIVED, plan.total, &[]))?;
        }
        Test::PutLat => {
            for number in 0..plan.total {
                let mark = (number + 1) as u8;
                carrier.marked(session, mark, during)?;
                carrier.put(session, mark, during)?;
            }
        }
        // One-sided: the device answers alone.
        Test::PutBw | Test::Get | Test::Add | Test::Fadd | Test::Cswap => {}
    }
    session.flush(during, plan.size)?;
    session.wait.barrier("the end of the test")
}
