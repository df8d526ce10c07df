//! `barewire hello`: one message each way between a server and a client.

use crate::args::HelloArgs;
use crate::control::Message;
use crate::error::Error;
use crate::link::Link;
use crate::output::Output;
use crate::peer::Work;
use crate::ranks::{self, Rank};
use crate::remote::{with_client, with_server};
use crate::session::Session;
use crate::test::Layout;
use crate::transports::{self, Choice};
use barewire::{Completion, Posted};
use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

/// The active-message id of the greeting.
const GREETING: u8 = 0;
/// Bytes of the received message that are printed.
const SHOWN: usize = 64;
const FAREWELL: &str = "the end of the connection";

pub(crate) fn run(args: &HelloArgs, out: &mut Output) -> Result<(), Error> {
    let choice = transports::find(&args.transport, args.device.as_deref())?;
    if !choice.joins_processes() {
        let name = &choice.transport;
        return Err(Error::Usage(format!("transport '{name}' does not connect two processes")));
    }
    transports::need_key(choice.transport)?;
    let layout = match (args.bcopy, args.zcopy) {
        (true, _) => Layout::Bcopy,
        (_, true) => Layout::Zcopy,
        _ => Layout::Short,
    };
    let ours = Greeting { layout, size: args.size };
    ours.check(&choice)?;
    if let Some(host) = &args.server {
        return with_server(host, args.port, Work::Hello, |link| lead(link, &choice, &ours, out));
    }
    match Rank::find()? {
        Some(Rank::Server(job)) => {
            return ranks::serve(job, Work::Hello, |link| follow(link, &choice, &ours, out));
        }
        Some(Rank::Client(job)) => {
            let (host, port) = ranks::server(job)?;
            return with_server(&host, port, Work::Hello, |link| lead(link, &choice, &ours, out));
        }
        None => {}
    }
    let mut note = Output::default();
    let listening = |address: &dyn Display| note.line(format!("waiting for a client on {address}"));
    with_client(args.bind, args.port, Work::Hello, listening, |link| {
        follow(link, &choice, &ours, out).map(Some)
    })
}

/// The server.
fn follow(
    link: &mut Link,
    choice: &Choice,
    ours: &Greeting,
    out: &mut Output,
) -> Result<(), Error> {
    same_transport(link, choice)?;
    let mut session = Session::connect(link, choice.transport, &choice.device)?;
    let (arrived, announced) = prepare(&mut session, ours)?;
    receive(&mut session, &arrived, &announced, out)?;
    send(&mut session, ours)?;
    session.wait.barrier(FAREWELL)
}

/// The client.
fn lead(link: &mut Link, choice: &Choice, ours: &Greeting, out: &mut Output) -> Result<(), Error> {
    link.send(
        &Message::Open { transport: choice.transport.to_string(), device: None, cpu: None },
        "the set-up",
    )?;
    let mut session = Session::connect(link, choice.transport, &choice.device)?;
    let (arrived, announced) = prepare(&mut session, ours)?;
    send(&mut session, ours)?;
    receive(&mut session, &arrived, &announced, out)?;
    // This end of the connection must stay until the server's message is acknowledged.
    session.wait.barrier(FAREWELL)
}

/// The server uses the transport of its command line, and the client must have the same.
fn same_transport(link: &mut Link, choice: &Choice) -> Result<(), Error> {
    match link.message("the set-up")? {
        Message::Open { transport, .. } if transport == choice.transport.name() => Ok(()),
        Message::Open { transport, .. } => Err(link.protocol(format!(
            "the client was started with transport '{transport}', the server with '{}'",
            choice.transport
        ))),
        other => Err(link.unexpected(&other, "open")),
    }
}

/// The message of one side, and how it is sent.
#[derive(Debug)]
struct Greeting {
    layout: Layout,
    size: usize,
}

