//! Names the library as NCCL looks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-barewire.so");
    // NCCL unloads plugins between communicators; threads of software devices run on.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
