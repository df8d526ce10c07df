//! Addresses and settings of ports.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::rand::{GetRandomFlags, getrandom};

/// The address of a port: the number in its socket's name, and the secret that a peer must present
/// to be admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// The number in the socket's name.
    pub number: u64,
    /// The secret. Only processes that were given the address know it.
    pub secret: u128,
}

impl PortAddress {
    /// Returns an address with a random number and a random secret.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 24];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            filled += rustix::io::retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
        }
        let [number, low, high] = [0, 8, 16]
            .map(|at| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)));
        Ok(Self { number, secret: u128::from(high) << 64 | u128::from(low) })
    }
}

/// Omits the secret.
impl fmt::Debug for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = format_args!("{:016x}", self.number);
        f.debug_struct("PortAddress").field("number", &number).finish_non_exhaustive()
    }
}

/// The location of the sockets of ports. Both sides must use the same one, or [`Place::Private`] on
/// one side and [`Place::Abstract`] on the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// A directory that only this user can enter: `barewire` in `$XDG_RUNTIME_DIR`, or
    /// `/tmp/barewire-UID`. If neither is available, the abstract namespace.
    #[default]
    Private,
    /// The given directory.
    Directory(PathBuf),
    /// The abstract namespace, which leaves no files. Every user of the network namespace can
    /// connect there; the port refuses users that may not attach.
    Abstract,
}

/// The users whose processes may attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Users {
    /// The user of this process, and root.
    #[default]
    Same,
    /// Any user that has the address.
    Any,
}

impl Users {
    pub(crate) fn allow(self, user: u32) -> bool {
        self == Self::Any || user == 0 || user == rustix::process::geteuid().as_raw()
    }
}

/// Settings of a port, and of the peers that connect to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// Capacity in messages of the FIFO that all senders share; a power of two.
    pub fifo_slots: usize,
    /// Cache lines of the SPSC ring of one sender, each for two messages of up to 16 bytes or for
    /// one of up to 48; a power of two.
    pub ring_slots: usize,
    /// Messages that a sender sends through the FIFO before it creates its SPSC ring.
    pub ring_after: u32,
    /// Buffers per sender for messages that do not fit into a slot, 1 to 64. They are allocated
    /// when the first such message is sent.
    pub buffers: usize,
    /// The users whose processes may attach.
    pub users: Users,
    /// The location of the sockets.
    pub place: Place,
    /// Whether peers in the port's own process connect without its progress. Both sides must set
    /// this. Such a peer can send at once, and maps the port's regions without requests.
    pub direct: bool,
    /// Whether to map regions of peers that lie in huge pages. If the peer releases such a page
    /// while no other is free, an access in this process raises SIGBUS, which ends the process.
    pub huge_pages: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            fifo_slots: 256,
            ring_slots: 128,
            ring_after: 32,
            buffers: 32,
            users: Users::Same,
            place: Place::Private,
            direct: false,
            huge_pages: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_no_secret() {
        let secret = 0x1234_5678_9abc_def0_1234_5678_9abc_def0;
        let text = format!("{:?}", PortAddress { number: 0xabcd, secret });
        assert_eq!(text, "PortAddress { number: 000000000000abcd, .. }");
    }
}
