//! `barewire perf`: measures latency, bandwidth and message rate of one operation, like
//! ucx_perftest.

mod batch;
mod carrier;
mod channels;
mod clock;
mod doubts;
mod figures;
mod follow;
mod job;
mod lead;
mod messages;
mod plot;
mod printer;
mod sample;
mod statistics;
mod survey;
mod tagged;

use crate::affinity::{self, Ends, Pinned};
use crate::args::{CELL, PerfArgs, Sizes, TestArgs};
use crate::control::Message;
use crate::error::Error;
use crate::link::Link;
use crate::output::{Output, warn_of_debug_build};
use crate::peer::Work;
use crate::ranks::{self, Rank};
use crate::remote::{with_client, with_second, with_server};
use crate::session::Session;
use crate::test::Test;
use crate::transports;
use figures::{Outcome, Recorder};
use job::{Job, Kind};
use plot::Point;
use printer::Printer;
use std::fmt::Display;
use std::net::Ipv6Addr;
use std::time::Duration;

/// The active-message ids of data and of acknowledgements.
const DATA: u8 = 0;
const RECEIVED: u8 = 1;
const SET_UP: &str = "the set-up";

pub(crate) fn run(args: &PerfArgs, out: &mut Output) -> Result<(), Error> {
    warn_of_debug_build();
    if let Some(cpus) = &args.cpus {
        affinity::restrict(cpus)?;
    }
    if args.listen {
        let choice = job::choice(&args.test)?;
        transports::need_key(choice.transport)?;
        let bind = args.bind.or(args.ipv6.then_some(Ipv6Addr::LOCALHOST.into()));
        let listening =
            |address: &dyn Display| out.line(format!("waiting for a client on {address}"));
        return with_client(bind, args.port, Work::Perf, listening, |link| {
            follow(link, Some(args)).map(Some)
        })
        .map(drop);
    }
    if args.host.is_some() || args.all || args.loopback {
        return client(args, out);
    }
    match Rank::find()? {
        Some(Rank::Server(job)) => {
            ranks::serve(job, Work::Perf, |link| follow(link, Some(args)).map(drop))
        }
        Some(Rank::Client(job)) => {
            let (host, port) = ranks::server(job)?;
            client(&PerfArgs { host: Some(host), port, ..args.clone() }, out)
        }
        None => client(args, out),
    }
}

/// The side that measures.
fn client(args: &PerfArgs, out: &mut Output) -> Result<(), Error> {
    if let Some(file) = &args.plot {
        plot::check(file)?;
    }
    let mut printer = Printer::new(args, out);
    if args.all {
        return survey::run(args, printer);
    }
    let jobs = jobs(args, &mut printer)?;
    printer.expect(&jobs);
    printer.estimate(&jobs, cell(args))?;
    let outcomes = measure(args, &jobs, &mut printer)?;
    if let Some(file) = &args.plot {
        let points: Vec<Point> =
            jobs.iter().zip(&outcomes).map(|(job, outcome)| Point::new(job, outcome)).collect();
        plot::write(file, &points, &printer.doubts())?;
    }
    printer.finish()
}

/// The tests of the command line. Of a series those that the transport accepts; the printer reports
/// the others.
fn jobs(args: &PerfArgs, printer: &mut Printer<'_>) -> Result<Vec<Job>, Error> {
    let Some(sizes) = survey::sizes(args) else {
        let of_line = |(names, test): (Vec<String>, TestArgs)| {
            Job::new(names, &test, job::choice(&test)?, args.loopback, Kind::Single)
        };
        return batch::tests(&args.batch, &args.test)?.into_iter().map(of_line).collect();
    };
    let choice = job::choice(&args.test)?;
    let mut all = Vec::new();
    for test in survey::tests(args, &choice) {
        let (mut jobs, refused) = job::series(&sizes, &test, &choice, args.loopback)?;
        if args.test.test.is_none() && args.plot.is_some() {
            for job in &mut jobs {
                job.names.insert(0, job.plan.test.name().into());
            }
        }
        all.extend(jobs);
        if let Some(reason) = refused {
            printer.note(reason);
        }
    }
    Ok(all)
}

