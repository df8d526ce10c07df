//! The integration tests of this crate, in one program.

mod all_to_all;
mod strangers;
mod within_a_process;
