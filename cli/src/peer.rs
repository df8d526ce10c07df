//! The two processes of a command: their roles, and what they run.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The role of a process in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Started by the user; the initiator.
    First,
    /// Started by the first; the responder.
    Second,
    /// Waits for a client; the responder.
    Server,
    /// Connects to a server; the initiator.
    Client,
}

impl Role {
    /// The role of the peer.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "the first process",
            Self::Second => "the second process",
            Self::Server => "the server",
            Self::Client => "the client",
        })
    }
}

/// The commands that run in a pair of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Demo,
    Doctor,
    Hello,
    Perf,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Demo => "demo",
            Self::Doctor => "doctor",
            Self::Hello => "hello",
            Self::Perf => "perf",
        })
    }
}

/// The peer process.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) pid: Option<u32>,
    /// Host of the peer, unless it is the other process of a pair or a client on this machine.
    pub(crate) place: Option<String>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.place) {
            (Some(pid), Some(place)) => write!(f, "{} (pid {pid}, {place})", self.role),
            (Some(pid), None) => write!(f, "{} (pid {pid})", self.role),
            (None, Some(place)) => write!(f, "{} ({place})", self.role),
            (None, None) => self.role.fmt(f),
        }
    }
}