/// The most time for a paced test.
fn cell(args: &PerfArgs) -> Duration {
    args.time.unwrap_or(CELL)
}

/// Runs the tests, with a peer if they need one. Returns their results.
fn measure(
    args: &PerfArgs,
    jobs: &[Job],
    printer: &mut Printer<'_>,
) -> Result<Vec<Outcome>, Error> {
    let mut outcomes = Vec::new();
    for jobs in jobs.chunk_by(|one, next| one.loopback == next.loopback) {
        if let Some(job) = jobs.iter().find(|job| job.loopback) {
            if args.host.is_some() {
                let name = &job.choice.transport;
                return Err(Error::Usage(format!(
                    "transport '{name}' does not connect two processes"
                )));
            }
            for job in jobs {
                outcomes.push(paced(job, cell(args), printer, |job, printer| {
                    let choice = &job.choice;
                    single(job, printer, None, || {
                        Session::loopback(choice.transport, &choice.device)
                    })
                })?);
            }
            continue;
        }
        // Of a server the CPUs are not known.
        let ends = match &args.host {
            Some(_) => None,
            None => Some(Ends::choose(args.cpus.as_ref())?),
        };
        let lead = |link: &mut Link| {
            for job in jobs {
                outcomes.push(paced(job, cell(args), printer, |job, printer| {
                    with_peer(link, job, ends, printer)
                })?);
            }
            link.send(&Message::Done, SET_UP)
        };
        match &args.host {
            Some(host) => {
                jobs.iter().try_for_each(|job| transports::need_key(job.choice.transport))?;
                with_server(host, args.port, Work::Perf, lead)?;
            }
            None => with_second(Work::Perf, lead)?,
        }
    }
    Ok(outcomes)
}

/// Runs a test by `run`. A paced one is first tried with a few messages, which tell how many take
/// as long as it may.
fn paced(
    job: &Job,
    time: Duration,
    printer: &mut Printer<'_>,
    mut run: impl FnMut(&Job, &mut Printer<'_>) -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    if !job.paced {
        return run(job, printer);
    }
    let mut out = Output::default();
    let tried = run(&job.pilot(), &mut Printer::silent(&mut out))?;
    let each = tried.figures.overall * job.ways() / 1e6;
    run(&job.within(time, each), printer)
}

fn with_peer(
    link: &mut Link,
    job: &Job,
    ends: Option<Ends>,
    printer: &mut Printer<'_>,
) -> Result<Outcome, Error> {
    let choice = &job.choice;
    // A server has its own device; a second process uses the same device as this one.
    let device = ends.map(|_| choice.device.clone());
    // The threads of emulated devices need the CPUs as well.
    let ends = ends.filter(|_| !choice.is_emulator());
    let (transport, cpu) = (choice.transport.to_string(), ends.map(|ends| ends.peer));
    link.send(&Message::Open { transport, device, cpu }, SET_UP)?;
    link.send(&Message::Perf(job.plan.clone()), SET_UP)?;
    single(job, printer, ends, || Session::connect(link, choice.transport, &choice.device))
}

/// Runs one test over the session that `open` creates.
fn single<'a>(
    job: &Job,
    printer: &mut Printer<'_>,
    ends: Option<Ends>,
    open: impl FnOnce() -> Result<Session<'a>, Error>,
) -> Result<Outcome, Error> {
    let mut session = open()?;
    let _pinned = ends.map(|ends| Pinned::on(ends.this)).transpose()?;
    let mut recorder = Recorder::new(job, printer, ends);
    lead::run(&mut session, &mut recorder)?;
    let outcome = recorder.finish(session.endpoint.counters());
    drop(session);
    printer.end(job, ends, &outcome)?;
    Ok(outcome)
}

/// What a test with another host measured.
#[derive(Debug)]
pub(crate) struct Summary {
    /// The size of a message in bytes.
    pub(crate) size: u64,
    /// Microseconds.
    pub(crate) latency: f64,
    /// Bytes per second.
    pub(crate) bandwidth: f64,
}

