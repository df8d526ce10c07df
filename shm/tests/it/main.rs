//! The integration tests of this crate, in one program.

mod all_to_all;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod within_a_process;
