//! Whether the processes of peers still live.
//!
//! A kernel ends the connections of a process that ends, however that happens. The devices of a
//! process end with it and say nothing, so a process holds a stream to each process of its user, in
//! its network namespace, that it is connected to: the kernel closes the stream when either ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::directory::{accept, connect_now, is_own, listen, own_name};
use super::lock;
use crate::private::Private;

/// Most streams of peers that a process holds. Later ones stay in the backlog, which works as well.
const MOST: usize = 128;
/// How long a peer without a name is not asked again: its process may be about to show itself.
const AGAIN: Duration = Duration::from_millis(100);

/// The streams by which this process learns that another one has ended, and the other that this one
/// has.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// One for each address of this process.
    own: Mutex<Vec<Private<UnixListener>>>,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    /// Those of peers, open until the peer closes them.
    held: Vec<Private<UnixStream>>,
    to: BTreeMap<IpAddr, Watched>,
}

/// A peer.
#[derive(Debug)]
struct Watched {
    /// `None` if it has no name here: it is on another host, of another user, or has ended.
    stream: Option<Private<UnixStream>>,
    asked: Instant,
}

impl Watched {
    fn new(peer: IpAddr) -> Self {
        let stream = name(peer).and_then(|name| connect_now(&name)).ok();
        Self { stream, asked: Instant::now() }
    }
}

impl Life {
    /// Lets others learn of the end of this process, whose devices have these addresses.
    pub(super) fn show(&self, addresses: impl Iterator<Item = IpAddr>) {
        let show = |address| listen(&name(address).ok()?).ok();
        *lock(&self.own) = addresses.filter_map(show).collect();
    }

    /// Watches the processes that have these addresses. Returns those that have ended.
    pub(super) fn watch(&self, peers: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let mut streams = lock(&self.streams);
        streams.held.retain(|stream| !has_ended(stream));
        for listener in &*lock(&self.own) {
            // Strangers do not count, so there is a limit for one call, too.
            for _ in streams.held.len()..MOST {
                let Some(stream) = accept(listener) else { break };
                if is_own(&stream) {
                    streams.held.push(stream);
                }
            }
        }
        streams.to.retain(|peer, _| peers.contains(peer));
        let mut ended = Vec::new();
        for &peer in peers {
            let watched = streams.to.entry(peer).or_insert_with(|| Watched::new(peer));
            if watched.stream.as_deref().is_some_and(has_ended) {
                watched.stream = None;
                ended.push(peer);
            } else if watched.stream.is_none() && watched.asked.elapsed() > AGAIN {
                *watched = Watched::new(peer);
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
        let to = streams.to.values().filter_map(|watched| watched.stream.as_ref());
        own.chain(streams.held.iter().chain(to).map(|stream| (stream.as_raw_fd(), 0))).collect()
    }
}

/// The name of the process that has an address.
fn name(address: IpAddr) -> std::io::Result<SocketAddr> {
    own_name(format_args!("life/{address}"))
}

/// Returns whether the other end was closed.
fn has_ended(stream: &UnixStream) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the structure is live.
    unsafe { libc::poll(&raw mut polled, 1, 0) };
    polled.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
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
