//! libmlx5's direct verbs (mlx5dv): the functions, structures and constants of rdma-core 44's `infiniband/mlx5dv.h` that
//! barewire uses, and the functions that came later.
//!
//! The library is not linked: [`Library::get`] loads it when the program first asks, so one binary runs on machines without it and with
//! any version from rdma-core 44 on. The bindings are checked in; `tests/regenerate.rs` makes them again and compares.
//! Without the feature `rdma-sys`, whose types they are made of, this crate is empty.
#![cfg(feature = "rdma-sys")]

#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    reason = "made by bindgen; the header documents it"
)]
mod bindings {
    use rdma_sys::{
        ibv_ah, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_dm, ibv_pd, ibv_qp,
        ibv_qp_init_attr_ex, ibv_srq, ibv_wq,
    };

    // Not a module file: rustfmt leaves it as bindgen made it.
    include!("bindings.rs");
}

mod library;

pub use bindings::*;
pub use library::{GetDataDirectSysfsPath, Library, RegDmabufMr};
