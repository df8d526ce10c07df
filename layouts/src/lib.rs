//! Byte layouts, and nothing else: what an mlx5 device reads and writes in host memory, the PRM
//! commands that set it up, the RoCEv2 packets that it sends, and the management datagrams by which
//! connections are made.
//!
//! Every type is plain bytes with big-endian fields; sizes and offsets are asserted at compile
//! time. The crate has no `unsafe`, uses no standard library, and does not depend on where the
//! bytes are stored.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod be;
mod codes;
pub mod command;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod icrc;
pub mod management;
pub mod page_fault;
pub mod prm;
pub mod roce;
mod setters;
pub mod tag;
pub mod wqe;
