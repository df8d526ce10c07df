//! Whether the processes of peers still live.
//!
//! A kernel ends the connections of a process that ends, however that happens. The devices of a
//! process end with it and say nothing, so a process holds a stream to each process of its user, in
//! its network namespace, that it is connected to: the kernel closes the stream when either ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;

use super::directory::{is_own, own_name};
use super::lock;

/// Most streams of peers that a process holds. Later ones stay in the backlog, which works as well.
const MOST: usize = 1024;

/// The streams by which this process learns of the end of others, and they of its own.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// One for each address of this process.
    own: Mutex<Vec<UnixListener>>,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    /// Those of peers, open until the peer closes them.
    held: Vec<UnixStream>,
    /// One to each peer; `None` if it has no name here: it is on another host, or of another user.
    to: BTreeMap<IpAddr, Option<UnixStream>>,
}

impl Life {
    /// Lets others learn of the end of this process, whose devices have these addresses.
    pub(super) fn show(&self, addresses: impl Iterator<Item = IpAddr>) {
        let listen = |address| {
            let listener =
                UnixListener::bind_addr(&own_name(format_args!("life/{address}")).ok()?).ok()?;
            listener.set_nonblocking(true).ok()?;
            Some(listener)
        };
        *lock(&self.own) = addresses.filter_map(listen).collect();
    }

    /// Watches the processes that have these addresses. Returns those that have ended.
    pub(super) fn watch(&self, peers: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let mut streams = lock(&self.streams);
        streams.held.retain(|stream| !has_ended(stream));
        for listener in &*lock(&self.own) {
            while streams.held.len() < MOST
                && let Ok((stream, _)) = listener.accept()
            {
                if is_own(&stream) {
                    streams.held.push(stream);
                }
            }
        }
        streams.to.retain(|peer, _| peers.contains(peer));
        for &peer in peers {
            streams.to.entry(peer).or_insert_with(|| connect(peer));
        }
        let mut ended = Vec::new();
        for (&peer, stream) in &mut streams.to {
            if stream.as_ref().is_some_and(has_ended) {
                *stream = None;
                ended.push(peer);
            }
        }
        ended
    }

    /// Returns the descriptors to wait for, with the events.
    pub(super) fn descriptors(&self) -> Vec<(RawFd, i16)> {
        let streams = lock(&self.streams);
        let has_room = streams.held.len() < MOST;
        let own = lock(&self.own);
        let own = own.iter().filter(|_| has_room).map(|it| (it.as_raw_fd(), libc::POLLIN));
        let to = streams.to.values().flatten();
        own.chain(streams.held.iter().chain(to).map(|stream| (stream.as_raw_fd(), 0))).collect()
    }
}

/// Connects to the process that has an address, without waiting.
fn connect(peer: IpAddr) -> Option<UnixStream> {
    let name = own_name(format_args!("life/{peer}")).ok()?;
    let name = name.as_abstract_name()?;
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // An abstract name begins with a zero.
    for (to, &from) in address.sun_path.get_mut(1..)?.get_mut(..name.len())?.iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the address is live and has at least `length` bytes; a descriptor that the kernel
    // returns is open and has no other owner.
    let stream = unsafe {
        let descriptor = libc::socket(libc::AF_UNIX, kind, 0);
        if descriptor < 0 {
            return None;
        }
        let stream = UnixStream::from(OwnedFd::from_raw_fd(descriptor));
        let connected = libc::connect(descriptor, (&raw const address).cast(), length as u32);
        (connected == 0).then_some(stream)?
    };
    is_own(&stream).then_some(stream)
}

/// Returns whether the other end was closed.
fn has_ended(stream: &UnixStream) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the structure is live.
    unsafe { libc::poll(&raw mut polled, 1, 0) };
    polled.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_noticed_once() {
        let address = IpAddr::from([127, 77, random(), random()]);
        let peers = BTreeSet::from([address]);
        let (here, there) = (Life::default(), Life::default());
        // A peer without a name is never reported.
        assert!(here.watch(&peers).is_empty());
        assert!(here.watch(&BTreeSet::new()).is_empty());
        there.show([address].into_iter());
        assert!(here.watch(&peers).is_empty() && there.watch(&BTreeSet::new()).is_empty());
        assert_eq!(there.descriptors().len(), 2);
        assert!(here.watch(&peers).is_empty());
        drop(there);
        assert_eq!(here.watch(&peers), [address]);
        assert!(here.watch(&peers).is_empty() && here.descriptors().is_empty());
    }

    #[test]
    fn streams_of_peers_that_ended_are_closed() {
        let address = IpAddr::from([127, 78, random(), random()]);
        let life = Life::default();
        life.show([address].into_iter());
        for _ in 0..3 {
            let peer = Life::default();
            assert!(peer.watch(&BTreeSet::from([address])).is_empty());
            assert!(life.watch(&BTreeSet::new()).is_empty());
            assert_eq!(life.descriptors().len(), 2);
            drop(peer);
            life.watch(&BTreeSet::new());
            assert_eq!(life.descriptors().len(), 1);
        }
    }

    fn random() -> u8 {
        super::super::state::random() as u8
    }
}
