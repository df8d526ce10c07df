//! User memory: DESTROY_UMEM (mlx5_ifc.h: `destroy_umem_in`).
//!
//! Registration is not here: the kernel pins the pages and sends CREATE_UMEM itself, so a driver
//! registers memory through its command channel.

use super::{StatusOut, requests};
use crate::prm::{Field, layouts};

layouts! {
    /// Withdraws user memory.
    DestroyUmemIn: 16, "destroy_umem_in";
}

requests! {
    DestroyUmemIn => DestroyUmem, StatusOut;
}

impl DestroyUmemIn {
    /// The memory's number.
    pub const UMEM_ID: Field<Self> = Field::new(0x48, 24);
}
