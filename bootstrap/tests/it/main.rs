//! The integration tests of this crate, in one program.

mod launchers;
mod runtimes;
mod support;
