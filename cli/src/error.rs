//! What can end a command, said in one line.

use crate::link::Peer;
use std::time::Duration;
use thiserror::Error;

/// What ends a command.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The command line, or what it asks for, makes no sense; exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The peer's process is gone.
    #[error("lost {peer} during {during}: {cause}")]
    PeerGone { peer: Peer, during: String, cause: String },
    /// The peer's process is there but says nothing.
    #[error(
        "{peer} said nothing for {:.0} s during {during}: it is stopped or busy with another client, or the network \
         between is down",
        .silence.as_secs_f64()
    )]
    PeerSilent { peer: Peer, during: String, silence: Duration },
    /// The peer ended the work and said why.
    #[error("{peer} gave up during {during}: {reason}")]
    PeerGaveUp { peer: Peer, during: String, reason: String },
    /// The peer is no barewire, or another one, or does other work.
    #[error("cannot work with {peer}: {what}")]
    Protocol { peer: Peer, what: String },
    /// The peer lives, but nothing moves.
    #[error("no progress for {:.0} s during {during} with {peer}", .silence.as_secs_f64())]
    Stalled { peer: Peer, during: String, silence: Duration },
    /// An operation of the library failed.
    #[error("{during} with {peer} failed: {cause}")]
    Operation { peer: Peer, during: String, cause: String },
    /// What arrived is not what was sent.
    #[error("{0}")]
    Mismatch(String),
    /// Anything on this side that is told in one line.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// The exit code: 2 for what the user wrote, 1 for what happened.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }

    /// True if the peer knows already why the work ends, or cannot be told.
    pub(crate) fn peer_is_done(&self) -> bool {
        matches!(self, Self::PeerGone { .. } | Self::PeerGaveUp { .. })
    }
}

/// Puts an error and its sources in front of a description of what was tried: `what: error: source`.
pub(crate) fn local(what: impl std::fmt::Display, error: &dyn std::error::Error) -> Error {
    Error::Local(format!("{what}: {}", chain(error)))
}

/// An error with its sources, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

/// Makes any text one printable line: it may come from a peer, and goes to a terminal.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let words = text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > LONGEST {
            line = line.chars().take(LONGEST).chain(" ...".chars()).collect();
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_comes_becomes_one_line() {
        assert_eq!(one_line("a\n\tb  \u{1b}[31mc\r"), "a b [31mc");
        assert!(one_line(&"é".repeat(5000)).chars().count() < 700);
    }
}
