//! How a device's objects come about. Two ways end in the same plain facts, and the queues cannot tell them apart:
//!
//! - PRM commands over a [channel](crate::channel), to the software HCA or to a device by DEVX;
//! - objects of verbs, opened up by `mlx5dv_init_obj` (feature `verbs`).
//!
//! With the feature `verbs`, `open` opens a device of this machine the best way that it allows.

pub(crate) mod commands;
#[cfg(feature = "verbs")]
pub(crate) mod init_obj;
#[cfg(feature = "verbs")]
mod open;
#[cfg(feature = "verbs")]
pub(crate) mod route;

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::QpState;
use barewire_layouts::cqe::Cqe64;
use barewire_layouts::wqe::DataSegment;

use crate::channel::CommandChannel;
use crate::context::Port;
use crate::error::Error;
use crate::memory::Access;
use crate::rc::RcPath;

#[cfg(feature = "verbs")]
pub use open::{NotOpened, Opened, SetupWay, UnknownWay, open};

/// The way that a context's objects are made.
#[derive(Debug)]
pub(crate) enum Way {
    Commands(Box<dyn CommandChannel>),
    #[cfg(feature = "verbs")]
    InitObj(init_obj::Device),
}

/// An error of the system below us.
#[cfg(feature = "verbs")]
fn system(operation: &'static str, error: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> Error {
    Error::System { operation, source: std::io::Error::other(error) }
}

/// What a completion queue is made of.
pub(crate) struct CompletionFacts {
    pub(crate) number: u32,
    pub(crate) ring: NonNull<Cqe64>,
    pub(crate) doorbell_record: NonNull<u32>,
    /// The device's object and its memory.
    pub(crate) object: Box<dyn Any + Send + Sync>,
}

/// What a queue pair is made of.
pub(crate) struct PairFacts {
    pub(crate) number: u32,
    pub(crate) send_ring: NonNull<u8>,
    pub(crate) receive_ring: NonNull<DataSegment>,
    /// Its two words: receive, send.
    pub(crate) doorbell_record: NonNull<u32>,
    pub(crate) register: NonNull<u8>,
    /// What its completions carry, if that is the caller's to say.
    pub(crate) user_index: Option<u32>,
    pub(crate) object: Box<dyn Pair>,
}

/// Sizes of a queue pair, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairSizes {
    /// WQEBBs of the send ring, a power of two.
    pub(crate) send_blocks: u32,
    /// Receive WQEs of one segment, a power of two.
    pub(crate) receive_entries: u32,
    pub(crate) user_index: u32,
}

/// A reliable connected queue pair as the device has it. Dropping it destroys it, and frees its memory.
pub(crate) trait Pair: fmt::Debug + Send + Sync {
    /// From reset to init: receive WQEs may be posted. Atomics that it answers may be masked, if that is the way to say so.
    fn initialise(&self, port: &Port, access: Access, masked_atomics: bool) -> Result<(), Error>;

    /// From init to ready to send.
    fn connect(&self, port: &Port, path: &Path<'_>) -> Result<(), Error>;

    /// From any state to error.
    fn fail(&self) -> Result<(), Error>;

    /// From any state to reset.
    fn reset(&self) -> Result<(), Error>;

    /// What the device says.
    fn state(&self) -> Result<QpState, Error>;
}

/// A path, as far as the device can go.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    pub(crate) wanted: &'a RcPath,
    pub(crate) port_type: PortType,
    /// Ethernet address of the next hop.
    pub(crate) mac: [u8; 6],
    pub(crate) log_max_message: u8,
    /// Reads and atomics outstanding, as log2: of this side's, and of the peer's.
    pub(crate) log_requester_reads: u8,
    pub(crate) log_responder_reads: u8,
}
