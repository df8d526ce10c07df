//! The addresses of queues that were created by verbs (`mlx5dv_init_obj`).
#![allow(unsafe_code, reason = "types with addresses are sent to other threads")]

use std::io;
use std::ptr::NonNull;

use barewire_mlx5dv_sys::{
    Library, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
    MLX5DV_QP_MASK_UAR_MMAP_OFFSET, MLX5DV_SRQ_MASK_SRQN, mlx5dv_cq, mlx5dv_qp, mlx5dv_srq,
};

use crate::Error;
use crate::sys::{InitObj, OpenContext};

/// A completion queue whose entries a driver reads directly. Verbs do not poll it any more.
pub type CompletionQueue = crate::CompletionQueue<CompletionQueueInfo>;
/// A shared receive queue whose ring a driver writes directly. Verbs do not post to it any more.
pub type SharedReceiveQueue = crate::SharedReceiveQueue<SharedReceiveInfo>;
/// A queue pair whose rings and doorbells a driver writes directly. Verbs do not post to it any
/// more, but still change its state.
pub type QueuePair = crate::QueuePair<QueuePairInfo>;

/// Whether the device scatters short messages to the completion entry instead of to the buffers of
/// the request. A driver that polls must then check the format of each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterToEntry {
    /// Never.
    Never,
    /// Received messages, and, if the queue pair signals all requests, the data of reads and
    /// atomics.
    Received,
    /// Received messages and the data of all reads and atomics.
    Always,
}

impl ScatterToEntry {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Never => MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            Self::Received => 0,
            Self::Always => MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
        }
    }
}

/// A ring in memory that the device reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Address of the first entry.
    pub start: NonNull<u8>,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Bytes from one entry to the next.
    pub stride: u32,
}

/// The memory of a completion queue. The addresses are valid as long as the queue exists. mlx5dv.h:
/// `struct mlx5dv_cq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueInfo {
    /// The queue's number in contexts and doorbells.
    pub number: u32,
    /// The entries, of 64 or 128 bytes. libmlx5 has initialised each as never written by the device
    /// (`op_own` 0xf0).
    pub ring: Ring,
    /// The doorbell record, 8 bytes: consumer index, and the word for arming.
    pub doorbell_record: NonNull<u8>,
    /// The first byte of the UAR page whose CQ doorbell arms the queue. All queues of a context use
    /// the same page.
    pub uar: NonNull<u8>,
}

/// The memory of a queue pair. The addresses are valid as long as the queue pair exists. mlx5dv.h:
/// `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairInfo {
    /// The queue pair's number.
    pub number: u32,
    /// The send queue, in units of 64 bytes (WQEBB); `None` if the queue pair does not send.
    pub send: Option<Ring>,
    /// The receive queue; `None` if the queue pair has none.
    pub receive: Option<Ring>,
    /// The doorbell record, 8 bytes: receive counter and send counter.
    pub doorbell_record: NonNull<u8>,
    /// The doorbell register: two halves of [`Self::register_size`] bytes, which are used
    /// alternately. Users of two queue pairs with the same register must not write to it at the
    /// same time.
    pub register: NonNull<u8>,
    /// Bytes of a half for a burst (BlueFlame); 0 if the register takes only 8-byte doorbells at
    /// its first byte.
    pub register_size: u32,
    /// The mmap offset for mapping the register's page in another process; `None` if libmlx5 does
    /// not report it.
    pub uar_mmap_offset: Option<i64>,
}

/// The memory of a shared receive queue. The addresses are valid as long as the queue exists.
/// mlx5dv.h: `struct mlx5dv_srq`.
///
/// The requests form a linked list: each begins with the index of the next one. Initially all are
/// free, from [`Self::head`] to [`Self::tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveInfo {
    /// The queue's number.
    pub number: u32,
    /// Address of the first request.
    pub start: NonNull<u8>,
    /// Bytes from one request to the next.
    pub stride: u32,
    /// Index of the first free request.
    pub head: u32,
    /// Index of the last free request.
    pub tail: u32,
    /// The doorbell record, 4 bytes: the number of posted requests.
    pub doorbell_record: NonNull<u8>,
}

