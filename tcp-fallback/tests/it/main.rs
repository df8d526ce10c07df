//! The integration tests of this crate, in one program.

mod on_path;
mod strangers;
