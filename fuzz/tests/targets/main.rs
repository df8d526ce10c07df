//! Any bytes for everything that reads bytes from outside: commands, packets, rings, completions, addresses, frames, texts.
//!
//! Every target takes bytes and reads them as a script ([`script::Script`]), runs what is in `__fuzz__/*/corpus/` first, and then random
//! bytes for a second.

mod addresses;
mod allocation;
mod commands;
mod completions;
mod decoders;
mod keys;
mod packets;
mod rings;
mod script;
mod shm;
mod sockets;
mod texts;

#[path = "../../../hca/tests/support/mod.rs"]
mod support;
