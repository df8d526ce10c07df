//! From which length a rendezvous is faster than an eager message.
//!
//! The time of each protocol is a line over the length: a fixed part, and a part for each byte. The
//! threshold is where the two lines cross. The numbers are those of the lanes, which are models:
//! measure with `barewire perf -t tag_lat`, and set the threshold if the model is wrong.

use std::fmt;

use barewire::{Attributes, Flags};

use super::Lane;

/// Bytes per nanosecond of a copy between buffers of this process and of the transport; the value
/// that UCX assumes (`UCX_BCOPY_BW`).
const COPY: f64 = 7.0;
/// Time to find a registration that is kept, in nanoseconds.
const REGISTRATION_NS: f64 = 50.0;

/// A time over the length of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Nanoseconds for a message of no bytes.
    pub fixed_ns: f64,
    /// Nanoseconds for each byte.
    pub per_byte_ns: f64,
}

/// The time of both protocols of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// The payload in one message, copied at both ends.
    pub eager: Line,
    /// Announcement, get or put, and the report of its end. `None` if no lane can get or put.
    pub rendezvous: Option<Line>,
}

/// The numbers of a lane that the costs follow from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Time of a message on one CPU, in nanoseconds.
    pub overhead_ns: f64,
    /// Time of a message over the wire, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes per second.
    pub bandwidth: f64,
}

impl From<&Attributes> for Speed {
    fn from(lane: &Attributes) -> Self {
        let Attributes { overhead_ns, latency_ns, bandwidth, .. } = *lane;
        Self { overhead_ns, latency_ns, bandwidth }
    }
}

/// The mean of both sides.
impl From<&Lane> for Speed {
    fn from(lane: &Lane) -> Self {
        let Lane { overhead_ns, latency_ns, bandwidth, .. } = *lane;
        Self { overhead_ns: overhead_ns / 2.0, latency_ns, bandwidth }
    }
}

impl Costs {
    /// The costs of a link whose messages and bulk data use lanes with these attributes.
    pub fn new<'a>(messages: &Attributes, bulk: impl IntoIterator<Item = &'a Attributes>) -> Self {
        let bulk = bulk.into_iter().filter(|lane| can_move(lane)).map(Speed::from);
        Self::of(messages.into(), bulk)
    }

    /// The costs over lanes of these speeds. Those of `bulk` can get or put.
    pub fn of(messages: Speed, bulk: impl IntoIterator<Item = Speed>) -> Self {
        let message_ns = messages.overhead_ns + messages.latency_ns;
        let eager =
            Line { fixed_ns: message_ns, per_byte_ns: 1e9 / messages.bandwidth + 2.0 / COPY };
        let lines = bulk.into_iter().map(|lane| Line {
            // Announcement and report; a request and its response over the other lane.
            fixed_ns: 2.0 * message_ns
                + lane.overhead_ns
                + 2.0 * lane.latency_ns
                + 2.0 * REGISTRATION_NS,
            per_byte_ns: 1e9 / lane.bandwidth,
        });
        // The lane that moves data fastest is used.
        Self { eager, rendezvous: lines.min_by(|a, b| a.per_byte_ns.total_cmp(&b.per_byte_ns)) }
    }

    /// Length from which a rendezvous is faster; `None` if it never is.
    pub fn crossing(&self) -> Option<usize> {
        let rendezvous = self.rendezvous?;
        let slower = self.eager.per_byte_ns - rendezvous.per_byte_ns;
        (slower > 0.0)
            .then(|| ((rendezvous.fixed_ns - self.eager.fixed_ns).max(0.0) / slower) as usize)
    }
}

/// Whether a lane can move the payload of a rendezvous.
fn can_move(lane: &Attributes) -> bool {
    lane.flags.intersects(Flags::GET_ZCOPY | Flags::PUT_ZCOPY)
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ns + {:.3} ns per byte", self.fixed_ns, self.per_byte_ns)
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eager {}; rendezvous ", self.eager)?;
        match self.rendezvous {
            Some(line) => write!(f, "{line}")?,
            None => return f.write_str("in fragments only: no lane can get or put"),
        }
        match self.crossing() {
            Some(length) => write!(f, "; rendezvous is faster from {length} bytes"),
            None => f.write_str("; eager is always faster"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(device: &str) -> Attributes {
        let mut worker = barewire::Worker::new();
        let domain = barewire::Domain::open(&device.parse().unwrap()).unwrap();
        let config = barewire::InterfaceConfig::default();
        barewire::Interface::open(&mut worker, &domain, &config).unwrap().attributes().clone()
    }

    #[test]
    fn the_lines_meet_at_the_crossing() {
        let (shm, cma, tcp) = (lane("shm/memory"), lane("cma/memory"), lane("tcp/lo"));
        for (messages, bulk) in [(&shm, &cma), (&tcp, &tcp), (&shm, &tcp)] {
            let costs = Costs::new(messages, [bulk]);
            let Some(crossing) = costs.crossing() else { panic!("{costs}") };
            let at = |line: Line, length: usize| line.fixed_ns + line.per_byte_ns * length as f64;
            let rendezvous = costs.rendezvous.unwrap();
            // Two bytes, because the numbers are rounded.
            let (above, below) = (crossing + 2, crossing.saturating_sub(2));
            assert!(at(rendezvous, above) < at(costs.eager, above), "{costs}");
            assert!(at(rendezvous, below) > at(costs.eager, below), "{costs}");
        }
    }

    #[test]
    fn without_a_lane_for_data_there_is_no_crossing() {
        let shm = lane("shm/memory");
        let costs = Costs::new(&shm, []);
        assert_eq!(costs.crossing(), None);
        assert!(costs.to_string().contains("fragments only"), "{costs}");
        // Over a lane that is slower than copies, eager is always faster.
        let mut slow = lane("cma/memory");
        slow.bandwidth = 1e6;
        assert!(Costs::new(&shm, [&slow]).to_string().ends_with("eager is always faster"));
    }
}