/// Runs tests with the server for `work` at `host`. Returns `None`, without a test, if they are for
/// this machine alone and the server is on another.
pub(crate) fn against(
    (host, port): (&str, u16),
    work: Work,
    tests: &[TestArgs],
    here_alone: bool,
) -> Result<Option<Vec<Summary>>, Error> {
    let mut out = Output::default();
    let mut printer = Printer::silent(&mut out);
    let job = |test| Job::new(Vec::new(), test, job::choice(test)?, false, Kind::Series);
    let jobs = tests.iter().map(job).collect::<Result<Vec<_>, _>>()?;
    with_server(host, port, work, |link| {
        if here_alone && !link.is_near() {
            link.send(&Message::NoTest, SET_UP)?;
            link.send(&Message::Done, SET_UP)?;
            return Ok(None);
        }
        let mut results = Vec::new();
        for job in &jobs {
            let Outcome { figures, .. } = with_peer(link, job, None, &mut printer)?;
            let (latency, bandwidth) = (figures.overall, figures.bandwidth);
            results.push(Summary { size: job.plan.size(), latency, bandwidth });
        }
        link.send(&Message::Done, SET_UP)?;
        Ok(Some(results))
    })
}

/// The server: executes the requests of the client until there are no more, and returns their
/// number, with those for no test. `own` is the server's command line, which must agree with the client's and has limits.
pub(crate) fn follow(link: &mut Link, own: Option<&PerfArgs>) -> Result<usize, Error> {
    for count in 0.. {
        let (transport, device, cpu) = match link.message(SET_UP)? {
            Message::Open { transport, device, cpu } => (transport, device, cpu),
            Message::NoTest => continue,
            Message::Done => return Ok(count),
            other => return Err(link.unexpected(&other, "open")),
        };
        let plan = match link.message(SET_UP)? {
            Message::Perf(plan) => plan,
            other => return Err(link.unexpected(&other, "perf")),
        };
        if let Some(PerfArgs { test: own, max_memory, max_messages, .. }) = own {
            agree(link, "transport", own.transport.as_deref(), &transport)?;
            agree(link, "test", own.test.map(Test::name), plan.test.name())?;
            let size =
                own.sizes.as_ref().map(|Sizes(pieces)| pieces.iter().sum::<usize>().to_string());
            agree(link, "size", size.as_deref(), &plan.size().to_string())?;
            within(link, "--max-memory", Some(*max_memory as u64), job::memory(&plan), "bytes")?;
            within(link, "--max-messages", *max_messages, plan.total, "messages")?;
        }
        let device = own.map_or(device.as_deref(), |own| own.test.device.as_deref());
        let choice = transports::find(&transport, device)?;
        if !choice.joins_processes() {
            return Err(
                link.protocol(format!("it asks for transport '{transport}' between two processes"))
            );
        }
        job::check(&plan, &choice)?;
        let mut session = Session::connect(link, choice.transport, &choice.device)?;
        // A server keeps the CPUs of its own command line.
        let cpu = cpu.filter(|_| own.is_none());
        let _pinned = cpu.map(Pinned::on).transpose()?;
        follow::run(&mut session, &plan)?;
    }
    Ok(usize::MAX)
}

fn agree(link: &Link, what: &str, ours: Option<&str>, theirs: &str) -> Result<(), Error> {
    match ours {
        Some(ours) if ours != theirs => Err(link.protocol(format!(
            "the server was started for {what} {ours}, the client asks for {theirs}"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a request that exceeds a limit of the server.
fn within(
    link: &Link,
    limit: &str,
    most: Option<u64>,
    asked: u64,
    what: &str,
) -> Result<(), Error> {
    match most {
        Some(most) if asked > most => Err(link.protocol(format!(
            "its test takes {asked} {what}, and the server allows {most}: see {limit} of the server"
        ))),
        _ => Ok(()),
    }
}
