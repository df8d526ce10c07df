//! The tests of channels: a channel in each direction, over the device of the session.

use super::figures::Recorder;
use super::job::{Job, OUTSTANDING};
use super::tagged::exchange;
use crate::args::Test;
use crate::control::PerfPlan;
use crate::error::{Error, local};
use crate::session::Session;
use barewire::transport::rc_mlx5::RcMlx5;
use barewire_channel::{
    Config, Connector, HANDLE_BYTES, Handle, Key, Listener, Rail, Rails, Receiver, Region, Request,
    Sender, Usage,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

const SET_UP: &str = "the set-up";

/// Both channels, and the memory of one side.
struct Channels {
    sender: Sender,
    receiver: Receiver,
    source: Region,
    target: Region,
    length: usize,
}

impl Channels {
    fn open(session: &mut Session<'_>, plan: &PerfPlan) -> Result<Self, Error> {
        let domain = session.domain.as_static::<RcMlx5>();
        let domain =
            domain.ok_or_else(|| Error::Usage("channels need the transport rc_mlx5".into()))?;
        let rail = Rail::new("rail", domain.context()).map_err(|error| local(SET_UP, &error))?;
        // The session's connection over the same device works already.
        let rails = Rails::new(vec![rail.subnet_bits(0)]).map_err(|error| local(SET_UP, &error))?;
        // The peer gets the key over the authenticated connection.
        let key = Key::generate().map_err(|error| local(SET_UP, &error))?;
        let config = Config::default();
        let here = SocketAddr::new(session.wait.local(), 0);
        let mut listener =
            Listener::bind(&rails, here, &key, &config).map_err(|error| local(SET_UP, &error))?;
        let mut ours = listener.handle().to_bytes().to_vec();
        ours.extend(key.to_digits().as_bytes());
        let theirs = exchange(session, ours)?;
        let useless = |session: &Session<'_>| session.wait.protocol("its handle is none".into());
        let (handle, digits) = theirs.split_at_checked(HANDLE_BYTES).unzip();
        let handle = handle.and_then(|bytes| Handle::from_bytes(bytes).ok());
        let bytes = digits.and_then(|digits| hex::decode(digits).ok());
        let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let (Some(handle), Some(bytes)) = (handle, bytes) else { return Err(useless(session)) };
        let mut connector = Connector::start(&rails, &handle, &Key::from_bytes(bytes), &config)
            .map_err(|error| local(SET_UP, &error))?;
        let (mut sender, mut receiver) = (None, None);
        let (sender, receiver) = session.wait.until(SET_UP, || {
            if sender.is_none() {
                sender = connector.poll()?;
            }
            if receiver.is_none() {
                receiver = listener.accept()?;
            }
            Ok(if sender.is_some() && receiver.is_some() {
                sender.take().zip(receiver.take())
            } else {
                None
            })
        })?;
        let length = usize::try_from(plan.size()).map_err(|error| local(SET_UP, &error))?;
        let allocate =
            |usage| rails.allocate(length.max(1), usage).map_err(|error| local(SET_UP, &error));
        let (source, target) = (allocate(Usage::Send)?, allocate(Usage::Receive)?);
        if !session.wait.is_loopback() {
            session.wait.barrier(SET_UP)?;
        }
        Ok(Self { sender, receiver, source, target, length })
    }

    /// Announces a buffer.
    fn receive(&mut self, session: &mut Session<'_>, during: &str) -> Result<Request, Error> {
        let Self { receiver, target, length, .. } = self;
        session.wait.until(during, || Ok(receiver.receive(target, 0, *length, 0)?))
    }

    /// Sends as soon as the peer has announced a buffer.
    fn send(&mut self, session: &mut Session<'_>, during: &str) -> Result<Request, Error> {
        let Self { sender, source, length, .. } = self;
        session.wait.until(during, || Ok(sender.send(source, 0, *length, 0)?))
    }

    fn received(
        &mut self,
        session: &mut Session<'_>,
        request: Request,
        during: &str,
    ) -> Result<(), Error> {
        let Self { receiver, length, .. } = self;
        session.wait.until(during, || match receiver.test(request)? {
            Some(received) if received.sizes() == [*length] => Ok(Some(())),
            Some(received) => {
                Err(format!("messages of {:?} bytes came, not of {length}", received.sizes())
                    .into())
            }
            None => Ok(None),
        })
    }

    fn sent(
        &mut self,
        session: &mut Session<'_>,
        request: Request,
        during: &str,
    ) -> Result<(), Error> {
        let sender = &mut self.sender;
        session.wait.until(during, || Ok(sender.test(request)?.map(drop)))
    }
}

/// The side that measures.
pub(super) fn lead(
    session: &mut Session<'_>,
    recorder: &mut Recorder<'_, '_>,
) -> Result<(), Error> {
    let Job { plan, outstanding, .. } = recorder.job();
    let during = plan.test.name();
    let mut channels = Channels::open(session, plan)?;
    let loopback = session.wait.is_loopback();
    recorder.begin();
    if plan.test == Test::ChannelLat {
        for number in 0..plan.total {
            let receiving = channels.receive(session, during)?;
            let sending = channels.send(session, during)?;
            channels.received(session, receiving, during)?;
            channels.sent(session, sending, during)?;
            recorder.iteration(number)?;
        }
    } else {
        let mut requests = VecDeque::new();
        let most = (*outstanding).min(OUTSTANDING) as usize;
        for number in 0..plan.total {
            let receiving = if loopback { Some(channels.receive(session, during)?) } else { None };
            requests.push_back((channels.send(session, during)?, receiving));
            if requests.len() >= most
                && let Some(first) = requests.pop_front()
            {
                finish(&mut channels, session, first, during)?;
            }
            recorder.message(number)?;
        }
        for request in requests {
            finish(&mut channels, session, request, during)?;
        }
        if !loopback {
            let last = channels.receive(session, during)?;
            channels.received(session, last, during)?;
        }
    }
    recorder.end();
    if !loopback {
        session.wait.barrier("the end of the test")?;
    }
    Ok(())
}

fn finish(
    channels: &mut Channels,
    session: &mut Session<'_>,
    (sending, receiving): (Request, Option<Request>),
    during: &str,
) -> Result<(), Error> {
    if let Some(receiving) = receiving {
        channels.received(session, receiving, during)?;
    }
    channels.sent(session, sending, during)
}

/// The side that responds.
pub(super) fn follow(session: &mut Session<'_>, plan: &PerfPlan) -> Result<(), Error> {
    let during = plan.test.name();
    let mut channels = Channels::open(session, plan)?;
    let mut receiving = VecDeque::new();
    // Buffers are announced before their messages are due.
    let ahead = if plan.test == Test::ChannelLat { 1 } else { OUTSTANDING.into() };
    for _ in 0..plan.total.min(ahead) {
        receiving.push_back(channels.receive(session, during)?);
    }
    for number in 0..plan.total {
        let Some(first) = receiving.pop_front() else { break };
        channels.received(session, first, during)?;
        if number + ahead < plan.total {
            receiving.push_back(channels.receive(session, during)?);
        }
        if plan.test == Test::ChannelLat {
            let sending = channels.send(session, during)?;
            channels.sent(session, sending, during)?;
        }
    }
    if plan.test == Test::ChannelBw {
        let sending = channels.send(session, during)?;
        channels.sent(session, sending, during)?;
    }
    session.wait.barrier("the end of the test")
}
