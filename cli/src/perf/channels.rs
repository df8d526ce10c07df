//! The tests of channels: a channel in each direction, over the device of the session.

use super::job::OUTSTANDING;
use super::messages::Messages;
use super::tagged::exchange;
use crate::control::PerfPlan;
use crate::error::{Error, local};
use crate::session::Session;
use crate::wait::Fault;
use barewire::transport::rc_mlx5::RcMlx5;
use barewire_channel::{
    Config, Connector, HANDLE_BYTES, Handle, Key, Listener, Rail, Rails, Receiver, Region, Request,
    Sender, Usage,
};

const SET_UP: &str = "the set-up";

/// Both channels, and the memory of one side.
pub(super) struct Channels {
    sender: Sender,
    receiver: Receiver,
    source: Region,
    target: Region,
    length: usize,
}

impl Channels {
    pub(super) fn open(session: &mut Session<'_>, plan: &PerfPlan) -> Result<Self, Error> {
        let domain = session.domain.as_static::<RcMlx5>();
        let domain =
            domain.ok_or_else(|| Error::Usage("channels need the transport rc_mlx5".into()))?;
        let rail = Rail::new("rail", domain.context()).map_err(|error| local(SET_UP, &error))?;
        // The session's connection over the same device works already.
        let rails = Rails::new(vec![rail.subnet_bits(0)]).map_err(|error| local(SET_UP, &error))?;
        // The peer gets the key over the authenticated connection.
        let key = Key::generate().map_err(|error| local(SET_UP, &error))?;
        let config = Config::default();
        let here = session.wait.local().at(0);
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
        Ok(Self { sender, receiver, source, target, length })
    }
}

impl Messages for Channels {
    type Request = Request;
    const MOST: u32 = OUTSTANDING;
    const AHEAD: u64 = 1;

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

    fn poll_received(&mut self, request: &Request) -> Result<Option<()>, Fault> {
        match self.receiver.test(*request)? {
            Some(received) if received.sizes() == [self.length] => Ok(Some(())),
            Some(received) => {
                let sizes = received.sizes();
                Err(format!("messages of {sizes:?} bytes came, not of {}", self.length).into())
            }
            None => Ok(None),
        }
    }

    fn poll_sent(&mut self, request: &Request) -> Result<Option<()>, Fault> {
        Ok(self.sender.test(*request)?.map(drop))
    }
}
