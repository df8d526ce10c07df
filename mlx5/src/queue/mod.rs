//! The hot path: send and receive rings, and completion queues.
//!
//! A queue is built once from plain parts ([`send::SendParts`], [`receive::ReceiveParts`],
//! [`shared_receive::SharedReceiveParts`], [`completion::CompletionParts`]): the address and size
//! of the ring, the doorbell record, the register, the object number. The queue does not depend on
//! how these were created (PRM commands, mlx5dv). A list of tags ([`tags::TagList`]) is kept by
//! posts to a send queue.

pub mod completion;
pub mod receive;
mod ring;
pub mod send;
pub mod shared_receive;
pub mod tags;
