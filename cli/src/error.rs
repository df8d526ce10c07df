//! Errors that end a command, each as one line of text.

use crate::peer::Peer;
use std::time::Duration;
use thiserror::Error;

/// The reason why a command ends.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The command line is invalid; exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The peer process ended.
    #[error("lost {peer} during {during}: {cause}")]
    PeerGone { peer: Peer, during: String, cause: String },
    /// The peer process is running but sends nothing.
    #[error(
        "no message from {peer} for {:.0} s during {during}: it is stopped or busy with another client, or the network \
         between is down",
        .silence.as_secs_f64()
    )]
    PeerSilent { peer: Peer, during: String, silence: Duration },
    /// The peer ended the command and reported the reason.
    #[error("{peer} gave up during {during}: {reason}")]
    PeerGaveUp { peer: Peer, during: String, reason: String },
    /// The peer is another program, another version, or runs another command.
    #[error("cannot work with {peer}: {what}")]
    Protocol { peer: Peer, what: String },
    /// The peer is running, but makes no progress.
    #[error("no progress for {:.0} s during {during} with {peer}", .silence.as_secs_f64())]
    Stalled { peer: Peer, during: String, silence: Duration },
    /// An operation of the library failed.
    #[error("{during} with {peer} failed: {cause}")]
    Operation { peer: Peer, during: String, cause: String },
    /// The received data differs from the sent data.
    #[error("{0}")]
    Mismatch(String),
    /// Any other error of this process.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// The exit code: 2 for an invalid command line, 1 otherwise.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }

    /// Returns `true` if the peer already has the reason, or cannot be notified.
    pub(crate) fn peer_is_done(&self) -> bool {
        matches!(self, Self::PeerGone { .. } | Self::PeerGaveUp { .. })
    }
}

/// Formats a failed action with its error and the error's sources: `what: error: source`.
pub(crate) fn local(what: impl std::fmt::Display, error: &dyn std::error::Error) -> Error {
    Error::Local(format!("{what}: {}", chain(error)))
}

/// An error with its sources, without repetitions.
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

/// Makes any text one printable line, because it may come from a peer and is written to a terminal.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let words =
        text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
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
