//! Reliable connected queue pairs: creation, connection, error and reset.

use core::any::Any;
use core::cmp::min_by_key;
use std::sync::Arc;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{QpState, TimestampFormat};
use barewire_layouts::roce::udp_source_port;
use barewire_layouts::wqe::{DataSegment, WQEBB};

#[cfg(feature = "verbs")]
use crate::backend::init_obj;
use crate::backend::{Backend, Pair, PairInfo, PairSizes, Path, commands};
#[cfg(feature = "verbs")]
use crate::context::DomainObject;
use crate::context::{Context, ProtectionDomain, Registers, Uar};
use crate::doorbell::{BlueFlame, Doorbell, Half, Width};
use crate::error::Error;
use crate::queue::completion::CompletionQueue;
use crate::queue::receive::{ReceiveParts, ReceiveQueue};
use crate::queue::send::{MAX_WQE_BLOCKS, SendParts, SendQueue};
pub use crate::values::RcPath;
use crate::values::{Access, Port};

barewire_layouts::with_setters! {
    /// Sizes of a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RcConfig {
        /// WQEBBs (64 bytes) in the send ring; rounded up to a power of two, at least 16.
        pub send_blocks: u32,
        /// Receive WQEs in the receive ring; rounded up to a power of two, at least 4.
        pub receive_entries: u32,
        /// At least one completion is requested in this many WQEBBs; rounded down to a power of two
        /// that is at most an eighth of the ring. 1 requests one with every WQE.
        pub signal_period: u32,
        /// The peer's rights to memory of this protection domain over this queue pair.
        pub access: Access,
        /// A number (24 bits) that completions of this queue pair carry.
        pub user_index: u32,
        /// The port, with its GID and partition: see [`Context::choose_port`]. The default is that
        /// of the context.
        pub port: Option<Port>,
    }
}

impl Default for RcConfig {
    fn default() -> Self {
        Self {
            send_blocks: 256,
            receive_entries: 64,
            signal_period: 32,
            access: Access::all(),
            user_index: 0,
            port: None,
        }
    }
}

/// The resources of a queue pair, dropped in this order.
#[derive(Debug)]
struct Resources {
    object: Box<dyn Pair>,
    _completion_queues: [Arc<dyn Any + Send + Sync>; 2],
    _registers: Registers,
    domain: ProtectionDomain,
}

/// A reliable connected queue pair.
///
/// The queues are public so that both can be borrowed at the same time. Each keeps the device's
/// object, its ring and its record alive, and writes no others. Exchanging the queues of two pairs
/// is therefore memory safe, but completions and [`Self::reset`] then concern the other pair's
/// queue.
#[derive(Debug)]
#[must_use = "dropping it destroys the queue pair"]
pub struct RcQueuePair<D: Doorbell = BlueFlame> {
    /// The send queue.
    pub send: SendQueue<D>,
    /// The receive queue.
    pub receive: ReceiveQueue,
    number: u32,
    user_index: Option<u32>,
    access: Access,
    port: Port,
    resources: Arc<Resources>,
}

/// The UDP source port of a connection, in the range that the device allows. Connections get
/// different ports, so that routers spread them over paths.
fn source_port(own: u32, remote: u32, (first, last): (u16, u16)) -> u16 {
    let span = u32::from(last.saturating_sub(first)) + 1;
    let port = udp_source_port(own, remote);
    if (first..=last).contains(&port) { port } else { first + (u32::from(port) % span) as u16 }
}

