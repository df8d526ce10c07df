//! The responder of a test.

use super::carrier::{Carrier, Regions, acknowledge};
use super::channels::Channels;
use super::messages;
use super::tagged::Tagged;
use crate::control::PerfPlan;
use crate::error::Error;
use crate::session::Session;
use crate::test::Test;

const END: &str = "the end of the test";

/// Runs the responder of the plan's test.
pub(super) fn run(session: &mut Session<'_>, plan: &PerfPlan) -> Result<(), Error> {
    if plan.test.is_tagged() {
        let tagged = Tagged::open(session, plan, false)?;
        return messages::follow(session, plan, tagged);
    }
    if plan.test.is_channel() {
        let channels = Channels::open(session, plan)?;
        return messages::follow(session, plan, channels);
    }
    let during = plan.test.name();
    let regions = Regions::allocate(session, plan)?;
    let mut carrier = Carrier::open(session, &regions, plan)?;
    match plan.test {
        Test::AmLat => {
            for number in 0..plan.total {
                carrier.receive(session, number + 1, during)?;
                carrier.send(session, None, during)?;
            }
        }
        Test::AmBw => {
            // Acknowledge after half a window, so that the sender need not wait.
            let step =
                if plan.window == 0 { plan.total } else { u64::from(plan.window).div_ceil(2) };
            let mut acknowledged = 0;
            while acknowledged < plan.total {
                let next = acknowledged.saturating_add(step).min(plan.total);
                carrier.receive(session, next, during)?;
                // More messages may arrive during the acknowledgement.
                acknowledged = carrier.received();
                acknowledge(session, acknowledged, during)?;
            }
        }
        Test::PutLat => {
            for number in 0..plan.total {
                let mark = (number + 1) as u8;
                carrier.marked(session, mark, during)?;
                carrier.put(session, mark, None, during)?;
            }
        }
        Test::AddLat => {
            for number in 0..plan.total {
                carrier.marked(session, (number + 1) as u8, during)?;
                super::lead::add(session, &carrier, during)?;
            }
        }
        Test::TagLat | Test::TagBw | Test::ChannelLat | Test::ChannelBw => {}
        // One-sided: the device, or its equivalent, responds.
        Test::PutBw | Test::AddMr | Test::Get | Test::Fadd | Test::Swap | Test::Cswap => {
            if plan.passive {
                return session.wait.barrier_passively(END);
            }
        }
    }
    session.flush(during, plan.size())?;
    session.wait.barrier(END)
}
