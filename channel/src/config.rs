//! Settings of a channel.

use std::time::Duration;

/// Most rails of a channel.
pub const MAX_RAILS: usize = 8;
/// Most queue pairs of a rail.
pub const MAX_PAIRS: usize = 8;
/// Most buffers of a group.
pub const MAX_GROUP: usize = 8;
/// Groups that may be posted before the first of them was tested successfully.
pub const MAX_GROUPS: usize = 32;

barewire_layouts::with_setters! {
    /// Settings of one end of a channel. Where the ends differ, the smaller value counts.
    #[derive(Clone, Debug)]
    pub struct Config {
        /// Longest message in bytes, further limited by 1 GiB per rail.
        pub max_message: u64,
        /// Queue pairs per rail, 1 to 8. Successive messages use them in turn, so that routers
        /// spread them over paths.
        pub pairs: u8,
        /// Longest message in bytes that is written by one rail only. Longer ones are cut over the
        /// rails in use.
        pub whole: u64,
        /// Messages of at least this many bytes are written without an immediate, followed by their
        /// length with an immediate. Where switches route adaptively, the packets of such a write
        /// may take several paths; those of a write with an immediate stay in order. `None` is 8192
        /// if one of the rails is InfiniBand, and otherwise no message. Only that of the sender
        /// counts.
        pub adaptive_from: Option<u64>,
        /// Whether the channel may leave out rails that reach no rail of the peer. Otherwise every
        /// rail of the end with fewer rails must have a partner. Both ends must allow it.
        pub partial: bool,
        /// How long a connection may take, counted while
        /// [`Connector::poll`](crate::Connector::poll) or
        /// [`Listener::accept`](crate::Listener::accept) is called.
        pub timeout: Duration,
        /// How long the peer's host may be silent on an idle connection before it counts as lost.
        pub peer_timeout: Duration,
        /// Local acknowledge timeout of the queue pairs as an exponent: 4.096 us * 2^n. For a
        /// channel of one rail, which fails with it: with the default and seven retries, after 2.1 s
        /// at least. A channel of several rails fails as late: when none of them works, they are
        /// tried for `retry_count` + 1 timeouts of this length, and `timeout` at most.
        pub ack_timeout: u8,
        /// The same for a channel of several rails, where the others take over. With the default
        /// and seven retries, a rail is lost after 0.13 to 0.54 s without a response: a device may
        /// wait up to four times as long as the timeout.
        pub fail_over_timeout: u8,
        /// Retries of the queue pairs before they fail, at most 7.
        pub retry_count: u8,
        /// Traffic class of the packets: on RoCE, the six upper bits are the DSCP.
        pub traffic_class: u8,
        /// Service level of the packets, at most 15.
        pub service_level: u8,
        /// Whether connections use the enhancements (ECE) that the devices of both ends support,
        /// such as selective repeat. Both ends must allow it.
        pub enhancements: bool,
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_message: u64::MAX,
            pairs: 1,
            whole: 4096,
            adaptive_from: None,
            partial: false,
            timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(30),
            ack_timeout: 16,
            fail_over_timeout: 12,
            retry_count: 7,
            traffic_class: 106,
            service_level: 0,
            enhancements: true,
        }
    }
}