impl Greeting {
    fn check(&self, choice: &Choice) -> Result<(), Error> {
        let am = &choice.attributes.am;
        let (least, most) = match self.layout {
            Layout::Short | Layout::ShortIov => (0, am.max_short),
            Layout::Bcopy => (0, am.max_bcopy),
            Layout::Zcopy => (am.min_zcopy, am.max_zcopy),
        };
        if (least..=most).contains(&self.size) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "a message of {} bytes does not fit am_{} on {}, which takes {least} to {most} bytes",
            self.size, self.layout, choice.transport
        )))
    }

    /// The letters that uct_hello_world sends.
    fn text(&self) -> impl Iterator<Item = u8> {
        (b'A'..=b'Z').cycle().take(self.size)
    }
}

type Arrived = Rc<RefCell<Option<Vec<u8>>>>;

/// Installs the handler, then exchanges announcements with the peer.
fn prepare(session: &mut Session<'_>, ours: &Greeting) -> Result<(Arrived, Greeting), Error> {
    const DURING: &str = "the announcement";
    let arrived = Arrived::default();
    let slot = Rc::clone(&arrived);
    session
        .interface
        .set_handler(GREETING, move |message| *slot.borrow_mut() = Some(message.data().to_vec()))
        .map_err(|error| Error::Local(error.to_string()))?;
    session
        .wait
        .send(&Message::Greeting { layout: ours.layout, size: ours.size as u64 }, DURING)?;
    match session.wait.message(DURING)? {
        Message::Greeting { layout, size } => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let most = session.attributes().am.max_bcopy.max(session.attributes().am.max_zcopy);
            if size > most {
                return Err(session
                    .wait
                    .protocol(format!("it announced a message of {size} bytes")));
            }
            Ok((arrived, Greeting { layout, size }))
        }
        other => Err(session.wait.unexpected(&other, "greeting")),
    }
}

fn send(session: &mut Session<'_>, ours: &Greeting) -> Result<(), Error> {
    const DURING: &str = "sending the message";
    let text: Vec<u8> = ours.text().collect();
    let Session { endpoint, wait, domain, .. } = session;
    match ours.layout {
        Layout::Short | Layout::ShortIov => {
            wait.post(DURING, || endpoint.am_short(GREETING, text.len() as u64, &text))?;
        }
        Layout::Bcopy => {
            wait.post(DURING, || {
                endpoint.am_bcopy(GREETING, |buffer| {
                    buffer[..text.len()].copy_from_slice(&text);
                    text.len()
                })
            })?;
        }
        Layout::Zcopy => {
            let failed = |error: barewire::MemoryError| Error::Local(error.to_string());
            let memory =
                domain.allocate(text.len().max(1), barewire::Access::empty()).map_err(failed)?;
            memory.write(0, &text).map_err(failed)?;
            let slice = memory.slice(0, text.len()).map_err(failed)?;
            let completion = Completion::counter();
            let post = || endpoint.am_zcopy(GREETING, &[], &[slice], Some(&completion));
            if wait.post(DURING, post)? == Posted::InProgress {
                wait.complete(DURING, &completion, text.len() as u64)?;
            }
        }
    }
    session.flush(DURING, ours.size as u64)
}

fn receive(
    session: &mut Session<'_>,
    arrived: &Arrived,
    announced: &Greeting,
    out: &mut Output,
) -> Result<(), Error> {
    let data = session.wait.until("waiting for the message", || Ok(arrived.borrow_mut().take()))?;
    let text = match announced.layout {
        // am_short sends an 8-byte header, here the length, before the payload.
        Layout::Short | Layout::ShortIov => data.get(barewire::SHORT_HEADER..).unwrap_or_default(),
        Layout::Bcopy | Layout::Zcopy => &data,
    };
    // The peer announced the size, so nothing of that size is allocated.
    if !announced.text().eq(text.iter().copied()) {
        return Err(Error::Mismatch(format!(
            "the {} bytes that arrived are not the {} that were sent",
            text.len(),
            announced.size
        )));
    }
    let peer = session.wait.peer_name();
    let shown = text[..text.len().min(SHOWN)].escape_ascii();
    let rest = if text.len() > SHOWN { " ..." } else { "" };
    out.line(format!("{} bytes by am_{} from {peer}: {shown}{rest}", text.len(), announced.layout))
}
