//! Queue pair 1 of the ports: the general services interface (IBTA 13.5.1), to which managers of
//! connections send their datagrams.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_layouts::management::MAD_BYTES;

use super::EventChannel;

/// Most datagrams that are kept for a manager that does not read them. Later ones are lost; their
/// senders repeat them.
const MOST: usize = 4096;

/// A management datagram that a port has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// The port, from 1.
    pub port: u8,
    /// The sender. Everyone who reaches the port can send any bytes.
    pub source: IpAddr,
    /// Its contents.
    pub bytes: [u8; MAD_BYTES],
}

/// The management datagrams that the ports of a device receive.
#[derive(Debug)]
pub struct Management {
    channel: EventChannel,
    datagrams: Mutex<VecDeque<ManagementDatagram>>,
}

impl Management {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { channel: EventChannel::new()?, datagrams: Mutex::default() })
    }

    /// Adds a datagram. Returns false if there is no room.
    pub(crate) fn push(&self, datagram: ManagementDatagram) -> bool {
        let mut datagrams = self.datagrams();
        let has_room = datagrams.len() < MOST;
        if has_room {
            datagrams.push_back(datagram);
            self.channel.ring();
        }
        has_room
    }

    /// Takes the oldest datagram, without waiting.
    pub fn next_datagram(&self) -> Option<ManagementDatagram> {
        let mut datagrams = self.datagrams();
        let datagram = datagrams.pop_front();
        if datagrams.is_empty() {
            self.channel.take();
        }
        datagram
    }

    fn datagrams(&self) -> MutexGuard<'_, VecDeque<ManagementDatagram>> {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Readable while there are datagrams.
impl AsFd for Management {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
