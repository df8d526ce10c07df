//! The integration tests of this crate, in one program.

mod frames;
mod on_path;
mod strangers;
