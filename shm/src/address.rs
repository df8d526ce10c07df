//! Where a port is found, and who may attach to it.

use std::path::PathBuf;

/// Where a port is found: enough to find it, and a secret without which it answers nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// In its socket's name.
    pub number: u64,
    /// Known to those who were given the address.
    pub secret: u128,
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
    /// Where sockets are, the same for both sides; `None` for the abstract namespace, which leaves nothing behind.
    pub directory: Option<PathBuf>,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            fifo_slots: 256,
            lane_slots: 128,
            lane_after: 32,
            buffers: 32,
            users: Users::Same,
            directory: None,
        }
    }
}
