//! Settings of an interface.

use std::time::Duration;

use crate::error::OpenError;

/// Sizes and times of an interface, fixed when it is opened. Transports use what concerns them.
///
/// ```
/// let config = barewire::InterfaceConfig { send_ring: 64, ..Default::default() };
/// assert_eq!(config.retry_count, 7);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Room of each endpoint's send queue, in 64-byte WQE building blocks; a power of two, 16 to 32768.
    pub send_ring: u32,
    /// Messages that an endpoint can receive ahead of progress; a power of two, 4 to 32768.
    pub receive_ring: u32,
    /// Messages per endpoint that handlers can keep before it starts to run out of receive buffers.
    pub spare_receive_buffers: u32,
    /// Endpoints of the interface; its completion queue is sized for them.
    pub max_endpoints: u32,
    /// Buffers of 8 KiB that buffered operations, or messages of `self`, have in flight at once.
    pub bcopy_buffers: u32,
    /// A completion is asked of the device for every this many operations that need none of their own.
    pub signal_every: u32,
    /// Payload bytes per packet: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// Local ack timeout exponent: 4.096 us * 2^timeout (IBTA 9.7.6.1.3); 0 waits for ever.
    pub ack_timeout: u8,
    /// Retries without any answer before the peer counts as gone, 0 to 7.
    pub retry_count: u8,
    /// Retries of a receiver that is not ready, 0 to 6, or 7 for no limit.
    pub rnr_retry: u8,
    /// Receiver-not-ready timer code sent to peers (IBTA table 45), 1 to 31.
    pub min_rnr_timer: u8,
    /// Reads and atomics in flight per endpoint, and served per endpoint: 1 to 16, rounded down to a power of two.
    pub max_rd_atomic: u8,
    /// How long a connection of `tcp` may take until it is there.
    pub connect_timeout: Duration,
    /// How long a peer of `tcp` may acknowledge nothing until it counts as gone.
    pub peer_timeout: Duration,
}

impl Default for InterfaceConfig {
    fn default() -> Self {
        Self {
            send_ring: 256,
            receive_ring: 128,
            spare_receive_buffers: 32,
            max_endpoints: 16,
            bcopy_buffers: 128,
            signal_every: 32,
            path_mtu: 4096,
            // 268 ms and 7 retries: a dead peer is reported within about two seconds, and a peer that merely
            // lost its CPU for a while is not.
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 8,
            connect_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(30),
        }
    }
}

impl InterfaceConfig {
    /// `bcopy_buffers`, checked.
    pub(crate) fn checked_bcopy_buffers(&self, transport: &'static str) -> Result<usize, OpenError> {
        check(transport, "bcopy_buffers", self.bcopy_buffers, 1, 65536)?;
        Ok(self.bcopy_buffers as usize)
    }
}

/// Refuses a setting outside `least..=most`.
pub(crate) fn check(
    transport: &'static str,
    setting: &'static str,
    value: u32,
    least: u32,
    most: u32,
) -> Result<(), OpenError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(OpenError::Setting {
        transport,
        setting,
        value: value.into(),
        reason: format!("it must be from {least} to {most}"),
    })
}
