//! Settings of an interface. Each is declared once, with its name, unit, default and documentation.

mod environment;
mod value;

use std::time::Duration;

pub use environment::{ConfigError, UnknownVariable, VARIABLES, Variable, unknown_variables};
use value::Value;
pub use value::{Choice, DciPolicy};

use crate::base::address::TransportId;
use crate::base::error::OpenError;

/// A setting as data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Name of the field and of the builder method.
    pub name: &'static str,
    /// The unit of the value.
    pub unit: &'static str,
    /// The default, in the format of [`Self::variable`].
    pub default: String,
    /// The value, in the same format.
    pub value: String,
    /// The documentation.
    pub doc: String,
}

impl Setting {
    /// Returns the name of the environment variable that sets it.
    pub fn variable(&self) -> String {
        environment::variable(self.name)
    }
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $unit:literal;)+) => {
        /// Settings of an interface, fixed when it is opened. A transport uses those that concern
        /// it.
        ///
        /// ```
        /// let config = barewire::InterfaceConfig::default().send_ring(64).max_endpoints(2);
        /// assert_eq!((config.send_ring, config.retry_count), (64, 7));
        /// ```
        ///
        /// [`Self::from_env`] lets the user of a program override its settings:
        /// `BAREWIRE_SEND_RING=64`.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct InterfaceConfig {
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for InterfaceConfig {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl InterfaceConfig {
            $($(#[doc = $doc])+
            #[must_use]
            pub fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            })+

            /// Returns every setting with its value.
            pub fn settings(&self) -> Vec<Setting> {
                let default = Self::default();
                vec![$(Setting {
                    name: stringify!($name),
                    unit: $unit,
                    default: default.$name.text(),
                    value: self.$name.text(),
                    doc: concat!($($doc),+).trim().to_owned(),
                },)+]
            }

            /// Names of the settings.
            const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// Returns these settings, with those that `variable` overrides.
            fn overruled(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
                $(environment::overrule(stringify!($name), $unit, &variable, &mut self.$name)?;)+
                environment::check_rings(&self, &variable)?;
                Ok(self)
            }
        }
    };
}

