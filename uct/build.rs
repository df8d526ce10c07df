//! Names the library as programs of UCX expect it, so that the dynamic loader takes it for theirs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuct.so.0");
}
