//! Creation of device objects. Both backends return the same structures, so queues do not depend on
//! the backend:
//!
//! - PRM commands over a [channel](crate::channel), to the software HCA or to a device by DEVX;
//! - objects of verbs, exported by `mlx5dv_init_obj` (feature `verbs`).

pub(crate) mod commands;
#[cfg(feature = "verbs")]
pub(crate) mod init_obj;
#[cfg(feature = "verbs")]
pub(crate) mod region;

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{Enhancements, Mtu, QpState, ServiceType, TimestampFormat};
use barewire_layouts::cqe::Cqe64;
use barewire_layouts::wqe::DataSegment;

use crate::channel::CommandChannel;
use crate::error::Error;
use crate::shared_receive;
use crate::values::{Access, Port, RcPath};
use crate::xrc;

/// The way in which the objects of a context are created.
#[derive(Debug)]
pub(crate) enum Backend {
    Commands(Box<dyn CommandChannel>),
    #[cfg(feature = "verbs")]
    InitObj(init_obj::Device),
}

impl Backend {
    /// The channel for objects that only PRM commands create.
    ///
    /// # Errors
    /// If the backend has none.
    #[cfg_attr(
        not(feature = "verbs"),
        expect(clippy::unnecessary_wraps, reason = "the other backend has none")
    )]
    pub(crate) fn commands(&self) -> Result<&dyn CommandChannel, Error> {
        match self {
            Self::Commands(channel) => Ok(&**channel),
            #[cfg(feature = "verbs")]
            Self::InitObj(_) => Err(Error::Unsupported {
                what: "DC, XRC and tag matching",
                reason: "objects of verbs do not export them; set the device up by DEVX",
            }),
        }
    }
}

/// A completion queue that was created.
pub(crate) struct CompletionInfo {
    pub(crate) number: u32,
    pub(crate) ring: NonNull<Cqe64>,
    pub(crate) doorbell_record: NonNull<u32>,
    /// The device's object and its memory.
    pub(crate) object: Box<dyn Any + Send + Sync>,
}

/// A queue pair that was created.
pub(crate) struct PairInfo {
    pub(crate) number: u32,
    pub(crate) send_ring: NonNull<u8>,
    pub(crate) receive_ring: NonNull<DataSegment>,
    /// The receive word, then the send word.
    pub(crate) doorbell_record: NonNull<u32>,
    pub(crate) register: NonNull<u8>,
    /// The user index of its completions, if the caller chooses it.
    pub(crate) user_index: Option<u32>,
    /// Those that the device supports.
    pub(crate) enhancements: Enhancements,
    pub(crate) object: Box<dyn Pair>,
}

/// Validated sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairSizes<'a> {
    /// WQEBBs of the send ring, a power of two; 0 for no send ring.
    pub(crate) send_blocks: u32,
    pub(crate) receive: Receive<'a>,
    pub(crate) user_index: u32,
    pub(crate) timestamps: TimestampFormat,
    pub(crate) service: ServiceType,
    /// Short messages arrive in the completion.
    pub(crate) inline_receive: bool,
    /// The device supports enhancements.
    pub(crate) enhancements: bool,
    pub(crate) initiator: InitiatorSettings,
}

/// What only DC initiators have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InitiatorSettings {
    /// log2 of the streams, and of those in error that stop it.
    pub(crate) log_streams: u8,
    pub(crate) log_errored_streams: u8,
    /// It sends nothing before a connection is accepted.
    pub(crate) full_handshake: bool,
}

/// Where a queue pair finds receive WQEs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Receive<'a> {
    /// In a ring of its own of so many WQEs of one segment, a power of two.
    Own(u32),
    /// In a queue that it shares with others.
    Shared(&'a Arc<shared_receive::Resources>),
    /// In the queue of an XRC domain that the peer's message names. The device requires one of them
    /// here, also of initiators.
    Xrc(&'a Arc<xrc::Resources>),
    /// Nowhere: it only sends.
    None,
}

impl Receive<'_> {
    /// WQEs of its own ring.
    pub(crate) fn entries(self) -> u32 {
        match self {
            Self::Own(entries) => entries,
            Self::Shared(_) | Self::Xrc(_) | Self::None => 0,
        }
    }
}

/// What a queue pair has from the init state on.
pub(crate) enum Initial {
    /// The peer's rights. If `masked_atomics` is set and the backend can request it, the queue pair
    /// accepts masked atomics from the peer.
    Connected { access: Access, masked_atomics: bool },
    /// The key of the datagrams that it takes.
    Datagrams { queue_key: u32 },
}

/// A queue pair of the device. Dropping it destroys it and frees its memory.
pub(crate) trait Pair: fmt::Debug + Send + Sync {
    /// Moves from reset to init, in which receive WQEs may be posted.
    fn initialise(&self, port: &Port, initial: &Initial) -> Result<(), Error>;

    /// Moves a reliable connected queue pair from init to ready to send. Returns the enhancements
    /// that the device has accepted of those of the path.
    fn connect(&self, port: &Port, path: &Path<'_>) -> Result<Enhancements, Error>;

    /// Moves a queue pair for datagrams from init to ready to send.
    fn activate(&self, port: &Port) -> Result<(), Error>;

    /// Moves from any state to error.
    fn fail(&self) -> Result<(), Error>;

    /// Moves from any state to reset.
    fn reset(&self) -> Result<(), Error>;

    /// Ends the error state of a stream of a DC initiator.
    fn reset_stream(&self, _stream: u16) -> Result<(), Error> {
        Err(Error::Unsupported { what: "streams", reason: "only DC initiators have them" })
    }

    /// Returns whether the queue pair, which is in error, has returned what it took from its shared
    /// receive queue, as far as events were read. `None` if the kernel does not report it.
    fn is_drained(&self) -> Option<bool> {
        None
    }

    /// Returns the state that the device reports.
    fn state(&self) -> Result<QpState, Error>;

    /// Returns the fields of [`readback::fields`](crate::readback::fields), or nothing if the
    /// backend cannot query them.
    fn read_back(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        Ok(Vec::new())
    }
}

/// A path whose values are within the limits of the device.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    pub(crate) wanted: &'a RcPath,
    /// Packet sequence number of the first request.
    pub(crate) send_psn: u32,
    /// Payload bytes per packet.
    pub(crate) mtu: Mtu,
    pub(crate) port_type: PortType,
    /// Ethernet address of the next hop.
    pub(crate) mac: [u8; 6],
    /// UDP source port on RoCE.
    pub(crate) udp_source_port: u16,
    pub(crate) log_max_message: u8,
    /// The peer's rights, as for [`Initial::Connected`].
    pub(crate) access: Access,
    pub(crate) masked_atomics: bool,
    /// Most outstanding reads and atomics as log2: of this side, then of the peer.
    pub(crate) log_requester_reads: u8,
    pub(crate) log_responder_reads: u8,
}
