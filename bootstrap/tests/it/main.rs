//! The integration tests of this crate, in one program.

mod floods;
mod launchers;
#[path = "../../../tests/support/port.rs"]
mod port;
mod runtimes;
mod support;
