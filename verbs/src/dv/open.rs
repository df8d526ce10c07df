//! What libmlx5 tells about queues that verbs made (`mlx5dv_init_obj`).
#![allow(unsafe_code, reason = "addresses may go to another thread, which the compiler cannot know")]

use std::io;
use std::ptr::NonNull;

use barewire_mlx5dv_sys::{
    Library, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
    MLX5DV_QP_MASK_UAR_MMAP_OFFSET, MLX5DV_SRQ_MASK_SRQN, mlx5dv_cq, mlx5dv_qp, mlx5dv_srq,
};

use crate::Error;
use crate::sys::{InitObj, OpenContext};

/// A completion queue whose entries are read where the device writes them. Verbs do not poll it any more.
pub type CompletionQueue = crate::CompletionQueue<CompletionQueueFacts>;
/// A shared receive queue whose ring is written directly. Verbs do not post to it any more.
pub type SharedReceiveQueue = crate::SharedReceiveQueue<SharedReceiveFacts>;
/// A queue pair whose rings and doorbells are written directly. Verbs do not post to it any more, but still change its state.
pub type QueuePair = crate::QueuePair<QueuePairFacts>;

/// Whether short messages are put into the completion entry instead of the buffers that were named for them. Who polls must then look at
/// the entry's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterToEntry {
    /// Never.
    Never,
    /// Of received messages, and of what reads and atomics bring where the queue pair signals all requests.
    Received,
    /// Of whatever reads and atomics bring, too.
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
    /// Its first byte.
    pub start: NonNull<u8>,
    /// How many entries it has, a power of two.
    pub entries: u32,
    /// Bytes from one entry to the next.
    pub stride: u32,
}

/// Where a completion queue is. The addresses are good as long as the queue. mlx5dv.h: `struct mlx5dv_cq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueFacts {
    /// Its number in contexts and doorbells.
    pub number: u32,
    /// Its entries, of 64 or 128 bytes. libmlx5 has written each as never used (`op_own` 0xf0).
    pub ring: Ring,
    /// The doorbell record, 8 bytes: consumer index and arming.
    pub doorbell_record: NonNull<u8>,
    /// First byte of the UAR page whose CQ doorbell arms it. Every queue of the context uses the same page.
    pub uar: NonNull<u8>,
}

/// Where a queue pair is. The addresses are good as long as the queue pair. mlx5dv.h: `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairFacts {
    /// Its number.
    pub number: u32,
    /// The send queue, in units of 64 bytes (WQEBB); `None` if it sends nothing.
    pub send: Option<Ring>,
    /// The receive queue; `None` if it receives nothing by itself.
    pub receive: Option<Ring>,
    /// The doorbell record, 8 bytes: receive and send counter.
    pub doorbell_record: NonNull<u8>,
    /// The register that its doorbells go to: two halves of [`Self::register_size`] bytes, used in turns. Two queue pairs with
    /// the same register must take turns with it.
    pub register: NonNull<u8>,
    /// Bytes that a half takes in one burst (BlueFlame); 0 if it takes 8-byte doorbells only, at its first byte.
    pub register_size: u32,
    /// What to map for the register's page in another process; `None` if libmlx5 does not tell.
    pub uar_mmap_offset: Option<i64>,
}

/// Where a shared receive queue is. The addresses are good as long as the queue. mlx5dv.h: `struct mlx5dv_srq`.
///
/// Its requests form a list: each begins with the index of the next. All were free, from [`Self::head`] to [`Self::tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveFacts {
    /// Its number.
    pub number: u32,
    /// The first request's first byte.
    pub start: NonNull<u8>,
    /// Bytes from one request to the next.
    pub stride: u32,
    /// The index of the first free request.
    pub head: u32,
    /// The index of the last free request.
    pub tail: u32,
    /// The doorbell record: 4 bytes, the count of posted requests.
    pub doorbell_record: NonNull<u8>,
}

// SAFETY: addresses and numbers; whoever follows an address answers for how.
unsafe impl Send for SharedReceiveFacts {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveFacts {}
// SAFETY: addresses and numbers; whoever follows an address answers for how.
unsafe impl Send for CompletionQueueFacts {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueueFacts {}
// SAFETY: as above.
unsafe impl Send for QueuePairFacts {}
// SAFETY: as above.
unsafe impl Sync for QueuePairFacts {}

/// libmlx5, or what to install.
pub(crate) fn library(device: &str) -> Result<&'static Library, Error> {
    Library::get().map_err(|error| {
        Error::new(device, "load libmlx5", io::Error::other(error.to_string()))
            .with_hint("install it (Debian: ibverbs-providers)".to_owned())
    })
}

/// Opens an object of verbs.
pub(crate) fn open<O: InitObj>(
    context: &OpenContext,
    what: &'static str,
    object: &O,
) -> Result<O::Facts, Error> {
    let device = context.name();
    object.init_obj(library(device)?).map_err(|source| {
        let unsupported = source.kind() == io::ErrorKind::Unsupported;
        let error = Error::new(device, format!("open {what} for direct access"), source);
        if unsupported { error.with_hint("only devices of libmlx5 can be".to_owned()) } else { error }
    })
}

impl TryFrom<mlx5dv_cq> for CompletionQueueFacts {
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

impl TryFrom<mlx5dv_srq> for SharedReceiveFacts {
    type Error = io::Error;

    fn try_from(queue: mlx5dv_srq) -> io::Result<Self> {
        if queue.comp_mask & u64::from(MLX5DV_SRQ_MASK_SRQN) == 0 {
            return Err(io::Error::other("libmlx5 does not tell its number"));
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

impl QueuePairFacts {
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
