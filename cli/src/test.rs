//! What `barewire perf` measures, and how the data is sent.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Test {
    /// Active message ping-pong; half round trip
    AmLat,
    /// Put ping-pong, memory polled; half round trip
    PutLat,
    /// Atomic add ping-pong, memory polled; half round trip
    AddLat,
    /// Gets: latency, or rate with a window
    Get,
    /// Fetch-and-add: latency, or rate with a window
    Fadd,
    /// Swap: latency, or rate with a window
    Swap,
    /// Compare-and-swap: latency, or rate with a window
    Cswap,
    /// Stream of active messages
    AmBw,
    /// Stream of puts
    PutBw,
    /// Stream of atomic adds
    AddMr,
    /// Tagged message ping-pong; half round trip
    TagLat,
    /// Stream of tagged messages
    TagBw,
    /// Channel message ping-pong, rc_mlx5 only; half round trip
    ChannelLat,
    /// Stream of channel messages, rc_mlx5 only
    ChannelBw,
}

impl Test {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AmLat => "am_lat",
            Self::PutLat => "put_lat",
            Self::AddLat => "add_lat",
            Self::Get => "get",
            Self::Fadd => "fadd",
            Self::Swap => "swap",
            Self::Cswap => "cswap",
            Self::AmBw => "am_bw",
            Self::PutBw => "put_bw",
            Self::AddMr => "add_mr",
            Self::TagLat => "tag_lat",
            Self::TagBw => "tag_bw",
            Self::ChannelLat => "channel_lat",
            Self::ChannelBw => "channel_bw",
        }
    }

    /// The description in the banner.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::AmLat => "active message latency",
            Self::PutLat => "put latency",
            Self::AddLat => "atomic add latency",
            Self::Get => "get latency / bandwidth / message rate",
            Self::Fadd => "atomic fetch-and-add latency / rate",
            Self::Swap => "atomic swap latency / rate",
            Self::Cswap => "atomic compare-and-swap latency / rate",
            Self::AmBw => "active message bandwidth / message rate",
            Self::PutBw => "put bandwidth / message rate",
            Self::AddMr => "atomic add message rate",
            Self::TagLat => "tag match latency",
            Self::TagBw => "tag match bandwidth",
            Self::ChannelLat => "channel message latency",
            Self::ChannelBw => "channel message bandwidth",
        }
    }

    /// Returns whether each side responds to the other.
    pub(crate) fn is_ping_pong(self) -> bool {
        matches!(self, Self::AmLat | Self::PutLat | Self::AddLat | Self::TagLat | Self::ChannelLat)
    }

    /// Returns whether messages follow each other without a response.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Self::AmBw | Self::PutBw | Self::AddMr | Self::TagBw | Self::ChannelBw)
    }

    /// Returns whether the program of the target takes no part.
    pub(crate) fn is_one_sided(self) -> bool {
        !self.is_message()
    }

    /// Returns whether the test uses active messages, tagged ones or those of channels.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::AmLat | Self::AmBw) || self.is_tagged() || self.is_channel()
    }

    /// Returns whether the test uses messages of channels.
    pub(crate) fn is_channel(self) -> bool {
        matches!(self, Self::ChannelLat | Self::ChannelBw)
    }

    /// Returns whether the test uses tagged messages.
    pub(crate) fn is_tagged(self) -> bool {
        matches!(self, Self::TagLat | Self::TagBw)
    }
}

/// The way in which data is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Layout {
    /// From the argument
    Short,
    /// From several slices, active messages only
    ShortIov,
    /// Through a buffer of the interface
    Bcopy,
    /// Directly from registered memory
    Zcopy,
}

impl Layout {
    pub(crate) const ALL: [Self; 4] = [Self::Short, Self::ShortIov, Self::Bcopy, Self::Zcopy];
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "short",
            Self::ShortIov => "short iov",
            Self::Bcopy => "bcopy",
            Self::Zcopy => "zcopy",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for test in Test::value_variants() {
            assert_eq!(Test::from_str(test.name(), false), Ok(*test));
        }
    }
}
