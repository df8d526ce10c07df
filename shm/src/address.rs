//! Where a port is found, and who may attach to it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::rand::{GetRandomFlags, getrandom};

/// Where a port is found: enough to find it, and a secret without which it answers nobody.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// In its socket's name.
    pub number: u64,
    /// Known to those who were given the address.
    pub secret: u128,
}

impl PortAddress {
    /// An address that no other process has, with a secret that none can guess.
    ///
    /// # Errors
    /// What getrandom(2) says.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 24];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            filled += rustix::io::retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
        }
        let [number, low, high] =
            [0, 8, 16].map(|at| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)));
        Ok(Self { number, secret: u128::from(high) << 64 | u128::from(low) })
    }
}

/// Without the secret.
impl fmt::Debug for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = format_args!("{:016x}", self.number);
        f.debug_struct("PortAddress").field("number", &number).finish_non_exhaustive()
    }
}

/// Where the sockets of ports are. Both sides need the same, or [`Place::Private`] on one and
/// [`Place::Abstract`] on the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// In a directory that only this user can enter: `barewire` in `$XDG_RUNTIME_DIR`, or
    /// `/tmp/barewire-UID`. The abstract namespace where neither can be had.
    #[default]
    Private,
    /// In this directory.
    Directory(PathBuf),
    /// In the abstract namespace, which leaves nothing behind, and where every user of the network
    /// namespace can connect, to be refused.
    Abstract,
}

/// The users whose processes may attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Users {
    /// The user of this process, and root.
    #[default]
    Same,
    /// Any user who has the address.
    Any,
}

impl Users {
    pub(crate) fn allow(self, user: u32) -> bool {
        self == Self::Any || user == 0 || user == rustix::process::geteuid().as_raw()
    }
}

/// How a port is opened, and how peers connect to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// Messages that the FIFO of all senders holds, a power of two.
    pub fifo_slots: usize,
    /// Messages that the lane of one sender holds, a power of two.
    pub lane_slots: usize,
    /// Messages by FIFO after which a sender gets a lane.
    pub lane_after: u32,
    /// Buffers per sender for messages that do not fit into a slot, 1 to 64; made when the first such message is sent.
    pub buffers: usize,
    /// Who may attach.
    pub users: Users,
    /// Where sockets are.
    pub place: Place,
    /// Takes regions of peers that lie in huge pages. A peer that gives such a page back while none is
    /// free makes an access here end the process (SIGBUS).
    pub huge_pages: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            fifo_slots: 256,
            lane_slots: 128,
            lane_after: 32,
            buffers: 32,
            users: Users::Same,
            place: Place::Private,
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
