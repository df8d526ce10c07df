//! How the two processes of a command come together and part.

use crate::args::SecondArgs;
use crate::control::{self, Role, Work};
use crate::error::{Error, local};
use crate::link::Link;
use crate::pair::{self, Second};
use crate::{demo, perf, transports};
use barewire_tcp::{KeyedListener, Listener, ListenerError, Stream};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a name server and a server may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// And how long, if the two prove to each other that they know the key: that is three answers.
const PROOF: Duration = Duration::from_secs(10);

/// Starts a second process for `work`, runs `lead` against it and ends it.
pub(crate) fn with_second<T>(
    work: Work,
    lead: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let (second, stream) = Second::start(work)?;
    let mut link = Link::open(stream, Role::First, work, Some(second))?;
    let result = lead(&mut link);
    part(link, result)
}

/// Connects to the server for `work` at `host` and runs `lead` against it.
pub(crate) fn with_server<T>(
    host: &str,
    port: u16,
    work: Work,
    lead: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut link = Link::open(connect(host, port)?, Role::Client, work, None)?;
    let result = lead(&mut link);
    part(link, result)
}

/// Where clients come in. Who was given a key lets nobody in who does not know it.
enum Door {
    Open(Listener),
    Keyed(Box<KeyedListener>),
}

impl Door {
    fn open(bind: Option<IpAddr>, port: u16) -> Result<Self, Error> {
        let door = match transports::key()? {
            Some(key) => {
                let bind = bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
                KeyedListener::bind(bind, port, key, control::LIMIT)
                    .map(|listener| Self::Keyed(Box::new(listener)))
            }
            None => Listener::bind(bind, port, control::LIMIT).map(Self::Open),
        };
        door.map_err(|error| Error::Local(error.to_string()))
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Open(listener) => listener.address(),
            Self::Keyed(listener) => listener.address(),
        }
    }

    fn accept(&mut self, timeout: Duration) -> Result<Stream, ListenerError> {
        match self {
            Self::Open(listener) => listener.accept(timeout),
            Self::Keyed(listener) => listener.accept(timeout),
        }
    }
}

/// Waits for one client for `work` and runs `follow` against it. `listening` is told the address.
pub(crate) fn with_client<T>(
    bind: Option<IpAddr>,
    port: u16,
    work: Work,
    listening: impl FnOnce(SocketAddr) -> Result<(), Error>,
    follow: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    const AGAIN: Duration = Duration::from_hours(1);
    let mut listener = Door::open(bind, port)?;
    listening(listener.address())?;
    let stream = loop {
        match listener.accept(AGAIN) {
            Ok(stream) => break stream,
            Err(ListenerError::TimedOut { .. }) => {}
            Err(error) => return Err(Error::Local(error.to_string())),
        }
    };
    // One client: the next one is refused at once instead of being left to wait.
    drop(listener);
    let mut link = Link::open(stream, Role::Server, work, None)?;
    let result = follow(&mut link);
    part(link, result)
}

/// The second process: does what the first wants. With an error comes whether the first knows it.
pub(crate) fn second(args: &SecondArgs) -> Result<(), (Error, bool)> {
    // What the first process gave up for, it tells the user itself.
    let unknown = |error| {
        let known = matches!(error, Error::PeerGaveUp { .. });
        (error, known)
    };
    let stream = pair::attend(args.parent).map_err(unknown)?;
    let mut link = Link::open(stream, Role::Second, args.work, None).map_err(unknown)?;
    let result = match args.work {
        Work::Demo => demo::follow(&mut link),
        Work::Perf => perf::follow(&mut link, None),
        Work::Hello => Err(Error::Usage("'hello' has no second process of its own".into())),
    };
    let finished = link.finish(result.as_ref().err());
    match result {
        Ok(()) => finished.outcome.map_err(unknown),
        Err(error) => Err((error, finished.told)),
    }
}

fn part<T>(link: Link, result: Result<T, Error>) -> Result<T, Error> {
    let finished = link.finish(result.as_ref().err());
    let value = result?;
    finished.outcome?;
    Ok(value)
}

/// Connects to the first address of `host` that answers.
fn connect(host: &str, port: u16) -> Result<Stream, Error> {
    let mut refusal = format!("{host} has no address");
    let key = transports::key()?;
    for address in resolve(host, port)? {
        let connected = match &key {
            Some(key) => Stream::connect_with_key(address, key, control::LIMIT, PROOF)
                .map_err(|error| format!("{address}: {error}; a server has to have the same key")),
            None => Stream::connect(address, control::LIMIT, ANSWER).map_err(|error| error.to_string()),
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = error,
        }
    }
    Err(Error::Local(format!("cannot connect to the server: {refusal}")))
}

/// Looks a name up. The resolver has no deadline of its own, so it runs in a thread that may be left behind.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    let what = || format!("cannot find the host '{host}'");
    thread::Builder::new()
        .name("resolver".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            // Nobody listens any more once the deadline has passed.
            let _ = sender.send(found);
        })
        .map_err(|error| local(what(), &error))?;
    match receiver.recv_timeout(ANSWER) {
        Ok(found) => found.map_err(|error| local(what(), &error)),
        Err(_) => Err(Error::Local(format!("{}: no answer within {} s", what(), ANSWER.as_secs()))),
    }
}
