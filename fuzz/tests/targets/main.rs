//! Any bytes for all code that parses bytes from outside: commands, packets, rings, completions,
//! addresses, frames, texts.
//!
//! Every target interprets bytes as a script ([`script::Script`]). It first runs the inputs in
//! `__fuzz__/*/corpus/`, and then random bytes for a second.

mod addresses;
mod allocation;
mod bootstrap;
mod channels;
mod commands;
mod completions;
mod decoders;
mod keys;
mod links;
mod matching;
mod packets;
mod rings;
mod script;
mod shm;
mod sockets;
mod strides;
mod tags;
mod texts;

#[path = "../../../hca/tests/support/mod.rs"]
mod support;
