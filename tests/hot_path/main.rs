//! What no hot operation does: allocate memory, or ask the kernel for anything. (That it does not panic is read in its machine code:
//! `cargo xtask asm`.)

mod allocation;
mod confinement;
mod idle;
mod operations;
#[path = "../transport/support.rs"]
#[expect(dead_code, reason = "the other suites use the rest")]
mod support;
mod system_calls;
