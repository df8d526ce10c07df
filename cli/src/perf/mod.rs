//! `barewire perf`: latency, bandwidth and message rate of one operation, after ucx_perftest.

mod carrier;
mod clock;
mod follow;
mod lead;
mod report;
mod sample;

use crate::args::{CpuList, PerfArgs, Test};
use crate::control::{Layout, Message, PerfPlan, Work};
use crate::error::{Error, local};
use crate::link::Link;
use crate::output::Output;
use crate::remote::{with_client, with_second, with_server};
use crate::session::Session;
use crate::transports::{self, Choice};
use report::{Report, Setting};
use std::io;

/// Bytes of an atomic.
const WORD: usize = 8;
/// The active-message ids of what is measured and of the receiver's answer to the last.
const DATA: u8 = 0;
const RECEIVED: u8 = 1;
const SET_UP: &str = "the set-up";

pub(crate) fn run(args: &PerfArgs, out: &mut Output) -> Result<(), Error> {
    if let Some(cpus) = &args.cpus {
        pin(cpus)?;
    }
    let transport = args.transport.as_deref().unwrap_or(barewire::transport::rc_mlx5::NAME);
    let choice = transports::find(transport, args.device.as_deref())?;
    if args.listen || args.host.is_some() {
        transports::need_key(&choice.transport)?;
    }
    if args.listen {
        let listening = |address| out.line(format!("waiting for a client on {address}"));
        return with_client(args.bind, args.port, Work::Perf, listening, |link| follow(link, Some(args)));
    }
    let plan = plan(args, &choice)?;
    let setting = Setting {
        choice: &choice,
        plan: &plan,
        warm_up: args.warm_up,
        iterations: args.iterations,
        loopback: false,
    };
    if !choice.joins_processes() {
        if args.host.is_some() {
            let name = &choice.transport;
            return Err(Error::Usage(format!("transport '{name}' does not lead to another process")));
        }
        let session = Session::loopback(&choice.transport, &choice.device)?;
        return measure(session, Report::new(Setting { loopback: true, ..setting }, args.json, out)?);
    }
    let lead = |link: &mut Link| {
        // A server has its own device; a second process uses the same as this one.
        let device = args.host.is_none().then(|| choice.device.clone());
        link.send(&Message::Open { transport: choice.transport.clone(), device }, SET_UP)?;
        link.send(&Message::Perf(plan.clone()), SET_UP)?;
        let session = Session::connect(link, &choice.transport, &choice.device)?;
        measure(session, Report::new(setting, args.json, out)?)
    };
    match &args.host {
        Some(host) => with_server(host, args.port, Work::Perf, lead),
        None => with_second(Work::Perf, lead),
    }
}

fn measure(mut session: Session<'_>, mut report: Report<'_>) -> Result<(), Error> {
    lead::run(&mut session, &mut report)?;
    drop(session);
    report.finish()
}

/// The server's side: does what the leader asks for. A server has a command line of its own, with which the client
/// must agree.
pub(crate) fn follow(link: &mut Link, own: Option<&PerfArgs>) -> Result<(), Error> {
    let (transport, device) = match link.message(SET_UP)? {
        Message::Open { transport, device } => (transport, device),
        other => return Err(link.unexpected(&other, "open")),
    };
    let plan = match link.message(SET_UP)? {
        Message::Perf(plan) => plan,
        other => return Err(link.unexpected(&other, "perf")),
    };
    if let Some(own) = own {
        agree(link, "transport", own.transport.as_deref(), &transport)?;
        agree(link, "test", own.test.map(Test::name), plan.test.name())?;
        agree(link, "size", own.size.map(|size| size.to_string()).as_deref(), &plan.size.to_string())?;
    }
    let device = own.map_or(device.as_deref(), |own| own.device.as_deref());
    let choice = transports::find(&transport, device)?;
    if !choice.joins_processes() {
        return Err(link.protocol(format!("it asks for transport '{transport}' between two processes")));
    }
    check(&plan, &choice)?;
    follow::run(&mut Session::connect(link, &choice.transport, &choice.device)?, &plan)
}

fn agree(link: &Link, what: &str, ours: Option<&str>, theirs: &str) -> Result<(), Error> {
    match ours {
        Some(ours) if ours != theirs => {
            Err(link
                .protocol(format!("the server was started for {what} {ours}, the client asks for {theirs}")))
        }
        _ => Ok(()),
    }
}