settings! {
    /// Size of each endpoint's send queue, in 64-byte WQE building blocks; a power of two, 16 to
    /// 32768.
    send_ring: u32 = 256, "blocks of 64 bytes";
    /// Messages that an endpoint can receive ahead of progress; a power of two, 4 to 32768.
    receive_ring: u32 = 128, "messages";
    /// Messages per endpoint that handlers can keep before its receive buffers run short.
    spare_receive_buffers: u32 = 32, "messages";
    /// Whether the endpoints of `rc_mlx5` or `rc_verbs` share one receive queue (SRQ). Its buffers
    /// start as those of one endpoint and grow on demand up to those of all, but at most to
    /// `max_receive_buffers`. An endpoint that posts nothing then detects a failed connection when it
    /// polls, not while it sleeps. `auto` excludes Soft-RoCE.
    shared_receive_queue: Choice = Choice::Auto, "auto, yes or no";
    /// Most receive buffers that the endpoints of an interface of `rc_mlx5`, `rc_verbs`, `ud_mlx5` or
    /// `ud_verbs` share, up to 32767, and at least `receive_ring`.
    max_receive_buffers: u32 = 4095, "buffers of 8 KiB";
    /// Whether the device of `rc_mlx5` matches tagged messages with receives, which needs set-up by
    /// PRM commands, and a second queue pair for each endpoint. All endpoints then receive from one
    /// queue.
    tag_matching: Choice = Choice::No, "auto, yes or no";
    /// Receives that the list of a device that matches tags has room for, 1 to 32767, and at most
    /// what the device allows.
    tag_list_size: u32 = 1023, "receives";
    /// Initiators (DCI) that the endpoints of `dc_mlx5` take in turn, 1 to 256. At most so many
    /// endpoints have operations outstanding at a time.
    dci_count: u32 = 8, "initiators";
    /// How endpoints of `dc_mlx5` take initiators. `lifo`: the one used last, until nothing is
    /// outstanding. `lru`: the one that is idle for longest. `quota`: as `lifo`, but while others
    /// wait, an endpoint that has posted 32 operations stops until they are complete. `hash`: each
    /// endpoint always uses the same one, with others; an error then fails all that have
    /// operations behind it.
    dci_policy: DciPolicy = DciPolicy::Quota, "lifo, lru, quota or hash";
    /// Messages that an endpoint of `dc_mlx5` sends before the peer must grant more, 2 to 32768.
    message_window: u32 = 512, "messages";
    /// Most endpoints of the interface. The completion queue of `rc_mlx5` and `rc_verbs` has 8 entries
    /// for each, and those of 16 full send rings, which busy endpoints take in turn. With private
    /// receive rings it has their entries as well, and the device may allow fewer endpoints.
    max_endpoints: u32 = 1024, "endpoints";
    /// Number of 8 KiB buffers for buffered operations, or for messages of `self`, in flight.
    bcopy_buffers: u32 = 128, "buffers of 8 KiB";
    /// A completion is requested for one of this many operations that need none themselves.
    signal_every: u32 = 32, "operations";
    /// Payload bytes per packet: 256, 512, 1024, 2048 or 4096.
    path_mtu: u32 = 4096, "bytes";
    /// Index in the port's GID table of the address that RDMA transports use. `auto` prefers RoCEv2
    /// and IPv4.
    gid_index: Option<u8> = None, "auto or an index";
    /// Partition of RDMA transports, by its key; the bit for full membership does not matter.
    /// `auto` is the first partition of the port's table with full membership.
    pkey: Option<u16> = None, "auto or a key, such as 0x8001";
    /// Traffic class of the packets of RDMA transports. On RoCE its six upper bits are the DSCP:
    /// 106 is DSCP 26, which UCX uses as well. The switches of the fabric decide what it means.
    traffic_class: u8 = 106, "0 to 255";
    /// Service level of the packets of RDMA transports: on RoCE, the Ethernet priority.
    service_level: u8 = 0, "0 to 15";
    /// Local ack timeout exponent: 4.096 us * 2^timeout (IBTA 9.7.6.1.3); 0 waits for ever. A device
    /// waits up to four times as long before each retry. With 16 (268 ms) and 7 retries, a peer
    /// that dies is reported 2 to 9 seconds after a post to it; the software HCA, which waits longer
    /// before each further retry, takes 7. A peer that lost its CPU for a while is not reported.
    ack_timeout: u8 = 16, "exponent of 4.096 us * 2^n";
    /// Retries without any response before the peer is unreachable, 0 to 7.
    retry_count: u8 = 7, "retries";
    /// Retries of a receiver that is not ready, 0 to 6, or 7 for no limit.
    rnr_retry: u8 = 7, "retries";
    /// Receiver-not-ready timer code sent to peers (IBTA table 45), 1 to 31.
    min_rnr_timer: u8 = 12, "code of IBTA table 45";
    /// Reads and atomics in flight per endpoint, in each direction: 1 to 16, rounded down to a
    /// power of two.
    max_rd_atomic: u8 = 8, "operations";
    /// How long [`Worker::wait`](crate::Worker::wait) polls before it sleeps; about one wake-up
    /// latency. If the interfaces of a worker differ, the longest time is used.
    busy_poll: Duration = Duration::from_micros(20), "time";
    /// How long a connection of `tcp`, or a connection request over datagrams, may take. For `tcp`,
    /// time in which this process did not call progress counts as at most a sixteenth of the limit.
    connect_timeout: Duration = Duration::from_secs(10), "time";
    /// How long a peer of `tcp` or over datagrams may acknowledge nothing, or read nothing while
    /// buffers are full, before its endpoint fails.
    peer_timeout: Duration = Duration::from_secs(30), "time";
    /// Time between two probes of an idle peer, so that an endpoint that posts nothing detects that
    /// its peer has died; 250 ms to 1 hour. A probe is reported as failed after the retries of
    /// `ack_timeout` over reliable connections and `dc_mlx5`, after `peer_timeout` over `ud_mlx5`
    /// and `ud_verbs`, and at once over `cma`. Over `shm` and `tcp` the kernels of both hosts do the
    /// same without probes. Both ends must connect within one interval. `off`: a peer is checked by
    /// posts only.
    keepalive: Option<Duration> = None, "off or a time";
    /// Whether `tcp` encrypts and authenticates what its endpoints send, and what peers request of
    /// the domain's memory. `auto`: everywhere but on the loopback. A connection is protected if
    /// either end requires it.
    integrity: Choice = Choice::Auto, "auto, yes (on) or no (off)";
    /// Whether `tcp` needs no progress of this process to accept connections, and to send the bytes of
    /// posts that returned `Ok`: a thread does both. Endpoints can then connect to the interface, too.
    /// Posts are sent at once instead of several together, and return `NoResource` while the endpoint
    /// connects and while the kernel takes no more bytes.
    unattended: bool = false, "yes (on) or no (off)";
}

/// The shortest and the longest interval of probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_hours(1));

impl InterfaceConfig {
    /// Returns `bcopy_buffers` after a check.
    pub(crate) fn checked_bcopy_buffers(&self, transport: TransportId) -> Result<usize, OpenError> {
        check(transport, "bcopy_buffers", self.bcopy_buffers, 1, 65536)?;
        Ok(self.bcopy_buffers as usize)
    }

    /// Returns `keepalive` after a check.
    pub(crate) fn checked_keepalive(
        &self,
        transport: TransportId,
    ) -> Result<Option<Duration>, OpenError> {
        let Some(interval) = self.keepalive else { return Ok(None) };
        if (KEEPALIVE.0..=KEEPALIVE.1).contains(&interval) {
            return Ok(Some(interval));
        }
        let reason = "in milliseconds, it must be from 250 to 3600000";
        Err(OpenError::keepalive(transport, interval, reason))
    }
}

/// Refuses a setting outside `least..=most`.
pub(crate) fn check(
    transport: TransportId,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_listed_with_what_it_means() {
        let settings = InterfaceConfig::default().settings();
        assert_eq!(settings.len(), InterfaceConfig::NAMES.len());
        for setting in settings {
            assert_eq!(setting.default, setting.value);
            assert!(setting.doc.ends_with('.') && !setting.unit.is_empty(), "{setting:?}");
        }
    }
}
