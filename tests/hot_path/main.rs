//! What no hot operation does: allocate memory, or make a system call. (`cargo xtask asm` checks in
//! the machine code that none panics.)

mod allocation;
mod confinement;
mod idle;
mod operations;
#[path = "../transport/support.rs"]
#[expect(dead_code, reason = "the other suites use the rest")]
mod support;
mod system_calls;