impl<D: Doorbell> RcQueuePair<D> {
    /// Creates a queue pair in the init state: receive WQEs may be posted, and nothing is sent
    /// before [`Self::connect`].
    ///
    /// `send_completions` must have room for a CQE per send WQEBB, and `receive_completions` for
    /// one per receive WQE, in addition to those of their other queue pairs: see
    /// [`CompletionQueue`].
    ///
    /// # Errors
    /// If a size exceeds the limit of the device, a completion queue belongs to another device, or
    /// the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let combines = context.capabilities().blueflame && context.capabilities().write_combining;
        if D::WHOLE_WQE && !D::ADAPTS && !combines {
            return Err(Error::Unsupported {
                what: "BlueFlame",
                reason: "its UAR pages are not mapped write-combining; PlainDoorbell works",
            });
        }
        if !D::Width::is_available() {
            return Err(Error::parameter(
                "bytes of a store to the register",
                D::Width::BYTES,
                "a width that this CPU supports",
            ));
        }
        let most = context.capabilities().max_queue_entries;
        let size = |what, value: u32, least: u32| {
            if value == 0 || value > most {
                return Err(Error::parameter(what, value, format!("1 to {most}")));
            }
            Ok(value.next_power_of_two().max(least))
        };
        let send_blocks = size("send WQEBBs", config.send_blocks, 4 * MAX_WQE_BLOCKS)?;
        // The send ring follows the receive ring and starts at a WQEBB.
        let receive_entries = size(
            "receive WQEs",
            config.receive_entries,
            (WQEBB / size_of::<DataSegment>()) as u32,
        )?;
        if config.user_index >> 24 != 0 {
            return Err(Error::parameter("user index", config.user_index, "at most 24 bits"));
        }
        let signal_period = 1 << config.signal_period.clamp(1, send_blocks / 8).ilog2();
        let queues = [send_completions.resources()?, receive_completions.resources()?];
        for other in [uar.context(), &queues[0].context, &queues[1].context] {
            context.owns(other)?;
        }
        let timestamps = if context.capabilities().timestamp_formats {
            TimestampFormat::Default
        } else {
            TimestampFormat::FreeRunning
        };
        let user_index = config.user_index;
        let sizes = PairSizes { send_blocks, receive_entries, user_index, timestamps };
        let registers = if D::LOCKED { uar.shared()? } else { uar.own() };
        let facts = match (context.backend(), domain.object(), registers) {
            (Backend::Commands(channel), domain, Registers::Page(page)) => {
                let cqns = queues.map(|queue| queue.number);
                commands::create_pair(&**channel, domain.number(), &**page, cqns, &sizes)?
            }
            #[cfg(feature = "verbs")]
            (
                Backend::InitObj(_),
                DomainObject::Verbs { domain, .. },
                Registers::ThreadDomain(thread),
            ) => init_obj::create_pair(domain, thread, queues.map(|queue| &*queue.object), &sizes)?,
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let PairInfo {
            number,
            user_index,
            send_ring,
            receive_ring,
            doorbell_record,
            register,
            object,
        } = facts;
        let resources = Arc::new(Resources {
            object,
            _completion_queues: [
                send_completions.keep().clone(),
                receive_completions.keep().clone(),
            ],
            _registers: registers.clone(),
            domain: domain.clone(),
        });
        // SAFETY: ring, record word and register lie in memory that `keep` holds. Nothing else has
        // the address of ring and record; the register is shared with queues of the same thread
        // (`Uar`) or, under its lock, of several. `D::Width::is_available` was checked.
        let send = unsafe {
            let parts = SendParts {
                ring: send_ring,
                blocks: send_blocks,
                doorbell_record: doorbell_record.add(1),
                register,
                qpn: number,
                signal_period,
                keep: resources.clone(),
            };
            let half = match D::LOCKED {
                true => Half::new(register),
                false if D::ADAPTS && !combines => Half::plain(register),
                false => uar.half(register),
            };
            SendQueue::build(parts, half, D::LOCKED.then(|| uar.lock(register)))
        };
        // SAFETY: ring and record word lie in memory that `keep` holds, and nothing else has their
        // address.
        let receive = unsafe {
            ReceiveQueue::from_parts(ReceiveParts {
                ring: receive_ring,
                entries: receive_entries,
                doorbell_record,
                keep: resources.clone(),
            })
        };
        let (access, port) = (config.access, config.port.unwrap_or(*context.port()));
        let pair = Self { send, receive, number, user_index, access, port, resources };
        pair.initialise()?;
        Ok(pair)
    }

    /// Queue pair number (24 bits).
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The user index that completions of this queue pair carry: [`RcConfig::user_index`], or
    /// `None` if libmlx5 assigned an index, which it does not report. Every completion carries the
    /// queue pair number.
    #[inline]
    pub fn user_index(&self) -> Option<u32> {
        self.user_index
    }

    /// Connects to the peer of `path`. Both directions work after both sides have connected; the
    /// sender retries messages that arrive earlier.
    ///
    /// # Errors
    /// If a value of `path` does not fit its field, or the device refused.
    pub fn connect(&mut self, path: &RcPath) -> Result<(), Error> {
        path.check()?;
        let capabilities = self.context().capabilities();
        let mac = match (self.context().backend(), capabilities.port_type) {
            (Backend::Commands(channel), PortType::Ethernet) => {
                channel.next_hop(&self.port, &path.remote)?
            }
            // The kernel resolves the address.
            _ => path.remote.mac,
        };
        let path = Path {
            wanted: path,
            mtu: min_by_key(path.mtu, self.port.mtu, |mtu| mtu.bytes()),
            port_type: capabilities.port_type,
            mac,
            udp_source_port: source_port(
                self.number,
                path.remote_qpn,
                capabilities.udp_source_ports,
            ),
            log_max_message: capabilities.max_message.ilog2() as u8,
            access: self.access,
            masked_atomics: capabilities.masked_atomics,
            log_requester_reads: path.log_max_reads.min(capabilities.log_max_reads_requester),
            log_responder_reads: path.log_max_reads.min(capabilities.log_max_reads_responder),
        };
        self.resources.object.connect(&self.port, &path)
    }

    /// Moves the queue pair to error: all outstanding WQEs complete as flushed, and the peer's
    /// operations fail.
    ///
    /// # Errors
    /// If the device refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.resources.object.fail()
    }

    /// Moves the queue pair back to the init state, from any state. Poll the completion queues
    /// until they are empty first: they may contain completions of WQEs posted before the reset.
    ///
    /// # Errors
    /// If the device refused.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.resources.object.reset()?;
        self.send.reset();
        self.receive.reset();
        self.initialise()
    }

    /// Queries the state of the queue pair.
    ///
    /// # Errors
    /// If the device refused, or returned a state that this driver does not know.
    pub fn state(&self) -> Result<QpState, Error> {
        self.resources.object.state()
    }

    fn initialise(&self) -> Result<(), Error> {
        let context = self.context();
        let masked = context.capabilities().masked_atomics;
        self.resources.object.initialise(&self.port, self.access, masked)
    }

    fn context(&self) -> &Context {
        self.resources.domain.context()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_spread_and_stay_in_range() {
        let usual = barewire_layouts::roce::UDP_SOURCE_PORTS;
        for range in [usual, (50_000, 50_099), (7, 7)] {
            let ports: std::collections::BTreeSet<u16> =
                (0x100..0x200).map(|qpn| source_port(qpn, 0x48, range)).collect();
            assert!(ports.iter().all(|port| (range.0..=range.1).contains(port)), "{range:?}");
            assert!(range == (7, 7) || ports.len() > 30, "{range:?}: {}", ports.len());
        }
        assert_eq!(source_port(0x100, 0x48, usual), source_port(0x48, 0x100, usual));
    }
}