/// What the command line asks for, with the way of sending that the size needs.
fn plan(args: &PerfArgs, choice: &Choice) -> Result<PerfPlan, Error> {
    if args.iterations == 0 {
        return Err(Error::Usage("there is nothing to measure in 0 iterations".into()));
    }
    let total = args.warm_up.checked_add(args.iterations);
    let total = total.ok_or_else(|| Error::Usage("the number of iterations is too large".into()))?;
    let (test, size) = (args.test.unwrap_or(Test::AmLat), args.size.unwrap_or(WORD));
    let layouts = [Layout::Short, Layout::Bcopy, Layout::Zcopy];
    let fits = |layout: &Layout| {
        range(test, *layout, choice).is_some_and(|(least, most)| (least..=most).contains(&size))
    };
    let wanted = |layout: &Layout| args.layout.is_none_or(|wanted| wanted == *layout);
    match layouts.into_iter().filter(wanted).find(fits) {
        Some(layout) => Ok(PerfPlan { test, layout, size: size as u64, total }),
        None => Err(Error::Usage(misfit(test, args.layout, size as u64, choice))),
    }
}

/// Refuses a plan that this end cannot follow.
fn check(plan: &PerfPlan, choice: &Choice) -> Result<(), Error> {
    let size = usize::try_from(plan.size).unwrap_or(usize::MAX);
    match range(plan.test, plan.layout, choice) {
        Some((least, most)) if (least..=most).contains(&size) => Ok(()),
        _ => Err(Error::Local(misfit(plan.test, Some(plan.layout), plan.size, choice))),
    }
}

/// The smallest and the largest message that a test can send in this way, if it can.
fn range(test: Test, layout: Layout, choice: &Choice) -> Option<(usize, usize)> {
    let (am, put, get) = (&choice.attributes.am, &choice.attributes.put, &choice.attributes.get);
    let (least, most) = match (test, layout) {
        // The header carries the first 8 bytes of the message.
        (Test::AmLat | Test::AmBw, Layout::Short) => (WORD, am.max_short.saturating_add(WORD)),
        (Test::AmLat | Test::AmBw, Layout::Bcopy) => (0, am.max_bcopy),
        (Test::AmLat | Test::AmBw, Layout::Zcopy) => (am.min_zcopy.max(1), am.max_zcopy),
        (Test::PutLat | Test::PutBw, Layout::Short) => (1, put.max_short),
        (Test::PutLat | Test::PutBw, Layout::Bcopy) => (1, put.max_bcopy),
        (Test::PutLat | Test::PutBw, Layout::Zcopy) => (put.min_zcopy.max(1), put.max_zcopy),
        (Test::Get, Layout::Bcopy) => (1, get.max_bcopy),
        (Test::Get, Layout::Zcopy) => (get.min_zcopy.max(1), get.max_zcopy),
        (Test::Add | Test::Fadd | Test::Cswap, Layout::Short) => (WORD, WORD),
        (Test::Get, Layout::Short) | (Test::Add | Test::Fadd | Test::Cswap, _) => return None,
    };
    (most > 0 && least <= most).then_some((least, most))
}

fn misfit(test: Test, layout: Option<Layout>, size: u64, choice: &Choice) -> String {
    let layouts = [Layout::Short, Layout::Bcopy, Layout::Zcopy];
    let wanted = |each: &&Layout| layout.is_none_or(|layout| layout == **each);
    let ranges = layouts.iter().filter(wanted).filter_map(|layout| range(test, *layout, choice));
    let whole = ranges.reduce(|(least, most), (low, high)| (least.min(low), most.max(high)));
    let (test, transport) = (test.name(), &choice.transport);
    let by = layout.map_or(String::new(), |layout| format!(" by {layout}"));
    match whole {
        Some((least, most)) => {
            format!("{test} on {transport}{by} takes messages of {least} to {most} bytes, not {size}")
        }
        None => format!("transport {transport} has no {test}{by}"),
    }
}

/// Runs this process, and those that it starts, on these CPUs only.
fn pin(cpus: &CpuList) -> Result<(), Error> {
    // SAFETY: all zeros is the empty set; CPU_SET gets numbers below CPU_SETSIZE, which the command line's
    // parser saw to; sched_setaffinity(2) reads the set of the size given.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in &cpus.0 {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 {
        return Ok(());
    }
    let list: Vec<String> = cpus.0.iter().map(ToString::to_string).collect();
    Err(local(format!("cannot run on CPU {}", list.join(",")), &io::Error::last_os_error()))
}
