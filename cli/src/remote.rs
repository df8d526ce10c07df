//! Connects the two processes of a command, and ends the connection.

use crate::error::{Error, local};
use crate::link::{LONGEST, Link};
use crate::local::{self as local_socket, HOW_TO_MAKE_A_KEY, LocalListener};
use crate::output::warning_line;
use crate::pair::Second;
use crate::peer::{Role, Work};
use crate::transports;
use barewire_tcp::HostAddress;
use barewire_tcp::frames::{Stream, StreamListener};
use barewire_tcp::handshake::{Claim, Purpose};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A control connection addresses neither an interface nor an endpoint.
const CLAIM: Claim =
    Claim { purpose: Purpose::Control, service: 0, endpoint: 0, from_service: 0, from_endpoint: 0 };
/// Time limit for the response of a name server.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for both ends to prove possession of the key.
const PROOF: Duration = Duration::from_secs(10);

/// Starts a second process for `work`, runs `lead` with it and ends it.
pub(crate) fn with_second<T>(
    work: Work,
    lead: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let (second, stream) = Second::start(work)?;
    let mut link = Link::open(stream, Role::First, work, None, Some(second))?;
    let result = lead(&mut link);
    part(link, result)
}

/// Connects to the server for `work` at `host` and runs `lead` with it.
pub(crate) fn with_server<T>(
    host: &str,
    port: u16,
    work: Work,
    lead: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let (stream, place) = connect(host, port)?;
    let mut link = Link::open(stream, Role::Client, work, Some(place), None)?;
    let result = lead(&mut link);
    part(link, result)
}

/// The listening socket of a server. It accepts clients with its key, or without a key processes of
/// the same user on the same machine.
pub(crate) enum Door {
    Local(LocalListener),
    Keyed(Box<StreamListener>),
}

impl Door {
    pub(crate) fn open(bind: Option<HostAddress>, port: u16) -> Result<Self, Error> {
        let Some(key) = transports::key()? else {
            if let Some(address) = bind {
                return Err(Error::Usage(format!("to listen on {address}: {HOW_TO_MAKE_A_KEY}")));
            }
            return LocalListener::bind(port).map(Self::Local);
        };
        let address = bind.unwrap_or(Ipv4Addr::LOCALHOST.into()).at(port);
        match StreamListener::bind(address, key, CLAIM, LONGEST) {
            Ok(listener) => Ok(Self::Keyed(Box::new(listener))),
            Err(error) => Err(local(format!("cannot listen on {address}"), &error)),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Local(listener) => listener.port(),
            Self::Keyed(listener) => listener.address().port(),
        }
    }

    /// Waits for an authenticated client. Warns of others, once in a second at most.
    pub(crate) fn accept(&mut self) -> Result<Stream, Error> {
        const AGAIN: Duration = Duration::from_secs(1);
        let mut reported = self.refused();
        loop {
            let accepted = self.accept_within(AGAIN)?;
            let refused = self.refused();
            if refused > reported {
                warning_line(&format!(
                    "refused {} client(s) that did not prove this job's key: both ends need the same key",
                    refused - reported,
                ));
                reported = refused;
            }
            if let Some(stream) = accepted {
                return Ok(stream);
            }
        }
    }

    /// Returns the connections so far that did not prove the key.
    fn refused(&self) -> u64 {
        match self {
            Self::Local(_) => 0,
            Self::Keyed(listener) => listener.refused(),
        }
    }

    /// Waits up to `timeout` for an authenticated client.
    pub(crate) fn accept_within(&mut self, timeout: Duration) -> Result<Option<Stream>, Error> {
        let listener = match self {
            Self::Local(listener) => return listener.accept(timeout),
            Self::Keyed(listener) => listener,
        };
        listener.accept(timeout).map_err(|error| {
            local(format!("{}: cannot accept a connection", listener.address()), &error)
        })
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(listener) => write!(f, "localhost:{}", listener.port()),
            Self::Keyed(listener) => listener.address().fmt(f),
        }
    }
}

/// Serves clients for `work` in turn until `follow` succeeds with one and returns a value. Failures
/// are warnings. `listening` gets the address.
pub(crate) fn with_client<T>(
    bind: Option<HostAddress>,
    port: u16,
    work: Work,
    listening: impl FnOnce(&dyn fmt::Display) -> Result<(), Error>,
    mut follow: impl FnMut(&mut Link) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut door = Door::open(bind, port)?;
    listening(&door)?;
    loop {
        let stream = door.accept()?;
        let place = (!stream.is_unix()).then(|| stream.peer().to_string());
        let served = Link::open(stream, Role::Server, work, place, None).and_then(|mut link| {
            let result = follow(&mut link);
            part(link, result)
        });
        match served {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => warning_line(&format!("{error}; waiting for the next client")),
        }
    }
}

/// Ends the connection, with the result of the work.
pub(crate) fn part<T>(link: Link, result: Result<T, Error>) -> Result<T, Error> {
    let finished = link.finish(result.as_ref().err());
    let value = result?;
    finished.outcome?;
    Ok(value)
}

/// Connects to the first address of `host` that responds, and returns it as text. `host` may be
/// several names of one host, separated by commas. Without a key only this machine can be reached.
fn connect(host: &str, port: u16) -> Result<(Stream, String), Error> {
    let Some(key) = transports::key()? else {
        if host.parse::<barewire::TransportId>().is_ok() {
            return Err(Error::Usage(format!(
                "{host} is a transport, not a host: use -x {host}, or --key-file if there is such a \
                 host"
            )));
        }
        if !is_here(host) {
            return Err(Error::Usage(format!("to reach {host}: {HOW_TO_MAKE_A_KEY}")));
        }
        return Ok((local_socket::connect(port)?, format!("localhost:{port}")));
    };
    let mut refusals = Vec::new();
    for name in host.split(',') {
        let addresses = match resolve(name, port) {
            Ok(addresses) => addresses,
            Err(error) => {
                refusals.push(error.to_string());
                continue;
            }
        };
        for address in addresses {
            match Stream::connect(address, &key, CLAIM, LONGEST, PROOF) {
                Ok(stream) => return Ok((stream, address.to_string())),
                Err(error) => refusals.push(format!("{address}: {error}")),
            }
        }
    }
    let reason = if refusals.is_empty() {
        format!("{host} has no address that leads to another host")
    } else {
        format!("{}; a server has to have the same key", refusals.join("; "))
    };
    Err(Error::Local(format!("cannot connect to the server: {reason}")))
}

/// Returns `true` for names of this machine that need no name server.
fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Resolves a name. The resolver has no timeout, so it runs in a thread that may be left behind.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    match host.parse::<HostAddress>() {
        Ok(address) => return Ok(vec![address.at(port)]),
        Err(error) if host.contains('%') => return Err(local(host, &error)),
        Err(_) => {}
    }
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    let what =
        || format!("cannot find the host '{host}': use its address, or add the name to /etc/hosts");
    thread::Builder::new()
        .name("resolver".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            // The receiver is dropped when the deadline has passed.
            let _ = sender.send(found);
        })
        .map_err(|error| local(what(), &error))?;
    match receiver.recv_timeout(ANSWER) {
        Ok(found) => found.map_err(|error| local(what(), &error)),
        Err(_) => {
            Err(Error::Local(format!("{}: no response within {} s", what(), ANSWER.as_secs())))
        }
    }
}