// SAFETY: the type holds addresses and integers and never dereferences an address. Code that does
// must justify it.
unsafe impl Send for SharedReceiveInfo {}
// SAFETY: shared references only give access to addresses and integers, which are not dereferenced
// here.
unsafe impl Sync for SharedReceiveInfo {}
// SAFETY: the type holds addresses and integers and never dereferences an address. Code that does
// must justify it.
unsafe impl Send for CompletionQueueInfo {}
// SAFETY: shared references only give access to addresses and integers, which are not dereferenced
// here.
unsafe impl Sync for CompletionQueueInfo {}
// SAFETY: the type holds addresses and integers and never dereferences an address. Code that does
// must justify it.
unsafe impl Send for QueuePairInfo {}
// SAFETY: shared references only give access to addresses and integers, which are not dereferenced
// here.
unsafe impl Sync for QueuePairInfo {}

/// Loads libmlx5, or returns an error that names the package to install.
pub(crate) fn library(device: &str) -> Result<&'static Library, Error> {
    Library::get().map_err(|error| {
        Error::new(device, "load libmlx5", io::Error::other(error.to_string()))
            .with_hint("install it (Debian: ibverbs-providers)".to_owned())
    })
}

/// Queries the addresses of a verbs object.
pub(crate) fn open<O: InitObj>(
    context: &OpenContext,
    what: &'static str,
    object: &O,
) -> Result<O::Info, Error> {
    let device = context.name();
    object.init_obj(library(device)?).map_err(|source| {
        let unsupported = source.kind() == io::ErrorKind::Unsupported;
        let error = Error::new(device, format!("open {what} for direct access"), source);
        if unsupported {
            error.with_hint("only devices with the driver libmlx5 support direct access".to_owned())
        } else {
            error
        }
    })
}

impl TryFrom<mlx5dv_cq> for CompletionQueueInfo {
    type Error = io::Error;

    fn try_from(cq: mlx5dv_cq) -> io::Result<Self> {
        Ok(Self {
            number: cq.cqn,
            ring: ring(cq.buf.cast(), cq.cqe_cnt, cq.cqe_size).ok_or_else(incomplete)?,
            doorbell_record: address(cq.dbrec.cast())?,
            uar: address(cq.cq_uar.cast())?,
        })
    }
}

impl TryFrom<mlx5dv_srq> for SharedReceiveInfo {
    type Error = io::Error;

    fn try_from(queue: mlx5dv_srq) -> io::Result<Self> {
        if queue.comp_mask & u64::from(MLX5DV_SRQ_MASK_SRQN) == 0 {
            return Err(io::Error::other("libmlx5 does not report the number of the queue"));
        }
        Ok(Self {
            number: queue.srqn,
            start: address(queue.buf.cast())?,
            stride: queue.stride,
            head: queue.head,
            tail: queue.tail,
            doorbell_record: address(queue.dbrec.cast())?,
        })
    }
}

impl QueuePairInfo {
    pub(crate) fn new(number: u32, qp: &mlx5dv_qp) -> io::Result<Self> {
        let mapped = qp.comp_mask & u64::from(MLX5DV_QP_MASK_UAR_MMAP_OFFSET) != 0;
        Ok(Self {
            number,
            send: ring(qp.sq.buf.cast(), qp.sq.wqe_cnt, qp.sq.stride),
            receive: ring(qp.rq.buf.cast(), qp.rq.wqe_cnt, qp.rq.stride),
            doorbell_record: address(qp.dbrec.cast())?,
            register: address(qp.bf.reg.cast())?,
            register_size: qp.bf.size,
            uar_mmap_offset: mapped.then_some(qp.uar_mmap_offset),
        })
    }
}

fn ring(start: *mut u8, entries: u32, stride: u32) -> Option<Ring> {
    Some(Ring { start: NonNull::new(start)?, entries, stride }).filter(|ring| ring.entries > 0)
}

fn address(of: *mut u8) -> io::Result<NonNull<u8>> {
    NonNull::new(of).ok_or_else(incomplete)
}

fn incomplete() -> io::Error {
    io::Error::other("libmlx5 left an address out")
}
