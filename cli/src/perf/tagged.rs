//! The tests of tagged messages.

use super::messages::Messages;
use crate::control::{Hex, Message, PerfPlan};
use crate::error::{Error, local};
use crate::session::Session;
use crate::test::Layout;
use crate::wait::Fault;
use barewire::{DeviceId, Domain, Flags, Interface, InterfaceConfig, PeerAddress, TransportId};
use barewire_wireup::tag::{
    Buffer, FULL_MASK, Lane, Lanes, Limits, Mode, Opening, Request, TagLink, Tags,
};
use std::fmt::Display;
use std::rc::Rc;

const SET_UP: &str = "the set-up";
/// From the side that measures, and to it.
const PING: u64 = 1;
const PONG: u64 = 2;

/// A link and the memory of one side.
pub(super) struct Tagged {
    tags: Tags,
    link: TagLink,
    source: Buffer,
    target: Buffer,
    /// The tags of the messages to the peer and from it.
    to: u64,
    from: u64,
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
    /// `leads` if this side measures.
    pub(super) fn open(
        session: &mut Session<'_>,
        plan: &PerfPlan,
        leads: bool,
    ) -> Result<Self, Error> {
        let (to, from) = match (leads, session.wait.is_loopback()) {
            (_, true) => (PING, PING),
            (true, false) => (PING, PONG),
            (false, false) => (PONG, PING),
        };
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
        let (source, target) = (buffer()?, buffer()?);
        Ok(Self { tags, link, source, target, to, from, _bulk: interface })
    }
}

impl Messages for Tagged {
    type Request = Request;
    const MOST: u32 = u32::MAX;
    const AHEAD: u64 = 0;

    #[inline(always)]
    fn send(&mut self, _: &mut Session<'_>, _: &str) -> Result<Request, Error> {
        Ok(self.tags.send(&self.link, self.to, &self.source, Mode::Auto))
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut Session<'_>, _: &str) -> Result<Request, Error> {
        Ok(self.tags.receive(self.from, FULL_MASK, &self.target))
    }

    #[inline(always)]
    fn poll_received(&mut self, request: &Request) -> Result<Option<()>, Fault> {
        Ok(request.poll().transpose()?.map(drop))
    }

    #[inline(always)]
    fn poll_sent(&mut self, request: &Request) -> Result<Option<()>, Fault> {
        self.poll_received(request)
    }
}
