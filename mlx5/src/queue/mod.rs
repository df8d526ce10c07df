//! The hot path: rings of WQEs going down, completion queues coming up.
//!
//! A queue is built once from plain facts ([`send::SendParts`], [`receive::ReceiveParts`], [`shared_receive::SharedReceiveParts`],
//! [`completion::CompletionParts`]): where the ring lies, its size, the doorbell record, the register, the object number. How these came
//! about (PRM commands, mlx5dv) makes no difference below this line.

pub mod completion;
pub mod receive;
mod ring;
pub mod send;
pub mod shared_receive;
