//! The states of a connection to another interface's listener, or from another interface.

use std::io::{self, ErrorKind};
use std::ptr::NonNull;
use std::time::Instant;

use barewire::Endpoint;
use barewire::address::DeviceAddress;
use barewire_tcp::connector::Connector;
use barewire_tcp::frames::Stream;
use barewire_tcp::stall_timer::StallTimer;

use super::{Bootstrap, GRACE, LONGEST, TIMEOUT};
use crate::endpoint::{Ep, endpoint_address};
use crate::iface::Iface;
use crate::status::Status;

pub(super) enum Link {
    /// The connection to the peer's listener is being opened.
    Dialing { connector: Box<Connector>, ep: NonNull<Ep> },
    /// The peer has the address of the endpoint; its response is expected.
    Asking { stream: Stream, ep: NonNull<Ep>, timer: StallTimer },
    /// The endpoint is connected. Its end ends the link.
    Open { stream: Stream },
    /// The address of a peer's endpoint is expected.
    Asked { stream: Stream, timer: StallTimer },
    /// A passive endpoint is connected, until the peer ends the link.
    Serving { stream: Stream, endpoint: Endpoint },
    /// The peer has ended the link; its last messages may still be in the queues.
    Left { endpoint: Endpoint, since: Instant },
}

impl Link {
    /// Returns whether the peer opened the connection.
    pub(super) fn is_accepted(&self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Serving { .. } | Self::Left { .. })
    }

    /// Returns whether the link needs calls although its descriptor is not readable.
    pub(super) fn is_polled(&self) -> bool {
        // One that was left ends with time.
        matches!(
            self,
            Self::Dialing { .. } | Self::Asking { .. } | Self::Asked { .. } | Self::Left { .. }
        )
    }

    /// Returns whether nothing can arrive at the passive endpoint any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        match self {
            Self::Left { endpoint, since } => {
                endpoint.error().is_some() || now.saturating_duration_since(*since) > GRACE
            }
            _ => false,
        }
    }
}

/// The peer is authenticated, but did not send the address of its endpoint in time.
#[cold]
fn silent() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("no address of its endpoint within {TIMEOUT:?}"))
}

/// Returns the message that describes an endpoint: its device's address and its own.
fn message(endpoint: &Endpoint) -> io::Result<Vec<u8>> {
    let own = endpoint.address();
    let end = own.endpoint().ok_or(ErrorKind::Unsupported)?;
    Ok([own.device().body(), own.interface().body(), end.body()].concat())
}

/// Connects an endpoint to the one that a message describes.
fn connect(endpoint: &Endpoint, message: &[u8]) -> io::Result<()> {
    let transport = endpoint.transport();
    let parts = message.split_at_checked(DeviceAddress::body_length(transport));
    let (device, end) = parts.ok_or(ErrorKind::InvalidData)?;
    let wrong = |_: Status| io::Error::from(ErrorKind::InvalidData);
    let peer = endpoint_address(transport, device, end).map_err(wrong)?;
    endpoint.connect(&peer).map_err(io::Error::other)
}

impl Bootstrap {
    /// Advances a link that was taken out of the table, and puts it back unless it has ended. Code
    /// of the program is called after that, as it may end links.
    pub(super) fn step(&self, id: u64, link: Link, iface: &Iface, now: Instant) {
        match link {
            Link::Dialing { mut connector, ep } => match connector.advance(now) {
                Ok(None) => self.put(id, Link::Dialing { connector, ep }),
                Ok(Some(socket)) => {
                    let mut stream = Stream::new(socket, LONGEST);
                    // SAFETY: an endpoint ends its link before it is freed.
                    let own = message(unsafe { &ep.as_ref().endpoint });
                    let sent = own.and_then(|own| stream.post(&own).map_err(io::Error::from));
                    match sent.and_then(|()| self.watched.add(id, &stream)) {
                        Ok(()) => {
                            let timer = StallTimer::new(TIMEOUT, now);
                            self.put(id, Link::Asking { stream, ep, timer });
                        }
                        Err(error) => iface.fail(ep, &error),
                    }
                }
                Err(error) => iface.fail(ep, &error),
            },
            Link::Asking { mut stream, ep, mut timer } => match stream.try_receive() {
                Ok(None) if timer.is_over(now) => iface.fail(ep, &silent()),
                Ok(None) => self.put(id, Link::Asking { stream, ep, timer }),
                Ok(Some(peer)) => {
                    // SAFETY: as above.
                    let end = unsafe { ep.as_ref() };
                    match connect(&end.endpoint, &peer) {
                        Ok(()) => {
                            self.put(id, Link::Open { stream });
                            end.run_waiting();
                        }
                        Err(error) => iface.fail(ep, &error),
                    }
                }
                Err(error) => iface.fail(ep, &io::Error::from(error)),
            },
            Link::Open { mut stream } => {
                // The endpoint itself notices the failure of its peer.
                if matches!(stream.try_receive(), Ok(None)) {
                    self.put(id, Link::Open { stream });
                }
            }
            Link::Asked { mut stream, mut timer } => match stream.try_receive() {
                Ok(None) if timer.is_over(now) => crate::log::diag(&silent()),
                Ok(None) => self.put(id, Link::Asked { stream, timer }),
                Ok(Some(peer)) => match answer(iface, &mut stream, &peer) {
                    Ok(endpoint) => self.put(id, Link::Serving { stream, endpoint }),
                    Err(error) => crate::log::error(&error),
                },
                Err(error) => crate::log::diag(&error),
            },
            Link::Serving { mut stream, endpoint } => {
                let link = match stream.try_receive() {
                    Ok(None) => Link::Serving { stream, endpoint },
                    _ => Link::Left { endpoint, since: now },
                };
                self.put(id, link);
            }
            link @ Link::Left { .. } => {
                if !link.is_over(now) {
                    self.put(id, link);
                }
            }
        }
    }
}

/// Opens the passive endpoint for a peer's, and sends its address.
fn answer(iface: &Iface, stream: &mut Stream, peer: &[u8]) -> io::Result<Endpoint> {
    let endpoint = Endpoint::new(&iface.interface).map_err(io::Error::other)?;
    connect(&endpoint, peer)?;
    stream.post(&message(&endpoint)?)?;
    Ok(endpoint)
}
