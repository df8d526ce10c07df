//! Commands of a user to a running device from outside: to take the link of a port down or up.
//!
//! The datagram goes to the port over UDP, with a tag under the key, and comes from the port's own
//! address: from this machine, or this network namespace. Only a process that has the key can send
//! it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::ROCE_PORT;
use super::tag::Tags;
use crate::config::{Config, ConfigError};
use crate::key::{KEY_VARIABLE, Key, KeyError};

/// The first bytes. No base transport header begins with them: there is no such opcode.
const MARK: [u8; 4] = *b"bwl\x01";
const DOWN: u8 = 0;
const UP: u8 = 1;
/// The device has received the command.
const DONE: u8 = 2;

/// How long a device may take to respond: its process may share its CPU with many others.
const TIMEOUT: Duration = Duration::from_secs(10);
/// When the command is repeated: a datagram may be lost.
const REPEAT: Duration = Duration::from_millis(200);

/// Returns the state of the link that `message` asks for.
pub(super) fn read(message: &[u8]) -> Option<bool> {
    match message.strip_prefix(&MARK)? {
        [DOWN] => Some(false),
        [UP] => Some(true),
        _ => None,
    }
}

/// Returns the response to a command.
pub(super) fn response() -> [u8; 5] {
    message(DONE)
}

fn message(what: u8) -> [u8; 5] {
    let [a, b, c, d] = MARK;
    [a, b, c, d, what]
}

/// A command did not reach its device.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The environment has a wrong value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No device has the address.
    #[error(
        "no software HCA in this network namespace has the address {address}; the GIDs \
         of `ibv_devinfo -v` end with the addresses of a program's devices"
    )]
    Absent {
        /// The address.
        address: IpAddr,
    },
    /// Something has the address, but does not respond.
    #[error(
        "the software HCA at {address} does not respond: its process is stopped, or has another \
         {KEY_VARIABLE} or none, or is another user's"
    )]
    Silent {
        /// The address.
        address: IpAddr,
    },
    /// The kernel refuses to send.
    #[error("cannot send to the software HCA at {address}: {source}")]
    Socket {
        /// The address.
        address: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Takes the link of the port with `address`, of a device of any process of this user on this
/// machine, down or up. The key is that of [`Config::from_env`], by default the user's.
///
/// # Errors
/// [`LinkError`]: there is no such device, or it has another key.
pub fn set_link(address: IpAddr, up: bool) -> Result<(), LinkError> {
    let key = Config::from_env()?.key.map_or_else(Key::of_user, Ok)?;
    send(address, &Tags::new(key), message(if up { UP } else { DOWN }))
}

fn send(address: IpAddr, tags: &Tags, message: [u8; 5]) -> Result<(), LinkError> {
    let failed = |source: io::Error| match source.kind() {
        // No process has the port, or the machine does not have the address.
        ErrorKind::ConnectionRefused | ErrorKind::AddrNotAvailable => LinkError::Absent { address },
        _ => LinkError::Socket { address, source },
    };
    let socket = UdpSocket::bind((address, 0)).map_err(failed)?;
    socket.connect(SocketAddr::new(address, ROCE_PORT)).map_err(failed)?;
    socket.set_read_timeout(Some(REPEAT)).map_err(failed)?;
    let datagram = [&message[..], &tags.tag(address, address, &message)].concat();
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        socket.send(&datagram).map_err(failed)?;
        let mut received = vec![0; datagram.len()];
        match socket.recv(&mut received) {
            Ok(length) => {
                received.truncate(length);
                if tags.take(address, address, &mut received) && received == response() {
                    return Ok(());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(LinkError::Silent { address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_no_command() {
        assert_eq!(
            [DOWN, UP, DONE, 3].map(|what| read(&message(what))),
            [Some(false), Some(true), None, None]
        );
        for bytes in [&b""[..], b"bwl\x01", b"bwl\x01\x01\x00", b"bwn\x01\x01"] {
            assert_eq!(read(bytes), None);
        }
    }
}
