//! `barewire demo`: sends a file to a second process over every transport between processes, by put
//! and as active messages, and checks what arrives.

mod ball;
mod file;
mod table;

use crate::affinity::{Ends, Pinned};
use crate::args::DemoArgs;
use crate::control::{Message, Step};
use crate::error::{Error, local};
use crate::link::Link;
use crate::output::{self, EMULATOR, Output};
use crate::peer::Work;
use crate::remote::with_second;
use crate::session::Session;
use crate::transports::{self, Choice};
use crate::units;
use file::{Arrival, Source};
use std::path::Path;
use table::{Row, Table};

/// Round trips of a ping-pong, at most.
const ROUNDS: u64 = 1000;
/// The current activity, for errors.
const STEP: &str = "the next step";

pub(crate) fn run(args: &DemoArgs, out: &mut Output) -> Result<(), Error> {
    output::warn_of_debug_build();
    if let Some(faults) = &args.faults {
        // SAFETY: no other thread runs yet; the second process inherits the variable.
        unsafe { std::env::set_var("BAREWIRE_HCA_FAULTS", faults) };
    }
    let path = args.file.as_deref().unwrap_or(Path::new("/proc/self/exe"));
    let source = Source::open(path)?;
    let transports = match &args.device {
        Some(device) => transports::over(device)?,
        None => transports::joining(),
    };
    with_second(Work::Demo, |link| {
        out.line(output::entry(&format!(
            "sending {} ({}) from process {} to process {}",
            source.name(),
            units::bytes(source.length()),
            std::process::id(),
            link.peer().pid.unwrap_or_default(),
        )))?;
        let mut table = Table::default();
        let mut result = Ok(());
        for choice in &transports {
            result = lead(link, choice, &source, &mut table);
            if result.is_err() {
                break;
            }
        }
        table.print(out)?;
        result?;
        link.send(&Message::Done, STEP)?;
        if let Some(row) = table.first_mismatch() {
            return Err(Error::Mismatch(format!(
                "{} over {}: the received data differ from the sent data",
                row.operation, row.transport
            )));
        }
        let emulated: Vec<&str> = transports
            .iter()
            .filter(|choice| choice.is_emulator())
            .map(|choice| choice.transport.name())
            .collect();
        if emulated.is_empty() {
            Ok(())
        } else {
            out.line(output::entry(&format!("{}: {EMULATOR}", emulated.join(", "))))
        }
    })
}

/// Runs all tests of one transport as the initiator.
fn lead(link: &mut Link, choice: &Choice, source: &Source, table: &mut Table) -> Result<(), Error> {
    let Choice { transport, device, attributes } = choice;
    // The threads of emulated devices need the CPUs as well.
    let ends = (!choice.is_emulator()).then(|| Ends::choose(None)).transpose()?;
    let cpu = ends.map(|ends| ends.peer);
    link.send(
        &Message::Open { transport: transport.to_string(), device: Some(device.clone()), cpu },
        STEP,
    )?;
    link.send(&Message::File { length: source.length() }, STEP)?;
    let mut session = Session::connect(link, *transport, device)?;
    let _pinned = ends.map(|ends| Pinned::on(ends.this)).transpose()?;
    let sent = source.load(&mut session)?;
    let row = |operation, outcome| Row { transport: *transport, operation, outcome };
    // Some transports have no puts, no active messages, or no short operations.
    if attributes.put.max_zcopy > 0 {
        let put = file::put(&mut session, &sent)?;
        table.push(row("RDMA write", put));
    }
    if attributes.am.max_bcopy > 0 {
        let messages = file::send_messages(&mut session, &sent)?;
        table.push(row("active messages", messages));
    }
    if attributes.put.max_short > 0 {
        let put = ball::lead(&mut session, &Step::PutPingPong, ROUNDS)?;
        table.push(row("put ping-pong", put));
    }
    if attributes.am.max_short > 0 {
        let messages = ball::lead(&mut session, &Step::AmPingPong, ROUNDS)?;
        table.push(row("am ping-pong", messages));
    }
    session.wait.send(&Message::Demo(Step::Close), STEP)?;
    session.wait.barrier("closing the transport")
}

/// The second process: executes the requests of the first until it reports the end.
pub(crate) fn follow(link: &mut Link) -> Result<(), Error> {
    loop {
        let (transport, device, cpu) = match link.message(STEP)? {
            Message::Done => return Ok(()),
            Message::Open { transport, device: Some(device), cpu } => (transport, device, cpu),
            other => return Err(link.unexpected(&other, "open")),
        };
        let length = match link.message(STEP)? {
            Message::File { length } => length,
            other => return Err(link.unexpected(&other, "file")),
        };
        let transport = transport.parse().map_err(|error| {
            link.protocol(format!("its transport '{transport}' cannot be used here: {error}"))
        })?;
        let session = Session::connect(link, transport, &device)?;
        let _pinned = cpu.map(Pinned::on).transpose()?;
        follow_transport(session, length)?;
    }
}

fn follow_transport(mut session: Session<'_>, length: u64) -> Result<(), Error> {
    let length = usize::try_from(length)
        .map_err(|error| local("the file does not fit into memory", &error))?;
    let arrival = Arrival::new(&mut session, length)?;
    loop {
        match session.wait.message(STEP)? {
            Message::Demo(Step::PutDone) => arrival.report(&mut session)?,
            Message::Demo(Step::Am { messages, segment }) => {
                arrival.receive_messages(&mut session, messages, segment)?;
            }
            Message::Demo(step @ (Step::PutPingPong | Step::AmPingPong)) => {
                ball::follow(&mut session, &step)?;
            }
            Message::Demo(Step::Close) => return session.wait.barrier("closing the transport"),
            other => return Err(session.wait.unexpected(&other, "demo")),
        }
    }
}
