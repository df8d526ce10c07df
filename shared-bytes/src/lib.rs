//! Copies of memory that a device, a peer or another thread accesses at the same time.
//!
//! No `&[u8]` or `&mut [u8]` may cover such memory. The rule here is that every access to one byte
//! has the same size: an aligned word of 8 bytes within a region is always accessed as a whole, and
//! the bytes before the first and after the last such word singly. Accesses of one size are not
//! data races in the memory model, and a copy that races with another one yields old or new bytes.
//!
//! All users of a region have to use the same bounds, since other bounds have other whole words.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
mod layout;
mod line;
mod words;

pub use bytes::SharedBytes;
pub use layout::{Layout, LayoutRange, Piece, Pieces};
pub use line::request_line;
pub use words::Words;
