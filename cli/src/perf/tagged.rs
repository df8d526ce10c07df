//! The tests of tagged messages.

use super::figures::Recorder;
use super::job::{Job, OUTSTANDING};
use crate::args::{Layout, Test};
use crate::control::{Hex, Message, PerfPlan};
use crate::error::{Error, local};
use crate::session::Session;
use crate::wait::Fault;
use barewire::{DeviceId, Domain, Flags, Interface, InterfaceConfig, PeerAddress, TransportId};
use barewire_wireup::tag::{
    Buffer, FULL_MASK, Lane, Lanes, Limits, Mode, Opening, Request, TagLink, Tags,
};
use std::collections::VecDeque;
use std::fmt::Display;
use std::rc::Rc;

const SET_UP: &str = "the set-up";
/// From the side that measures, and to it.
const PING: u64 = 1;
const PONG: u64 = 2;

/// A link and the memory of one side.
struct Tagged {
    tags: Tags,
    link: TagLink,
    source: Buffer,
    target: Buffer,
    /// Stays open with the link.
    _bulk: Option<Interface>,
}

fn failed(error: &dyn Display) -> Error {
    Error::Local(format!("tagged messages cannot be set up: {error}"))
}

/// Exchanges bytes with the peer; in a loopback this side's own come back.
pub(super) fn exchange(session: &mut Session<'_>, ours: Vec<u8>) -> Result<Vec<u8>, Error> {
    if session.wait.is_loopback() {
        return Ok(ours);
    }
    session.wait.send(&Message::Address { peer: Hex(ours) }, SET_UP)?;
    match session.wait.message(SET_UP)? {
        Message::Address { peer } => Ok(peer.0),
        other => Err(session.wait.unexpected(&other, "address")),
    }
}

/// The lane for data between two processes of this machine, if both can open it.
fn cma(session: &mut Session<'_>) -> Result<(Option<Lane>, Option<Interface>), Error> {
    let config = InterfaceConfig::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    let opened = Domain::open(&DeviceId::new(TransportId::Cma, "memory"))
        .and_then(|domain| Ok((Interface::open(session.wait.worker(), &domain, &config)?, domain)));
    // Without it, the peer gets an empty address, and both sides do without.
    let ours = opened.as_ref().map_or(Vec::new(), |(interface, _)| interface.address().to_bytes());
    let theirs = exchange(session, ours)?;
    let (Ok((interface, domain)), Ok(peer)) = (opened, PeerAddress::from_bytes(&theirs)) else {
        return Ok((None, None));
    };
    let endpoint = interface.connect(&peer).map_err(|error| local("cannot connect cma", &error))?;
    Ok((Some(Lane::new(endpoint, &interface, &Rc::new(domain))), Some(interface)))
}

impl Tagged {
    fn open(session: &mut Session<'_>, plan: &PerfPlan) -> Result<Self, Error> {
        let messages = Lane::new(
            session.endpoint.clone(),
            &session.interface,
            &Rc::new(session.domain.clone()),
        );
        let shm = session.endpoint.transport() == TransportId::Shm;
        let (other, interface) = if shm { cma(session)? } else { (None, None) };
        let moves = messages.attributes.flags.intersects(Flags::GET_ZCOPY | Flags::PUT_ZCOPY);
        let bulk = moves.then(|| messages.clone()).into_iter().chain(other).collect();
        let domain = Rc::clone(&messages.domain);
        let mut lanes = Lanes::new(messages, bulk);
        if plan.layout == Layout::Zcopy {
            lanes.threshold = Some(0);
        }
        let (limits, served) = (Limits::default(), &session.interface);
        let tags = if served.attributes().flags.contains(Flags::TAG_EAGER_BCOPY) {
            Tags::matched_by(served, &domain, 0, limits)
        } else {
            let tags = Tags::new(limits);
            tags.serve(served).map(|()| tags)
        };
        let tags = tags.map_err(|error| failed(&error))?;
        let link = tags.attach(lanes).map_err(|error| failed(&error))?;
        let theirs = exchange(session, link.opening().to_bytes().to_vec())?;
        let theirs = theirs.as_slice().try_into().map_err(|error| failed(&error))?;
        tags.connect(&link, Opening::from_bytes(theirs));
        let length = usize::try_from(plan.size()).map_err(|error| local(SET_UP, &error))?;
        let buffer = || Buffer::allocate(length, &domain).map_err(|error| local(SET_UP, &error));
        let tagged = Self { tags, link, source: buffer()?, target: buffer()?, _bulk: interface };
        if !session.wait.is_loopback() {
            session.wait.barrier(SET_UP)?;
        }
        Ok(tagged)
    }

    fn send(&self, tag: u64) -> Request {
        self.tags.send(&self.link, tag, &self.source, Mode::Auto)
    }

    fn receive(&self, tag: u64) -> Request {
        self.tags.receive(tag, FULL_MASK, &self.target)
    }
}

/// Waits until a request is complete.
fn complete(session: &mut Session<'_>, request: &Request, during: &str) -> Result<(), Error> {
    session.wait.until(during, || match request.poll() {
        Some(Ok(_)) => Ok(Some(())),
        Some(Err(error)) => Err(Fault::from(error.to_string())),
        None => Ok(None),
    })
}

/// The side that measures.
pub(super) fn lead(
    session: &mut Session<'_>,
    recorder: &mut Recorder<'_, '_>,
) -> Result<(), Error> {
    let Job { plan, outstanding, .. } = recorder.job();
    let during = plan.test.name();
    let tagged = Tagged::open(session, plan)?;
    let loopback = session.wait.is_loopback();
    recorder.begin();
    if plan.test == Test::TagLat {
        for number in 0..plan.total {
            let receive = tagged.receive(if loopback { PING } else { PONG });
            let send = tagged.send(PING);
            complete(session, &receive, during)?;
            complete(session, &send, during)?;
            recorder.iteration(number)?;
        }
    } else {
        let mut sends = VecDeque::new();
        let mut receives = VecDeque::new();
        for number in 0..plan.total {
            if loopback {
                receives.push_back(tagged.receive(PING));
            }
            sends.push_back(tagged.send(PING));
            while sends.len() >= *outstanding as usize {
                for queue in [&mut sends, &mut receives] {
                    if let Some(first) = queue.pop_front() {
                        complete(session, &first, during)?;
                    }
                }
            }
            recorder.message(number)?;
        }
        for request in sends.iter().chain(&receives) {
            complete(session, request, during)?;
        }
        if !loopback {
            complete(session, &tagged.receive(PONG), during)?;
        }
    }
    recorder.end();
    if !loopback {
        session.wait.barrier("the end of the test")?;
    }
    Ok(())
}

/// The side that answers.
pub(super) fn follow(session: &mut Session<'_>, plan: &PerfPlan) -> Result<(), Error> {
    let during = plan.test.name();
    let tagged = Tagged::open(session, plan)?;
    if plan.test == Test::TagLat {
        for _ in 0..plan.total {
            complete(session, &tagged.receive(PING), during)?;
            complete(session, &tagged.send(PONG), during)?;
        }
    } else {
        let mut receives = VecDeque::new();
        for _ in 0..plan.total {
            receives.push_back(tagged.receive(PING));
            while receives.len() >= OUTSTANDING as usize {
                if let Some(first) = receives.pop_front() {
                    complete(session, &first, during)?;
                }
            }
        }
        for request in &receives {
            complete(session, request, during)?;
        }
        complete(session, &tagged.send(PONG), during)?;
    }
    session.wait.barrier("the end of the test")
}
